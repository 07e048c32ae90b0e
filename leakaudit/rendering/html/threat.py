"""Scope and threat model in words, from the record alone."""

from __future__ import annotations

from collections.abc import Mapping

from leakaudit.rendering.html.topology import parsed
from leakaudit.trace import Json


def threat(results: Mapping[str, Json]) -> list[tuple[str, str]]:
    """Return what was trained, who listens, what is heard and known, and what was looked at."""
    trace, settings = results["trace"], results["provenance"]["settings"]
    cells = (results.get("gate") or {}).get("cells", ())
    found = (*results["findings"], *results["undetermined"], *cells)
    names = list(dict.fromkeys(f["adversary"] for f in found)) or [
        str(settings.get("adversary", "nobody"))
    ]
    rows = [
        (
            "training",
            f"{trace['protocol']}, {_count(trace['nodes'], 'node')}, {_count(trace['edges'], 'wire')}, {_count(trace['rounds'], 'round')}",
        ),
        (
            "model and data",
            f"{trace['model']} on {trace['data'] or 'data that are not named'}, inputs {tuple(trace['shape'])}",
        ),
    ]
    rows += [
        (f"adversary {k + 1}" if len(names) > 1 else "adversary", f"{who}: {_hears(who)}")
        for k, who in enumerate(names[:8])
    ]
    if len(names) > 8:
        rows.append(("more adversaries", f"{len(names) - 8}, see the findings"))
    window = settings.get("window")
    if isinstance(window, list) and len(window) == 2:
        rows.append(
            (
                "rounds heard",
                f"from {window[0]}"
                + (
                    f" to before {window[1]}"
                    if isinstance(window[1], int) and window[1] < 2**62
                    else ""
                ),
            )
        )
    knows = settings.get("knows")
    if knows is not None:
        rows.append(
            (
                "knows",
                "all constants and public tensors"
                if knows == "all"
                else ", ".join(map(str, knows)) or "no constant",
            )
        )
    nodes = len({f["node"] for f in found if "node" in f})
    cut = f"{_count(nodes, 'node')} of {trace['nodes']}, {_count(len(results['findings']), 'finding')}"
    rows.append(
        (
            "looked at",
            f"{_count(len(cells), 'cell')}: {', '.join(c['name'] for c in cells[:8])}"
            if cells
            else cut,
        )
    )
    return rows


def _hears(who: str) -> str:
    """Say what an adversary hears; wires that are encrypted stay closed to a tap."""
    one = parsed(who)
    if one is None:
        return "as named in the record"
    parts = []
    if one.hears == "all":
        parts.append("hears every wire, without what is sent under encryption")
    elif isinstance(one.hears, frozenset):
        parts.append(
            f"hears {_count(len(one.hears), 'directed wire')}, without what is sent under encryption"
        )
    if one.corrupt:
        parts.append(
            f"is {_count(len(one.corrupt), 'node')} of the network and follows the protocol, reading its own traffic"
        )
    return "; ".join(parts) or "hears nothing"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)
