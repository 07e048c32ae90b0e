"""Reconstructions against the truth: the only room that opens a `Truth`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from leakaudit import metrics
from leakaudit.errors import LeakauditError
from leakaudit.lpips_weights import NO_WEIGHTS, Weights
from leakaudit.match import Match, match, match_labels
from leakaudit.reconstruction import Reconstruction
from leakaudit.trace import Json, TaskSpec, Trace, Truth

NOT_SCORED = "no truth file: not scored"
METRICS = ("mse", "psnr", "ssim", "lpips", "relative_error", "exact", "label_correct", "identified", "rank")

Column = tuple[float | int | bool | None, ...]


@dataclass(frozen=True)
class Score:
    """How near one reconstruction comes to the truth.

    Every column runs over the node's true records. It is None where the metric was not measured; its entry is None
    (False for yes or no) where no reconstruction was left for that record.
    matched: rows of the reconstruction. mse, psnr (dB), ssim, lpips, relative_error: see `metrics`. exact: bit-identical on
    the data's grid. identified: nearer to its own record than to every other one, by `rank`; chance: of guessing that.
    labels_found: share of the true labels that were found, whatever image they were paired with. note: why something is missing.
    """

    node: int
    attack: str
    matched: tuple[int | None, ...] = ()
    mse: Column | None = None
    psnr: Column | None = None
    ssim: Column | None = None
    lpips: Column | None = None
    relative_error: Column | None = None
    exact: Column | None = None
    label_correct: Column | None = None
    identified: Column | None = None
    rank: Column | None = None
    chance: float | None = None
    labels_found: float | None = None
    note: str = ""

    @property
    def not_recovered(self) -> int:
        """Number of true records that no reconstruction was left for."""
        return self.matched.count(None)

    def statistics(self, metric: str) -> dict[str, float | None]:
        """min, median and mean of one column, over the records that have a value; all None where none has."""
        values = [float(v) for v in getattr(self, metric) or () if v is not None]
        return {"min": min(values), "median": median(values), "mean": fmean(values)} if values else dict.fromkeys(("min", "median", "mean"))

    def to_json(self) -> dict[str, Json] | None:
        """``scores`` of results.json: ``per_image``, min, median and mean under each metric; None where there was no truth."""
        if not self.matched:
            return None
        columns = {m: getattr(self, m) for m in METRICS}
        scores = {m: {"per_image": list(c), **self.statistics(m)} for m, c in columns.items() if c is not None}
        rest = {"chance": self.chance, "labels_found": self.labels_found, "not_recovered": self.not_recovered}
        return {**scores, **rest, "matched": list(self.matched)}


def score(found: Reconstruction | Iterable[Reconstruction], truth: Truth | None, weights: Weights | None = None) -> list[Score]:
    """Score reconstructions against the truth, each batch matched to the node's records first.

    weights: an LPIPS network, None to leave LPIPS out. Without a truth every column is None and the note says so.
    Raises LeakauditError for a node without records, or a reconstruction of another shape.
    """
    found = [found] if isinstance(found, Reconstruction) else list(found)
    if truth is None:
        return [Score(one.node, one.attack, note=NOT_SCORED) for one in found]
    records = torch.cat([truth.x, truth.pool.to(truth.x)]) if len(truth.pool) else truth.x
    return [_score(one, truth, records.cpu(), weights) for one in found]


def same_run(trace: Trace, truth: Truth) -> None:
    """Raise LeakauditError where the truth belongs to another recording than the trace."""
    if trace.id != truth.id:
        raise LeakauditError(
            f"expected the truth of recording {trace.id!r}, got that of {truth.id!r}; name the right file with --truth, or --truth none"
        )


def definitions(task: TaskSpec, lpips: str = NO_WEIGHTS) -> dict[str, str]:
    """What each metric means for this data, for the record; lpips: the sentence of `lpips_weights.find`."""
    out = {
        "mse": "mean squared error in data units",
        "relative_error": "|found - true| / |true|, Euclidean",
        "exact": f"bit-identical after rounding to k/{task.levels}" if task.levels else "not measured (the data has no grid)",
        "label_correct": "label equal, after matching",
        "identified": "nearer (Euclidean) to its own record than to every other record of the data set",
        "rank": "of its own record among all records by distance, 1 is best",
    }
    if task.is_image:
        window = metrics.ssim_window(task.shape)
        settings = f"scikit-image structural_similarity, uniform window {window}, data range 1"
        out["psnr"] = f"dB, data range 1, at most {metrics.PSNR_CAP:g} (equal images)"
        out["ssim"] = settings if window else "not measured (a side is under 3 px)"
        out["lpips"] = lpips
    return out


def _score(found: Reconstruction, truth: Truth, records: Tensor, weights: Weights | None) -> Score:
    """Match one reconstruction to its node's records and measure every pair."""
    x, y = (t.cpu() for t in truth.of(found.node))
    if not len(x):
        raise LeakauditError(f"the truth has no records of node {found.node}; it has nodes {sorted(set(truth.node.tolist()))}")
    guess = found.x.detach().cpu()
    label = None if found.y is None else found.y.detach().cpu()
    pairs = match(guess, x)
    columns = _measure(guess[pairs.found], x[pairs.true], truth.task, weights)
    rank, candidates = metrics.identification(guess[pairs.found], x[pairs.true], records)
    known = int(candidates.min()) > 1 if len(candidates) else False
    if known:
        columns |= {"rank": rank, "identified": rank == 1}
    if label is not None and len(label) == len(guess):
        columns["label_correct"] = metrics.labels_correct(label[pairs.found], y[pairs.true])
    return Score(
        node=found.node,
        attack=found.attack,
        matched=_spread(pairs.found, pairs, len(x)),
        **{name: _spread(values, pairs, len(x)) for name, values in columns.items()},
        chance=1 / int(candidates.min()) if known else None,
        labels_found=None if label is None else _share(label, y),
        note=f"{pairs.missing} of {len(x)} records not recovered" if pairs.missing else "",
    )


def _measure(x: Tensor, y: Tensor, task: TaskSpec, weights: Weights | None) -> dict[str, Tensor]:
    """Every metric that fits the data, one value a pair."""
    out: dict[str, Tensor | None] = {
        "mse": metrics.mse(x, y),
        "relative_error": metrics.relative_error(x, y),
        "exact": metrics.exact(x, y, levels=task.levels),
    }
    if task.is_image:
        out["psnr"] = metrics.psnr(x, y, data_range=1.0)
        out["ssim"] = metrics.ssim(x, y, data_range=1.0)
        out["lpips"] = None if weights is None else metrics.lpips_distance(x, y, weights, data_range=1.0)
    return {name: values for name, values in out.items() if values is not None}


def _share(found: Tensor, true: Tensor) -> float:
    """Share of the true labels that are among those found."""
    pairs = match_labels(found, true)
    return float(metrics.labels_correct(found[pairs.found], true[pairs.true]).sum()) / len(true)


def _spread(values: Tensor, pairs: Match, size: int) -> tuple[Any, ...]:
    """One entry a true record from one a pair; records without a partner get None, False for yes or no."""
    out: list[Any] = [False if values.dtype is torch.bool else None] * size
    for row, value in zip(pairs.true.tolist(), values.tolist(), strict=True):
        out[row] = value
    return tuple(out)
