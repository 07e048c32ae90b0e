"""The progress of a training by round: the curves that papers plot."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit._util import separated
from leakaudit.core.errors import LeakauditError
from leakaudit.traces.recorder import EACH

if TYPE_CHECKING:
    from leakaudit.core.trace import Truth

# Tables and figures show these quantities first and last; norms and protocol-specific quantities
# are placed between them.
FIRST = (
    *("loss", "accuracy", "test_accuracy", "test_accuracy_mean_model", "test_error"),
    *("test_error_mean_model", "test_loss", "test_loss_mean_model", "consensus"),
)
LAST = ("seconds",)
NODE = "_node_"  # before the number of a node, at the end of the name of its curve
SHOWN = 12  # rounds of a text table, so that it fits on a screen

Run = Mapping[str, Tensor]


def kept(truth: Truth, name: str, nodes: bool = False) -> dict[str, Tensor]:
    """Return the curves stored in a truth.

    Args:
        nodes: Whether the curves of each node follow, such as ``test_accuracy_node_3``.

    Returns:
        The curves by quantity in the order of tables and figures, (rounds + 1,) float64 each, NaN
        if a round has no value.
    """
    found = {n: v.double() for n, v in truth.states.items() if v.dim() == 1}
    if not found:
        raise LeakauditError(f"{name} contains no curves; record with --curves")
    shown = {n: found[n] for n in sorted(sorted(found), key=_rank)}
    if nodes:
        for n in list(shown):
            each = truth.states.get(n + EACH)
            if each is not None and each.dim() == 2:
                shown |= {f"{n}{NODE}{k}": values for k, values in enumerate(each.double().T)}
    return shown


def names(runs: Mapping[str, Run]) -> list[str]:
    """Return the quantities that at least one run has, in the order of tables and figures."""
    every = dict.fromkeys(n for run in runs.values() for n in run)
    return sorted(every, key=_rank)


def _rank(name: str) -> int:
    """Return the rank of a quantity; all between the first and the last ones share one rank."""
    if name in FIRST:
        return FIRST.index(name)
    if NODE in name:
        return len(FIRST) + 2
    return len(FIRST) + (name in LAST)


def rounds(run: Run) -> list[int]:
    """Return the rounds in which at least one quantity is known."""
    known = set()
    for values in run.values():
        known.update(values.isfinite().nonzero().flatten().tolist())
    return sorted(known)


def to_csv(runs: Mapping[str, Run]) -> str:
    """Return a row per run and round as comma-separated values; an unknown value is empty."""
    columns = names(runs)
    rows: list[list[separated.Cell]] = []
    for label, run in runs.items():
        for t in rounds(run):
            rows.append([label, t, *(_number(run.get(n), t) for n in columns)])
    return separated.text(["run", "round", *columns], rows, end="\n")


def to_json(runs: Mapping[str, Run]) -> str:
    """Return ``{run: {"round": [...], quantity: [...]}}``; an unknown value is null."""
    tree = {}
    for label, run in runs.items():
        at = rounds(run)
        tree[label] = {"round": at, **{n: [_number(v, t) for t in at] for n, v in run.items()}}
    return json.dumps(tree, indent=2) + "\n"


def to_text(runs: Mapping[str, Run]) -> str:
    """Return one table per run, with at most `SHOWN` rounds from the first to the last."""
    parts = []
    for label, run in runs.items():
        at = rounds(run)
        some = at
        left = ""
        if len(at) > SHOWN:
            some = [at[int(k)] for k in torch.linspace(0, len(at) - 1, SHOWN).round()]
            left = f"; {len(some)} of {len(at)} rounds shown"
        table = [["round", *run]]
        for t in some:
            table.append([str(t), *(_shown(v, t) for v in run.values())])
        parts.append(f"{label}{left}\n{_aligned(table)}")
    return "\n".join(parts)


def _aligned(table: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    text = ""
    for row in table:
        text += "  ".join(map(str.rjust, row, widths)) + "\n"
    return text


def _number(values: Tensor | None, t: int) -> float | None:
    if values is None or t >= len(values):
        return None
    value = float(values[t])
    return value if math.isfinite(value) else None


def _shown(values: Tensor, t: int) -> str:
    value = _number(values, t)
    return "" if value is None else f"{value:.6g}"
