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
from leakaudit.gate.tables import SCHEMA, load
from leakaudit.results import model, record_file
from leakaudit.results.model import CheckRecord


def configured(folder: Path) -> Gate:
    """Read the gate of a folder, every key of its configuration checked.

    Args:
        folder: of the configuration.

    Raises:
        LeakauditError: there is none, or something in it is wrong.
    """
    settings.resolve({}, folder, {})
    return load(folder)


def compared(gate: Gate) -> Baseline | None:
    """Return the baseline of a gate.

    Args:
        gate: names the file.

    Returns:
        None if the gate has no baseline, an empty one if the file does not exist.

    Raises:
        LeakauditError: the file is not a baseline.
    """
    path = gate.baseline_path
    if path is None:
        return None
    if not path.is_file():
        return Baseline()
    return baseline.read(path)


def write(judged: Judged, folder: Path) -> CheckRecord:
    """Write results.json, whole or not at all.

    Args:
        judged: a run of a gate.
        folder: in which it is written.

    Returns:
        The record.

    Raises:
        LeakauditError: nothing was recorded, or the file cannot be written.
    """
    made = record.build(judged)
    record_file.write(folder / "results.json", model.plain(made))
    return made


def update(gate: Gate, options: Options, reason: str) -> tuple[Judged, Baseline, Baseline]:
    """Run the gate and write what it measured to the baseline.

    Args:
        gate: names the file.
        options: of the run.
        reason: of the change, not empty.

    Returns:
        The run, and the baseline before and after.

    Raises:
        LeakauditError: a control failed, the run was cut short, or no reason is given; the file
            stays as it was.
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
    """Read what a run of a gate measured.

    Args:
        path: of its results.json, or of another baseline.

    Raises:
        LeakauditError: the file is neither.
    """
    if _is_baseline(path):
        return baseline.read(path)
    made = model.of(record_file.read(path))
    if not isinstance(made, CheckRecord):
        expected = "expected the results.json of 'leakaudit check' or a baseline"
        raise LeakauditError(f"{path}: {expected}, got one of '{model.kind_of(made)}'")
    cells = {}
    for cell in made.gate.cells:
        samples = {name: column.samples for name, column in cell.measures.items()}
        cells[cell.name] = baseline.block(cell.check, cell.digest, cell.seeds, samples)
    origin = made.provenance
    return Baseline(cells, made.summary, origin.started, origin.versions)


def _is_baseline(path: Path) -> bool:
    """Return whether a file names a baseline's format, even if it is damaged."""
    if not path.is_file():
        return False
    return f'"{baseline.FORMAT}"' in path.read_text(errors="replace")


def starter(path: Path, text: str) -> None:
    """Write a new file.

    Args:
        path: of the file.
        text: that it holds.

    Raises:
        LeakauditError: the file exists already.
    """
    if path.exists():
        raise LeakauditError(f"{path} exists already; edit it, or move it away first")
    with replacing(path) as file:
        file.write(text.encode())


def schema(path: Path) -> bool:
    """Write the JSON schema of leakaudit.toml, by which editors complete and check it.

    Args:
        path: of the file; an existing one is kept.

    Returns:
        Whether the file now holds this schema.
    """
    ours = SCHEMA.read_bytes()
    if path.exists():
        return path.read_bytes() == ours
    with replacing(path) as file:
        file.write(ours)
    return True
