"""Chart of training curves: one panel per quantity, one line per run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from leakaudit.core.errors import LeakauditError
from leakaudit.protocols.training_curves import Run, names
from leakaudit.reporting.figures import curves, plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = 2  # panels in a row
WIDE = 115.0  # mm, width of a panel; a run has more rounds than an audit has points
LABEL = 58  # most characters of a run's name; the end of the name distinguishes runs


def chart(runs: Mapping[str, Run]) -> Figure:
    """Draw several runs in one panel per quantity, with two panels side by side.

    A panel is logarithmic if its values span several powers of ten; zeros and values that are not
    finite leave a gap.
    """
    if len(runs) > len(plots.COLOURS):
        raise LeakauditError(
            f"curves: expected at most {len(plots.COLOURS)} runs in one figure, "
            f"got {len(runs)}; draw several figures"
        )
    panels = [_panel(runs, name) for name in names(runs)]
    across = min(ACROSS, len(panels))
    rows = []
    for start in range(0, len(panels), across):
        rows.append(("", panels[start : start + across]))
    legend = {label: _shortened(label) for label in runs}
    return curves.on_screen(curves.CurveFigure(rows, legend, {}), WIDE)


def title(name: str) -> str:
    """Return the title for a quantity."""
    known = {"consensus": "consensus error", "seconds": "seconds per round"}
    return known.get(name, name.replace("norm_", "norm of ").replace("_", " "))


def _panel(runs: Mapping[str, Run], name: str) -> plots.Panel:
    lines = []
    for label, run in runs.items():
        if name in run:
            lines.append(plots.PlotLine(label, "run", run[name].tolist()))
    return plots.Panel(title(name), tuple(lines), "round", log=None, empty="no finite value")


def _shortened(label: str) -> str:
    if len(label) <= LABEL:
        return label
    return f"…{label[1 - LABEL :]}"
