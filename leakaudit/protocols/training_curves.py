"""The progress of a training by round: the curves that papers plot."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit._util import separated
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.core.trace import Truth

# Tables and figures show these quantities first and last; norms and protocol-specific quantities
# are placed between them.
FIRST = ("loss", "accuracy", "consensus")
LAST = ("seconds",)
SHOWN = 12  # rounds of a text table, so that it fits on a screen

Run = Mapping[str, Tensor]


def kept(truth: Truth, name: str) -> dict[str, Tensor]:
    """Return the curves stored in a truth.

    Returns:
        The curves by quantity in the order of tables and figures, (rounds + 1,) float64 each, NaN
        if a round has no value.
    """
    found = {n: v.double() for n, v in truth.states.items() if v.dim() == 1}
    if not found:
        raise LeakauditError(f"{name} contains no curves; record with --curves")
    return {n: found[n] for n in sorted(sorted(found), key=_rank)}


def names(runs: Mapping[str, Run]) -> list[str]:
    """Return the quantities that at least one run has, in the order of tables and figures."""
    every = dict.fromkeys(n for run in runs.values() for n in run)
    return sorted(every, key=_rank)


def _rank(name: str) -> int:
    """Return the rank of a quantity; all between the first and the last ones share one rank."""
    if name in FIRST:
        return FIRST.index(name)
    return len(FIRST) + (name in LAST)


def rounds(run: Run) -> list[int]:
    """Return the rounds in which at least one quantity is known."""
    known = set()
    for values in run.values():
        known.update(values.isfinite().nonzero().flatten().tolist())
    return sorted(known)


def rows(runs: Mapping[str, Run]) -> list[list[str]]:
    """Return a header row, then one row per run and round; an unknown value is empty."""
    columns = names(runs)
    table = [["run", "round", *columns]]
    for label, run in runs.items():
        for t in rounds(run):
            cells = [_cell(run.get(n), t, repr) for n in columns]
            table.append([label, str(t), *cells])
    return table


def to_csv(runs: Mapping[str, Run]) -> str:
    """Return all rounds of all runs as comma-separated values."""
    text = io.StringIO()
    head, *below = rows(runs)
    shown = [[separated.inert(label), *cells] for label, *cells in below]
    csv.writer(text, lineterminator="\n").writerows([head, *shown])
    return text.getvalue()


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
            table.append([str(t), *(_cell(v, t, "{:.6g}".format) for v in run.values())])
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


def _cell(values: Tensor | None, t: int, form: Callable[[float], str]) -> str:
    value = _number(values, t)
    return "" if value is None else form(value)
