"""Nodes of p2pfl that learn by gossip, tapped as they are: what is recorded, named and leaked.

The verdict is compared with the program's own records.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tapping import bit_for_bit, tapped

from leakaudit.traces import trace_file

pytest.importorskip("p2pfl", reason="needs p2pfl in an environment of its own")
pytestmark = pytest.mark.slow

FACES = Path(__file__).resolve().parents[2] / "examples" / "p2pfl" / "faces.py"


def test_gossip_is_named_and_every_picture_comes_back_bit_for_bit(tmp_path: Path) -> None:
    command = (sys.executable, str(FACES), "--nodes", "2", "--save", "data.npz")
    run = tapped(tmp_path, *command, truth=True)
    assert run.code == 0, run.said
    named = run.description
    assert (named["payload"], named["protocol"]) == ("weights", "dpsgd")
    assert named["params"]["order"] == "adapt"
    assert abs(named["params"]["alpha"] - 0.1) < 1e-5
    trace = trace_file.load(tmp_path / "trace.pt")
    assert (trace.graph.nodes, len(trace.graph.edges)) == (2, 1)
    assert bit_for_bit(run)


def test_gossip_over_sockets_is_named_correctly_or_said_to_be_not_known(tmp_path: Path) -> None:
    run = tapped(tmp_path, sys.executable, str(FACES), "--grpc")
    named = run.description
    assert (named["payload"], named["protocol"]) == ("weights", "dpsgd")
    assert run.code in (0, 3), run.said
    # It depends on chance whether a node sends its own model, or the mean of some, to all others.
    if run.code == 0:
        assert named["params"]["order"] == "adapt"
        assert abs(named["params"]["alpha"] - 0.1) < 1e-5
    else:
        assert named["params"]["alpha"] == "NOT KNOWN"


@pytest.mark.parametrize("options", [("--epochs", "5"), ("--compress", "dp")], ids=["epochs", "dp"])
def test_other_programs_are_said_to_be_not_known(tmp_path: Path, options: tuple[str, ...]) -> None:
    run = tapped(tmp_path, sys.executable, str(FACES), "--nodes", "2", *options)
    assert run.code == 3, run.said
    assert not (tmp_path / "trace.pt").exists()
    if "dp" in options:
        assert run.description["protocol"] == "NOT KNOWN"
        assert (
            "messages pass through dp, which clips and adds noise"
            in (tmp_path / "trace.toml").read_text()
        )
    else:
        assert run.description["params"]["alpha"] == "NOT KNOWN"
