"""The files of a gate: configuration, baseline, results.json."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from leakaudit._util import settings
from leakaudit._util.files import replacing
from leakaudit.core.errors import LeakauditError
from leakaudit.judging.gate import baseline, judge, record
from leakaudit.judging.gate.baseline import Baseline
from leakaudit.judging.gate.config import Gate
from leakaudit.judging.gate.judge import GateResults
from leakaudit.judging.gate.tables import SCHEMA, load
from leakaudit.reporting.figures.pictures import Pair
from leakaudit.reporting.rendering import leaked
from leakaudit.reporting.results import model, record_file
from leakaudit.reporting.results.model import CheckRecord, RuleStatus

# Outcomes for which the record that leaked is drawn; what stays within the limits is not.
LEAKED = (RuleStatus.OVER, RuleStatus.REGRESSION)


def configured(folder: Path) -> Gate:
    """Read and validate the gate of a folder."""
    settings.resolve({}, folder, {})
    return load(folder)


def compared(gate: Gate) -> Baseline | None:
    """Return the baseline; None if the gate has none, empty if its file does not exist."""
    path = gate.baseline_path
    if path is None:
        return None
    if not path.is_file():
        return Baseline()
    return baseline.read(path)


def write(judged: GateResults, folder: Path) -> CheckRecord:
    """Write results.json atomically, and pictures of what leaked beside it."""
    made = record.build(judged)
    if leaked.save(_pairs(judged), folder):
        made = replace(made, picture=leaked.PICTURE, originals=leaked.ARRAYS)
    return record_file.keep(made, folder, report=False)


def _pairs(judged: GateResults) -> dict[str, Pair]:
    over = {rule.cell for rule in judged.rules if rule.status in LEAKED}
    pairs = {}
    for cell in judged.cells:
        if cell.pair is not None and cell.name in over:
            pairs[cell.name] = cell.pair
    return pairs


def update(gate: Gate, seed: int, reason: str) -> tuple[GateResults, Baseline, Baseline]:
    """Run the gate and, if it is sound, write its measurements to the baseline."""
    path = gate.baseline_path
    if path is None:
        raise LeakauditError(
            f"{gate.source}: gate: baseline: expected the name of a file to update, got none"
        )
    if not reason.strip():
        raise LeakauditError("changing a baseline requires a reason: use --reason TEXT")
    before = compared(gate) or Baseline()
    judged = judge.run(gate, None, seed)
    if judged.interrupted:
        raise KeyboardInterrupt
    after = judge.update(judged, before, reason)
    after.write(path)
    return judged, before, after


def from_results(path: Path) -> Baseline:
    """Read the measurements of a run of a gate."""
    if _is_baseline(path):
        return baseline.read(path)
    made = model.of(record_file.read(path))
    if not isinstance(made, CheckRecord):
        expected = "expected the results.json of 'leakaudit check' or a baseline"
        raise LeakauditError(f"{path}: {expected}, got results of '{model.kind_of(made)}'")
    cells = {}
    for cell in made.gate.cells:
        samples = {name: column.samples for name, column in cell.measures.items()}
        baseline.check_samples(cell.seeds, samples, f"{path}: {cell.name}")
        cells[cell.name] = baseline.block(cell.check, cell.digest, cell.seeds, samples)
    origin = made.provenance
    return Baseline(cells, made.summary, origin.started, origin.versions)


def _is_baseline(path: Path) -> bool:
    """Return whether a file names the format, even if it is damaged."""
    if not path.is_file():
        return False
    return f'"{baseline.FORMAT}"' in path.read_text(errors="replace")


def starter(path: Path, text: str) -> None:
    """Write a new file."""
    absent(path)
    with replacing(path) as file:
        file.write(text.encode())


def absent(path: Path) -> None:
    """Reject a file that exists."""
    if path.exists():
        raise LeakauditError(f"{path} already exists; edit it, or move it away first")


def schema(path: Path) -> bool:
    """Write the JSON schema of leakaudit.toml; return whether the file has it."""
    ours = SCHEMA.read_bytes()
    if path.exists():
        return path.read_bytes() == ours
    with replacing(path) as file:
        file.write(ours)
    return True
