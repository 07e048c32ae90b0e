"""Reconstructions against the truth: the only room that opens a `Truth`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from leakaudit._util.assignment import Match, match, match_labels
from leakaudit.errors import LeakauditError
from leakaudit.reconstruction import Certificate, Reconstruction
from leakaudit.scoring import metrics
from leakaudit.scoring.lpips_weights import NO_WEIGHTS, Weights
from leakaudit.trace import Json, TaskSpec, Truth

NOT_SCORED = "no truth file: not scored"
METRICS = (
    "mse",
    "psnr",
    "ssim",
    "lpips",
    "relative_error",
    "exact",
    "label_correct",
    "identified",
    "rank",
)

Column = tuple[float | int | bool | None, ...]


@dataclass(frozen=True)
class Score:
    """How near one reconstruction comes to the truth.

    Every column runs over the node's true records. It is None where the metric was not measured; its entry is None
    (False for yes or no) where no reconstruction was left for that record.

    Attributes:
        node: Whose records these are.
        attack: What reconstructed them.
        matched: Rows of the reconstruction. Of a node with b records only the first b rows can be matched.
        mse: Mean squared error, and so on for psnr (dB), ssim, lpips and relative_error: see `metrics`.
        exact: Bit-identical on the data's grid.
        identified: Nearer to its own record than to every other one, by `rank`.
        chance: Greatest probability that a blind guess has of identifying a record after the same matching, see `blind_chance`.
        labels_found: Share of the true labels that are among the first b found, whatever image they were paired with.
        surplus: Reconstructions (or labels, if there are none) beyond the b that can be matched.
        missed: For each metric what the missed records score, in their order: as much as `blind_guess` does.
        note: Why something is missing.
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
    surplus: int = 0
    missed: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    note: str = ""

    @property
    def not_recovered(self) -> int:
        """Number of true records that no reconstruction was left for."""
        return self.matched.count(None)

    def counted(self, metric: str) -> list[float]:
        """Return one value of a metric for every true record, a missed one as `blind_guess` scores; empty if it was not measured."""
        measured = [float(v) for v in getattr(self, metric) or () if v is not None]
        return [*measured, *self.missed.get(metric, ())]

    def statistics(self, metric: str) -> dict[str, float | None]:
        """Return min, median and mean of `counted`; all None if no record has a reconstruction."""
        values = self.counted(metric)
        if len(values) == len(self.missed.get(metric, ())):
            return dict.fromkeys(("min", "median", "mean"))
        return {"min": min(values), "median": median(values), "mean": fmean(values)}

    def to_json(self) -> dict[str, Json] | None:
        """``scores`` of results.json: ``per_image``, min, median and mean under each metric; None where there was no truth."""
        if not self.matched:
            return None
        columns = {m: getattr(self, m) for m in METRICS}
        scores: dict[str, Json] = {}
        for name, column in columns.items():
            if column is None:
                continue
            missed = {"missed": list(self.missed[name])} if self.missed.get(name) else {}
            scores[name] = {"per_image": list(column), **missed, **self.statistics(name)}
        rest = {
            "chance": self.chance,
            "labels_found": self.labels_found,
            "not_recovered": self.not_recovered,
        }
        return {**scores, **rest, "surplus": self.surplus, "matched": list(self.matched)}


def score(
    found: Reconstruction | Iterable[Reconstruction],
    truth: Truth | None,
    weights: Weights | None = None,
) -> list[Score]:
    """Score reconstructions against the truth, each batch matched to the node's records first.

    weights: an LPIPS network, None to leave LPIPS out. Without a truth every column is None and the note says so.
    Raises LeakauditError for a node without records, or a reconstruction of another shape.
    """
    found = [found] if isinstance(found, Reconstruction) else list(found)
    if truth is None:
        return [Score(one.node, one.attack, note=NOT_SCORED) for one in found]
    records = torch.cat([truth.x, truth.pool.to(truth.x)]) if len(truth.pool) else truth.x
    return [_score(one, truth, records.cpu(), weights) for one in found]


def nothing(node: int, attack: str, truth: Truth) -> Score:
    """Score an attack on a node that gave nothing: every record is missed, and counts as `blind_guess`."""
    empty = Reconstruction(
        node, attack, truth.x.new_empty(0, *truth.task.shape), None, Certificate.FAILED, 1.0
    )
    (scored,) = score(empty, truth)
    return scored


def definitions(task: TaskSpec, lpips: str = NO_WEIGHTS) -> dict[str, str]:
    """What each metric means for this data, for the record; lpips: the sentence of `lpips_weights.find`."""
    out = {
        "mse": "mean squared error in data units",
        "relative_error": "|found - true| / |true|, Euclidean",
        "exact": f"bit-identical after rounding to k/{task.levels}"
        if task.levels
        else "not measured (the data has no grid)",
        "label_correct": "label equal, after matching",
        "identified": "nearer (Euclidean) to its own record than to every other record of the data set; chance: at most, of blind guesses",
        "matching": (
            "at the smallest sum of squared errors, of a node with b records only the first b reconstructions; a record without one "
            "counts in min, median and mean as the mean of all other records would"
        ),
        "rank": "of its own record among all records by distance, 1 is best",
    }
    if task.is_image:
        window = metrics.ssim_window(task.shape)
        settings = f"scikit-image structural_similarity, uniform window {window}, data range 1"
        out["psnr"] = f"dB, data range 1, at most {metrics.PSNR_CAP:g} (equal images)"
        out["ssim"] = settings if window else "not measured (a side is under 3 px)"
        out["lpips"] = lpips
    return out


def blind_guess(truth: Truth, node: int) -> Tensor:
    """Return what anybody could guess of a node's records, (*shape): the mean of all other records, grey if there is none."""
    others = torch.cat([truth.pool.to(truth.x), truth.x[truth.node != node]])
    return others.mean(0) if len(others) else torch.full_like(truth.x[0], 0.5)


def blind_chance(guesses: int, candidates: Tensor, total: int) -> float:
    """Return the greatest chance of a blind guess to identify a record, averaged over the records of a node.

    The records of a node are b of the data set's N, any b of them equally likely to a guesser who saw no leak. A guess identifies a
    record only if that record is the nearest of all N to it, so k guesses have k such records at most, and each of these is
    the node's with chance b / N. Whichever guesses are made and however they are matched, k b / N records are identified on average
    at most, k / N of the node's b. Distinct records of the data set as guesses reach that, but for matches that leave a record that
    was guessed right to another guess. Records that are equal to m - 1 others count m times, since each stands for all of them.

    Args:
        guesses: k, reconstructions that can be matched.
        candidates: (b,) For each record the number of different ones among the N, itself counted once: N - m + 1.
        total: N.

    Returns:
        k max(m) / N, at most 1.
    """
    equal = total - int(candidates.min()) + 1
    return min(1.0, guesses * equal / total)


def _score(found: Reconstruction, truth: Truth, records: Tensor, weights: Weights | None) -> Score:
    """Match one reconstruction to its node's records and measure every pair."""
    x, y = (t.cpu() for t in truth.of(found.node))
    size = len(x)
    if not size:
        raise LeakauditError(
            f"the truth has no records of node {found.node}; it has nodes {sorted(set(truth.node.tolist()))}"
        )
    guess = found.x.detach().cpu()
    label = None if found.y is None else found.y.detach().cpu()
    pairs = match(guess, x)
    columns = _measure(guess[pairs.found], x[pairs.true], truth.task, weights)
    _identify(columns, guess[pairs.found], x[pairs.true], records)
    missed = _missed(found.node, pairs, truth, records, weights) if pairs.missing else {}
    if label is not None and len(label) == len(guess):
        columns["label_correct"] = metrics.labels_correct(label[pairs.found], y[pairs.true])
    _, candidates = metrics.identification(x, x, records)
    known = int(candidates.min()) > 1
    surplus = max(0, len(guess if len(guess) else label if label is not None else guess) - size)
    return Score(
        node=found.node,
        attack=found.attack,
        matched=_spread(pairs.found, pairs, size),
        **{name: _spread(values, pairs, size) for name, values in columns.items()},
        chance=blind_chance(len(pairs.found), candidates, len(records))
        if known and len(pairs.found)
        else None,
        labels_found=None if label is None else _share(label[:size], y),
        surplus=surplus,
        missed={name: values for name, values in missed.items() if name in columns},
        note=remark(pairs.missing, surplus, size),
    )


def _identify(columns: dict[str, Tensor], x: Tensor, y: Tensor, records: Tensor) -> None:
    """Add the rank of every pair, and whether it is identified, if there is another record to tell it from."""
    rank, candidates = metrics.identification(x, y, records)
    if len(candidates) and int(candidates.min()) > 1:
        columns |= {"rank": rank, "identified": rank == 1}


def _missed(
    node: int, pairs: Match, truth: Truth, records: Tensor, weights: Weights | None
) -> dict[str, tuple[float, ...]]:
    """Return what the blind guess scores on the records that were missed, for the metrics that are numbers."""
    x, _ = truth.of(node)
    lost = torch.ones(len(x), dtype=torch.bool)
    lost[pairs.true] = False
    true = x.cpu()[lost]
    guess = blind_guess(truth, node).cpu().expand_as(true)
    columns = _measure(guess, true, truth.task, weights)
    _identify(columns, guess, true, records)
    return {
        name: tuple(map(float, values.tolist()))
        for name, values in columns.items()
        if values.dtype is not torch.bool
    }


def remark(missing: int, surplus: int, size: int) -> str:
    """Say that a reconstruction does not have as many records as the node.

    Args:
        missing: Number of true records without a reconstruction.
        surplus: Number of reconstructions beyond the true records.
        size: Number of true records.

    Returns:
        The note of a `Score`, "" if the numbers agree.
    """
    said = []
    if missing:
        said.append(f"{missing} of {size} records not recovered")
    if surplus:
        said.append(
            f"{surplus} more than the {size} records were handed in, only the first {size} count"
        )
    return "; ".join(said)


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
        out["lpips"] = (
            None if weights is None else metrics.lpips_distance(x, y, weights, data_range=1.0)
        )
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
