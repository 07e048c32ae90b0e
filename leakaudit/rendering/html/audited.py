"""An audit on the page: its verdicts by word, and the claimed epsilon beside the exact one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakaudit.results import grading
from leakaudit.results.wording import said_of
from leakaudit.trace import Json
from leakaudit.verdict import Verdict

FEW = 12  # verdicts that are all shown


def verdicts(results: Mapping[str, Json]) -> list[dict[str, Any]]:
    """Return the verdicts of an audit by word, the gravest first; few or grave ones are open."""
    every, out = (results.get("audit") or {}).get("verdicts", ()), []
    for name, level in grading.VERDICTS.items():
        rows = [
            {**v, "word": Verdict[name].words, "at": said_of(v), "counted": _counted(v["figures"])}
            for v in every
            if v["verdict"] == name
        ]
        if rows:
            is_open = level == "error" or len(every) <= FEW
            out.append(
                {
                    "word": Verdict[name].words,
                    "meant": Verdict[name].value,
                    "level": level,
                    "open": is_open,
                    "rows": rows,
                }
            )
    return out


def views(results: Mapping[str, Json]) -> list[dict[str, Any]]:
    """Return what theory says of every view of an audit: the epsilon of one record beside the claimed one."""
    out = []
    for point in (results.get("audit") or {}).get("grid", ()):
        for view in point["views"]:
            claim = view.get("claim") or {}
            exact = view["exact"] if view.get("exact") is not None else view.get("epsilon")
            row = {
                "at": said_of(point),
                "node": view.get("node"),
                "adversary": view.get("adversary"),
                "claim": claim.get("source"),
            }
            verdict = Verdict[view["verdict"]].words if view.get("verdict") else "-"
            out.append(
                {
                    **row,
                    "claimed": claim.get("epsilon"),
                    "exact": exact,
                    "mu": view.get("mu"),
                    "verdict": verdict,
                    "why": view.get("why"),
                }
            )
    return out


def _counted(figures: Mapping[str, Json]) -> str:
    return ", ".join(
        f"{k.replace('_', ' ')} {v:.4g}" if isinstance(v, float) else f"{k.replace('_', ' ')} {v}"
        for k, v in figures.items()
    )
