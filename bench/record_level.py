"""How loose the computed mu of one record is, for protocols that do not release their models.

python bench/record_level.py           the table of docs/audit.md, in Markdown; about a minute

For each protocol: the largest and the mean ratio, over all nodes and adversaries, of the computed
mu to the largest mu that least squares attain with curvature between -L and L, and with curvature
between 0 and L. Both are attained values, so a ratio of 1 is exact. L is in units of one over the
step size.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean
from typing import Any

import torch

from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.protocols.declared import Protocol
from leakaudit.protocols.topology import make
from leakaudit.theory.relations import know, reached
from leakaudit.views.accounting.adversaries import Threat, around
from leakaudit.views.accounting.view_bound import ViewBound, view_bounds

torch.set_num_threads(1)
GRID = 8  # curvatures to try on either side of 0
STEP, NODES, ROUNDS = 0.2, 4, 5
SMOOTH = (0.0, 0.25, 1.0)  # step times L
ROWS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("dpsgd, order=adapt", "dpsgd", {"order": "adapt", "alpha": STEP}),
    (
        "dpsgd, order=adapt, noise=step, steps=3",
        "dpsgd",
        {"order": "adapt", "alpha": STEP, "noise": "step", "steps": 3},
    ),
    ("dpsgd, order=combine (default)", "dpsgd", {"alpha": STEP}),
    ("dpsgd, order=adapt, own=plain", "dpsgd", {"order": "adapt", "own": "plain", "alpha": STEP}),
    ("dpnorm", "dpnorm", {"mu": STEP}),
    ("dpnorm, inner=2", "dpnorm", {"mu": STEP, "inner": 2}),
    ("extra, noise=message", "extra", {"alpha": STEP, "noise": "message"}),
    ("tracking, noise=message", "tracking", {"alpha": STEP, "noise": "message"}),
    ("nids, noise=message", "nids", {"alpha": STEP, "noise": "message"}),
    ("nids", "nids", {"alpha": STEP}),
)


@dataclass(frozen=True)
class Loose:
    """Computed over attained mu of one view: for curvatures of both signs, and from 0 up."""

    both: float
    upward: float


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    graph = make("star", NODES, torch.Generator())
    print("| protocol | adversary | " + " | ".join(f"step L = {s:g}" for s in SMOOTH) + " |")
    print("|---|---|" + "---|" * len(SMOOTH))
    for says, name, constants in ROWS:
        made = Protocol(registry.get("victims", name)(sigma=0.5, **constants), graph, ROUNDS, {})
        every = around(graph, range(NODES), 1)
        for kind in ("outsider", "others"):
            threats = [one for one in every if (one.kind == "outsider") == (kind == "outsider")]
            cells = [cell(made, threats, smooth / STEP) for smooth in SMOOTH]
            print(f"| {says} | {kind} | " + " | ".join(cells) + " |", flush=True)


def cell(made: Protocol, threats: list[Threat], smoothness: float) -> str:
    """Return the mean and the largest ratio, for both signs and for curvature from 0 up."""
    found = [one for threat in threats if (one := loose(made, threat, smoothness)) is not None]
    if not found:
        return "none"
    both, upward = ([getattr(one, name) for one in found] for name in ("both", "upward"))
    return f"{fmean(both):.2f} ({max(both):.2f}); {fmean(upward):.2f} ({max(upward):.2f})"


def loose(made: Protocol, threat: Threat, smoothness: float) -> Loose | None:
    """Return how loose the mu of one view is; None if it has none."""
    found: ViewBound = next(
        view_bounds(made, threat.adversary, [threat.node], smoothness=smoothness)
    )
    if found.mu is None or not 0 < found.mu < math.inf:
        return None
    steps = range(-GRID, GRID + 1) if smoothness else range(1)
    bends = [smoothness * k / GRID for k in steps]
    values = {bend: attained(made, threat.node, threat.adversary, bend) for bend in bends}
    up = max(value for bend, value in values.items() if bend >= 0)
    return Loose(found.mu / max(values.values()), found.mu / up)


def attained(made: Protocol, node: int, adversary: Adversary, curvature: float) -> float:
    """Return the mu that least squares of this curvature attain; 0 if float64 cannot solve it."""
    view = know(made.whole, adversary)
    targets = made.whole.gradients(node)
    try:
        return reached(
            view, targets, range(len(targets)), float(Fraction(curvature).limit_denominator(1000))
        )
    except LeakauditError:
        return 0.0


if __name__ == "__main__":
    main()
