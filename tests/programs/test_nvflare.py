"""Jobs of NVFlare in its simulator, tapped as they are: what is recorded, named and leaked.

Every verdict is compared with the program's own records.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
from tapping import Run, bit_for_bit, leakaudit, payloads, tapped

from leakaudit.core.trace import Trace
from leakaudit.traces import trace_file

pytest.importorskip("nvflare", reason="needs the extra 'nvflare'")
pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "examples" / "nvflare"


def job(folder: Path, *options: str, program: Path = EXAMPLE / "job.py") -> Run:
    """Run a job, tapped, with its truth."""
    command = (sys.executable, str(program), *options, "--save", "data.npz")
    return tapped(folder, *command, truth=True)


@pytest.mark.parametrize(
    ("options", "epochs"),
    [((), 1), (("--epochs", "5"), 5), (("--difference",), 1)],
    ids=["plain", "epochs", "difference"],
)
def test_plain_steps_are_proved_and_every_picture_comes_back_bit_for_bit(
    tmp_path: Path, options: tuple[str, ...], epochs: int
) -> None:
    run = job(tmp_path, *options)
    assert run.code == 0, run.said
    named = run.description
    assert (named["payload"], named["protocol"]) == ("weights", "fedavg")
    assert named["params"] == {
        "samples": 1,
        "lr": 0.1,
        "epochs": epochs,
        "batch": 0,
        "server": "mean",
    }
    trace = trace_file.load(run.folder / "trace.pt")
    assert trace.complete
    assert (trace.graph.nodes, len(trace.graph.edges), len(trace)) == (4, 3, 18)
    assert bit_for_bit(run)
    said = "clients sent differences from the server's model" in run.said
    assert said == ("--difference" in options)


def test_a_privacy_filter_is_named_and_no_protocol_is(tmp_path: Path) -> None:
    run = job(tmp_path, "--filter", "svt", "--difference")
    assert run.code == 3, run.said
    assert run.description["protocol"] == "NOT KNOWN"
    text = (tmp_path / "trace.toml").read_text()
    assert "messages pass through SVTPrivacy, which adds noise and hides parameters" in text
    assert not (tmp_path / "trace.pt").exists()


def test_one_line_in_the_job_records_what_the_tap_does(tmp_path: Path) -> None:
    run = job(tmp_path, program=HERE / "nvflare_recorded.py")
    assert run.code == 0, run.said
    traces = [trace_file.load(run.folder / "trace.pt")]
    for side in ("client", "server"):
        log = f"{side}.tap"
        leakaudit(run.folder, "tap", "describe", log, "-o", "tap.toml")
        named = tomllib.loads((run.folder / "tap.toml").read_text())
        assert (named["protocol"], named["params"]["lr"]) == ("fedavg", 0.1)
        leakaudit(run.folder, "tap", "merge", log, "--describe", "tap.toml", "-o", f"{side}.pt")
        traces.append(trace_file.load(run.folder / f"{side}.pt"))
    first, *others = traces
    for other in others:
        assert other.complete
        assert payloads(other).keys() == payloads(first).keys()
        # Each log numbers the clients in the order in which they arrive there.
        assert _bits(other) == _bits(first)


def _bits(trace: Trace) -> list[tuple[int, bytes]]:
    """All payloads with their rounds, in an order that does not depend on the clients' numbers."""
    held = payloads(trace).items()
    return sorted((key[0], value.numpy().tobytes()) for key, value in held)
