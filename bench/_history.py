"""Keep the results of `make bench` over time in bench/history.json, and plot them.

python bench/_history.py FILE
    append FILE, as bench/_all.py -o writes it, under the commit of the checkout, and list the
    figures that became worse by more than a quarter since the last run on such a machine: the same
    number and model of processors, and the same versions of Python and torch

`make bench` lists these figures as well. The page docs/benchmark-history.md shows the plots.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leakaudit.reporting.figures.curves import CurveFigure, on_screen
from leakaudit.reporting.figures.plots import Panel, PlotLine, svg

PROJECT = Path(__file__).resolve().parent.parent
HISTORY = PROJECT / "bench" / "history.json"
WORSE = 1.25  # factor between two runs that is named; a choice above the usual spread
ACROSS = 2  # panels side by side
WIDE = 80.0  # mm per panel
LEGEND = {"measured": "measured", "target": "target"}
SAME = ("machine", "python", "torch")  # runs that differ in one of them are not compared


def read() -> list[dict[str, Any]]:
    """Return the runs, the oldest first; none if there is no file."""
    if not HISTORY.exists():
        return []
    runs: list[dict[str, Any]] = json.loads(HISTORY.read_text(encoding="utf-8"))
    return runs


def entry(result: dict[str, Any], commit: str) -> dict[str, Any]:
    """Return the run to store: commit, time, machine, and the figures with unit and target."""
    figures = {}
    for row in result["rows"]:
        if row["ratio"] is not None:
            kept = ("ratio", "unit", "target", "side")
            figures[row["name"]] = {key: row[key] for key in kept}
    about = result["machine"]
    return {
        "commit": commit,
        "started": about["started"],
        "machine": f"{about['cores']} processors, {about['model']}",
        "python": about["python"],
        "torch": about["torch"],
        "load": about["load"],
        "figures": figures,
    }


def worse(new: dict[str, Any], runs: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the figures that are worse than in the last run on such a machine that has them.

    Yields the name of each, and how it changed.
    """
    before = last(new, runs)
    for name, now in new["figures"].items():
        was = before.get(name)
        if was is None or not was["ratio"] or not now["ratio"]:
            continue
        judged = now["target"] is not None or now["side"] == "at most"
        if not judged and not now["unit"].startswith("times faster"):
            continue  # neither direction is better
        factor = was["ratio"] / now["ratio"]
        if now["side"] == "at most":
            factor = 1 / factor
        if factor > WORSE:
            yield name, f"{was['ratio']:.3g} -> {now['ratio']:.3g} {now['unit']}"


def last(new: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last record of every figure on a machine like that of `new`, by name."""
    found: dict[str, Any] = {}
    for run in runs:
        if all(run.get(key) == new[key] for key in SAME):
            found |= run["figures"]
    return found


def pictures(runs: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield each benchmark with an SVG image: a panel per figure, over the runs."""
    names = list(dict.fromkeys(name for run in runs for name in run["figures"]))
    points = tuple(run["commit"][:7] for run in runs)
    groups: dict[str, list[Panel]] = {}
    for name in names:
        panel = _panel(name, runs, points)
        groups.setdefault(name.partition("/")[0], []).append(panel)
    for group, panels in groups.items():
        rows = [("", panels[k : k + ACROSS]) for k in range(0, len(panels), ACROSS)]
        image = svg(on_screen(CurveFigure(rows, LEGEND, {}), WIDE), f"bench-{group}")
        yield group, image[image.index("<svg") :]


def _panel(name: str, runs: list[dict[str, Any]], points: tuple[str, ...]) -> Panel:
    """Return the plot of one figure, with its target where it has one."""
    found = [run["figures"].get(name) for run in runs]
    known = [one for one in found if one is not None]
    unit = known[-1]["unit"].partition(";")[0]  # what follows differs from run to run
    lines = [PlotLine("measured", "run", [one and one["ratio"] for one in found])]
    if known[-1]["target"] is not None:
        lines.append(PlotLine("target", "ceiling", [one and one["target"] for one in found]))
    title = name.partition("/")[2] or name
    return Panel(f"{title} ({unit})" if unit else title, tuple(lines), points=points, low=0.0)


def main() -> int:
    """Append a result and name what became worse."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="result of bench/_all.py -o")
    parser.add_argument("--commit", help="commit that was measured (default: that of the checkout)")
    asked = parser.parse_args()
    commit = asked.commit or subprocess.check_output(
        ["git", "rev-parse", "HEAD"], cwd=PROJECT, text=True
    )
    runs = read()
    new = entry(json.loads(asked.file.read_text(encoding="utf-8")), commit.strip()[:12])
    slower = dict(worse(new, runs))
    HISTORY.write_text(json.dumps([*runs, new], indent=1) + "\n", encoding="utf-8")
    print(f"{HISTORY.name}: {len(runs) + 1} runs, {len(new['figures'])} figures")
    for name, says in slower.items():
        print(f"worse: {name}: {says}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
