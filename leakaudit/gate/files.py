"""A gate from its files and back: configuration, baseline, results.json."""

from __future__ import annotations

from pathlib import Path

from leakaudit._util import settings
from leakaudit._util.files import replacing
from leakaudit.errors import LeakauditError
from leakaudit.gate import baseline, judge, record
from leakaudit.gate.baseline import Baseline
from leakaudit.gate.config import Gate
from leakaudit.gate.judge import Judged, Options
from leakaudit.gate.tables import load
from leakaudit.results import record_file
from leakaudit.trace import Json


def configured(folder: Path) -> Gate:
    """Read the gate of a folder, every key of its configuration checked; raises LeakauditError where there is none."""
    settings.resolve({}, folder, {})
    return load(folder)


def compared(gate: Gate) -> Baseline | None:
    """Return what the gate compares with; None where it has no baseline, an empty one where the file is not there."""
    path = gate.baseline_path
    return None if path is None else baseline.read(path) if path.is_file() else Baseline()


def write(judged: Judged, folder: Path) -> dict[str, Json]:
    """Write results.json into `folder` whole or not at all, and return it."""
    made = record.build(judged)
    record_file.write(folder / "results.json", made)
    return made


def update(gate: Gate, options: Options, reason: str) -> tuple[Judged, Baseline, Baseline]:
    """Run the gate and write what it measured to the baseline; returns the run, the baseline before and after.

    Raises LeakauditError, with the file as it was, where a control failed, the run was cut short, or no reason is given.
    """
    path = gate.baseline_path
    if path is None:
        raise LeakauditError(
            f"{gate.source}: gate: baseline is empty, so there is none to update; name a file"
        )
    if not reason.strip():
        raise LeakauditError("a baseline changes for a reason: say it with --reason TEXT")
    before = compared(gate) or Baseline()
    judged = judge.run(gate, options, None)
    after = judge.update(judged, before, reason)
    after.write(path)
    return judged, before, after


def from_results(path: Path) -> Baseline:
    """Read what a run of a gate measured, from its results.json, or another baseline."""
    if '"leakaudit.baseline"' in (
        path.read_text(errors="replace")[:10_000] if path.is_file() else ""
    ):
        return baseline.read(path)
    made = record_file.read(path)
    if made["kind"] != "check":
        raise LeakauditError(
            f"{path}: expected the results.json of 'leakaudit check' or a baseline, got one of '{made['kind']}'"
        )
    cells = {}
    for cell in made["gate"]["cells"]:
        samples = {m: list(v["samples"]) for m, v in cell["measures"].items()}
        cells[cell["name"]] = baseline.block(cell["digest"], cell["seeds"], samples)
    return Baseline(
        cells, made["summary"], made["provenance"]["started"], made["provenance"]["versions"]
    )


def starter(path: Path, text: str) -> None:
    """Write a new file; raises LeakauditError where one is there."""
    if path.exists():
        raise LeakauditError(f"{path} is there already; edit it, or move it away first")
    with replacing(path) as file:
        file.write(text.encode())
