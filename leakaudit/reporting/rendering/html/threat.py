"""Scope and threat model in words, from the record only."""

from __future__ import annotations

from leakaudit._util.plural import counted
from leakaudit.reporting.findings.worst_case import parsed
from leakaudit.reporting.results.model import CellEntry, CheckRecord, RunRecord

SHOWN = 8  # most adversaries and cells that are listed; a choice
ENDLESS = 2**62  # a window that ends at this round or later extends to the last round


def threat(record: RunRecord) -> list[tuple[str, str]]:
    """Describe the training, the adversaries, what they observe and know, and what was examined."""
    trace = record.trace
    settings = record.provenance.settings
    cells: tuple[CellEntry, ...] = ()
    if isinstance(record, CheckRecord):
        cells = record.gate.cells
    sizes = (
        f"{counted(trace.nodes, 'node')}, {counted(trace.edges, 'edge')}, "
        f"{counted(trace.rounds, 'round')}"
    )
    data = trace.data or "unnamed data"
    rows = [
        ("training", f"{trace.protocol}, {sizes}"),
        ("model and data", f"{trace.model} on {data}, inputs {trace.shape}"),
    ]
    rows += _adversaries(record, cells)
    rows += _window(settings.get("window"))
    knows = settings.get("knows")
    if knows is not None:
        rows.append(("knows", _knowledge(knows)))
    rows.append(("examined", _scope(record, cells)))
    return rows


def _adversaries(record: RunRecord, cells: tuple[CellEntry, ...]) -> list[tuple[str, str]]:
    found = []
    for finding in record.findings:
        found.append(finding.adversary)
    for one in record.undetermined:
        found.append(one.adversary)
    for cell in cells:
        found.append(cell.adversary)
    names = list(dict.fromkeys(found))
    if not names:
        names = [str(record.provenance.settings.get("adversary", "nobody"))]
    rows = []
    for k, who in enumerate(names[:SHOWN], 1):
        title = f"adversary {k}" if len(names) > 1 else "adversary"
        rows.append((title, f"{who}: {_observes(who)}"))
    if len(names) > SHOWN:
        rows.append(("more adversaries", f"{len(names) - SHOWN}, listed with the findings"))
    return rows


def _window(window: object) -> list[tuple[str, str]]:
    if not isinstance(window, list | tuple) or len(window) != 2:
        return []
    first, end = window
    said = f"from {first}"
    if isinstance(end, int) and end < ENDLESS:
        said += f" to {end - 1}"
    return [("rounds observed", said)]


def _knowledge(knows: object) -> str:
    if knows == "all":
        return "all constants and public tensors"
    names = knows if isinstance(knows, list | tuple) else str(knows)
    return ", ".join(map(str, names)) or "no constant"


def _scope(record: RunRecord, cells: tuple[CellEntry, ...]) -> str:
    if cells:
        return f"{counted(len(cells), 'cell')}: {', '.join(cell.name for cell in cells[:SHOWN])}"
    attacked: set[int] = set()
    for finding in record.findings:
        attacked.update(finding.nodes)
    for one in record.undetermined:
        attacked.add(one.node)
    nodes = counted(len(attacked), "node")
    found = counted(len(record.findings), "finding")
    return f"{nodes} of {record.trace.nodes}, {found}"


def _observes(who: str) -> str:
    one = parsed(who)
    if one is None:
        return "as named in the record"
    parts = []
    if one.hears == "all":
        parts.append("observes every channel, but cannot read encrypted messages")
    elif isinstance(one.hears, frozenset):
        channels = counted(len(one.hears), "channel")
        parts.append(f"observes {channels}, but cannot read encrypted messages")
    if one.corrupt:
        nodes = counted(len(one.corrupt), "node")
        parts.append(f"{nodes} of the network, analysing the messages that they exchange")
    return "; ".join(parts) or "observes nothing"
