"""Nodes of p2pfl that learn by gossip, tapped as they are: what is recorded, named and leaked.

The verdict is compared with the program's own records.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tapping import Run, bit_for_bit, tapped

from leakaudit.capture.tap.log.reading import read_logs
from leakaudit.capture.tap.p2pfl.hooks import OWN
from leakaudit.traces import trace_file

pytest.importorskip("p2pfl", reason="needs p2pfl in an environment of its own")
pytestmark = pytest.mark.slow

FACES = Path(__file__).resolve().parents[2] / "examples" / "p2pfl" / "faces.py"


def gossip(folder: Path, *options: str, truth: bool = False) -> Run:
    """Run the program under the tap."""
    return tapped(folder, sys.executable, str(FACES), *options, truth=truth, operators=True)


def test_gossip_is_named_and_every_picture_comes_back_bit_for_bit(tmp_path: Path) -> None:
    run = gossip(tmp_path, "--nodes", "2", "--save", "data.npz", truth=True)
    assert run.code == 0, run.said
    named = run.description
    assert (named["payload"], named["protocol"]) == ("weights", "dpsgd")
    assert named["params"]["order"] == "adapt"
    assert abs(named["params"]["alpha"] - 0.1) < 1e-5
    trace = trace_file.load(tmp_path / "trace.pt")
    assert (trace.graph.nodes, len(trace.graph.edges)) == (2, 1)
    assert bit_for_bit(run)


def test_gossip_over_sockets_is_named_correctly_or_said_to_be_not_known(tmp_path: Path) -> None:
    run = gossip(tmp_path, "--grpc", "--save", "data.npz")
    named = run.description
    assert (named["payload"], named["protocol"]) == ("weights", "dpsgd")
    assert run.code in (0, 3), run.said
    # It depends on chance whether a node sends its own model, or the mean of some, to all others.
    if run.code == 0:
        assert named["params"]["order"] == "adapt"
        assert abs(named["params"]["alpha"] - 0.1) < 1e-5
        own = torch.from_numpy(np.load(tmp_path / "data.npz")["x"])
        exact = [x.float() for certificate, x in run.pictures().values() if certificate == "EXACT"]
        assert exact
        # Nodes are numbered by their ports, which are drawn at random.
        assert all(any(torch.equal(x, record) for record in own) for x in exact)
    else:
        assert named["params"]["alpha"] == "NOT KNOWN"


def test_several_local_steps_are_said_to_be_not_known(tmp_path: Path) -> None:
    run = gossip(tmp_path, "--nodes", "2", "--epochs", "5")
    assert run.code == 3, run.said
    assert not (tmp_path / "trace.pt").exists()
    assert run.description["params"]["alpha"] == "NOT KNOWN"


def test_noise_of_p2pfl_is_named_and_no_protocol_is(tmp_path: Path) -> None:
    run = gossip(tmp_path, "--nodes", "2", "--compress", "dp")
    assert run.code == 3, run.said
    assert not (tmp_path / "trace.pt").exists()
    assert run.description["protocol"] == "NOT KNOWN"
    said = "messages pass through dp, which clips and adds noise"
    assert said in (tmp_path / "trace.toml").read_text()
    # By default, p2pfl clips a model to norm 1 and adds noise for epsilon 3 and delta 1e-5 with the
    # constants of the classical Gaussian mechanism. Only the initial model has this noise: the same
    # node then sends its trained model without any.
    scale = math.sqrt(2 * math.log(1.25 / 1e-5)) / 3
    sent: dict[str, list[torch.Tensor]] = {"init_model": [], OWN: []}
    for log in read_logs(tmp_path / "trace.tap"):
        for event in log.events:
            if event.kept and (event.notes["node"], event.notes["round"]) == ("node-0", 1):
                sent[event.notes["lane"]].append(log.tensor(event).flatten())
    initial, trained = (torch.cat(parts).double() for parts in sent.values())
    assert len(initial) == len(trained) == 40_194
    # 6 standard deviations of the root of the mean square; the clipped model adds 1e-5 to it
    spread = 6 / math.sqrt(2 * len(initial)) + 1e-4
    assert float(initial.square().mean().sqrt()) == pytest.approx(scale, rel=spread)
    assert float(trained.square().mean().sqrt()) < 0.05
