"""How a training goes, round by round: the curves that the papers draw."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem
    from leakaudit.trace import Truth
    from leakaudit.traces.recorder import Recorder

FIRST, LAST = (
    ("loss", "accuracy", "consensus"),
    ("seconds",),
)  # in tables and figures; norms and the protocol's own stand between
SHOWN = 12  # rounds of a text table

Run = Mapping[str, Tensor]


class Curves:
    """Observes a run for its recorder, where that one was asked to keep curves; else it costs nothing."""

    def __init__(self, recorder: Recorder, problem: Problem) -> None:
        self.recorder, self.problem, self.started = recorder, problem, time.perf_counter()

    def observe(self, round: int, w: Tensor, **vectors: Tensor) -> None:
        """Keep loss and accuracy of the mean model on all nodes' data, the consensus error, and norms.

        w: (N, d). consensus: root mean square over nodes of |w_i - mean|. norm_w, and norm_NAME of each vector given, (N, d) or
        (N, k, d): root mean square over nodes of the Euclidean norm. seconds: since the last call.
        """
        if not self.recorder.keep_curves:
            return
        task, mean, passed = self.problem.task, w.mean(0), time.perf_counter() - self.started
        x, y = self.problem.x.flatten(0, 1), self.problem.y.flatten(0, 1)
        keep = self.recorder.curve
        keep("loss", round, float(task.loss(mean, x, y)))
        if task.spec.loss != "squared":
            keep("accuracy", round, task.accuracy(mean, x, y))
        keep("consensus", round, float((w - mean).norm(dim=1).square().mean().sqrt()))
        for name, value in {"w": w, **vectors}.items():
            keep(f"norm_{name}", round, float(value.flatten(1).norm(dim=1).square().mean().sqrt()))
        keep("seconds", round, passed)
        self.started = time.perf_counter()


def kept(truth: Truth, name: str) -> dict[str, Tensor]:
    """Return a truth's curves, (rounds + 1,) float64 each, NaN where a round has none; raises LeakauditError where it holds none.

    name: of the truth, for the error.
    """
    found = {n: v.double() for n, v in truth.states.items() if v.dim() == 1}
    if not found:
        raise LeakauditError(f"{name} holds no curves; record with --curves")
    rank = {
        n: k
        for k, n in enumerate(
            (*FIRST, *sorted(n for n in found if n not in (*FIRST, *LAST)), *LAST)
        )
    }
    return {n: found[n] for n in sorted(found, key=lambda n: rank[n])}


def names(runs: Mapping[str, Run]) -> list[str]:
    """Return the quantities that some run has, in the order of tables and figures."""
    every = dict.fromkeys(n for run in runs.values() for n in run)
    return sorted(every, key=lambda n: FIRST.index(n) if n in FIRST else len(FIRST) + (n in LAST))


def rounds(run: Run) -> list[int]:
    """Return the rounds in which at least one quantity is known."""
    width = max(len(v) for v in run.values())
    return [
        t for t in range(width) if any(t < len(v) and bool(v[t].isfinite()) for v in run.values())
    ]


def rows(runs: Mapping[str, Run]) -> list[list[str]]:
    """Return one row a run and round, under a heading; an unknown value is empty."""
    columns = names(runs)
    table = [["run", "round", *columns]]
    for label, run in runs.items():
        table += [
            [label, str(t), *(_cell(run.get(n), t, repr) for n in columns)] for t in rounds(run)
        ]
    return table


def to_csv(runs: Mapping[str, Run]) -> str:
    """Return all rounds of all runs as comma-separated values."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows(runs))
    return text.getvalue()


def to_json(runs: Mapping[str, Run]) -> str:
    """Return ``{run: {"round": [...], quantity: [...]}}``; an unknown value is null."""
    tree = {}
    for label, run in runs.items():
        at = rounds(run)
        tree[label] = {"round": at, **{n: [_number(v, t) for t in at] for n, v in run.items()}}
    return json.dumps(tree, indent=2) + "\n"


def to_text(runs: Mapping[str, Run]) -> str:
    """Return a table a run, of at most `SHOWN` rounds: the first, the last, and equally many between."""
    parts = []
    for label, run in runs.items():
        at = rounds(run)
        some = (
            at
            if len(at) <= SHOWN
            else [at[int(k)] for k in torch.linspace(0, len(at) - 1, SHOWN).round()]
        )
        table = [
            ["round", *run],
            *([str(t), *(_cell(v, t, "{:.6g}".format) for v in run.values())] for t in some),
        ]
        left = f"; {len(some)} of {len(at)} rounds shown" if len(some) < len(at) else ""
        parts.append(f"{label}{left}\n{_aligned(table)}")
    return "\n".join(parts)


def _aligned(table: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "".join(
        "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) + "\n"
        for row in table
    )


def _number(values: Tensor | None, t: int) -> float | None:
    """A value that is known; also one that is infinite is not a number of JSON."""
    value = float(values[t]) if values is not None and t < len(values) else float("nan")
    return value if abs(value) < float("inf") else None


def _cell(values: Tensor | None, t: int, form: object) -> str:
    value = _number(values, t)
    return "" if value is None else form(value)  # type: ignore[operator]
