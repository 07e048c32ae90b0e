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

    Every column runs over the node's true records. It is None if the metric was not measured. Its
    entry is None (False for yes or no) if no reconstruction was left for that record.

    Attributes:
        node: Whose records these are.
        attack: What reconstructed them.
        matched: Rows of the reconstruction. Of a node with b records only the first b rows can be
            matched.
        mse: Mean squared error; see `metrics` for this and the next four.
        psnr: Peak signal-to-noise ratio in dB.
        ssim: Structural similarity.
        lpips: Perceptual distance.
        relative_error: Euclidean error over the length of the record.
        exact: Whether it is bit-identical on the data's grid.
        label_correct: Whether the label is right.
        identified: Whether it is nearer to its own record than to every other one, by `rank`.
        rank: Of its own record among all records by distance, 1 is best.
        chance: Greatest probability that a blind guess has of identifying a record after the same
            matching, see `blind_chance`.
        labels_found: Share of the true labels that are among the first b found, whatever image they
            were paired with.
        surplus: Reconstructions (or labels, if there are none) beyond the b that can be matched.
        missed: For each metric what the missed records score, in their order: as much as
            `blind_guess` does.
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
        """Return one value of a metric for every true record.

        Args:
            metric: One of `METRICS`.

        Returns:
            The measured values, then what `blind_guess` scores on each missed record. Empty if the
            metric was not measured.
        """
        column = getattr(self, metric) or ()
        measured = [float(value) for value in column if value is not None]
        return [*measured, *self.missed.get(metric, ())]

    def statistics(self, metric: str) -> dict[str, float | None]:
        """Summarise `counted`.

        Args:
            metric: One of `METRICS`.

        Returns:
            Min, median and mean; all None if no record has a reconstruction.
        """
        values = self.counted(metric)
        if len(values) == len(self.missed.get(metric, ())):
            return dict.fromkeys(("min", "median", "mean"))
        return {"min": min(values), "median": median(values), "mean": fmean(values)}

    def to_json(self) -> dict[str, Json] | None:
        """Return ``scores`` of results.json.

        Returns:
            ``per_image``, min, median and mean under each metric, and what concerns all of them.
            None if there was no truth.
        """
        if not self.matched:
            return None
        scores: dict[str, Json] = {}
        for name in METRICS:
            column = getattr(self, name)
            if column is None:
                continue
            entry: dict[str, Json] = {"per_image": list(column)}
            if self.missed.get(name):
                entry["missed"] = list(self.missed[name])
            entry |= self.statistics(name)
            scores[name] = entry
        scores["chance"] = self.chance
        scores["labels_found"] = self.labels_found
        scores["not_recovered"] = self.not_recovered
        scores["surplus"] = self.surplus
        scores["matched"] = list(self.matched)
        return scores


def score(
    found: Reconstruction | Iterable[Reconstruction],
    truth: Truth | None,
    weights: Weights | None = None,
) -> list[Score]:
    """Score reconstructions against the truth, each batch matched to the node's records first.

    Args:
        found: One reconstruction or several.
        truth: What to compare with. None leaves every column None, and the note tells so.
        weights: An LPIPS network, None to leave LPIPS out.

    Returns:
        One score for each reconstruction, in their order.

    Raises:
        LeakauditError: A node has no records in the truth, or a reconstruction has another shape.
    """
    if isinstance(found, Reconstruction):
        found = [found]
    if truth is None:
        return [Score(one.node, one.attack, note=NOT_SCORED) for one in found]
    records = truth.x
    if len(truth.pool):
        records = torch.cat([truth.x, truth.pool.to(truth.x)])
    records = records.cpu()
    return [_score(one, truth, records, weights) for one in found]


def nothing(node: int, attack: str, truth: Truth) -> Score:
    """Score an attack on a node that gave nothing.

    Args:
        node: Whose records were attacked.
        attack: What was tried.
        truth: What to compare with.

    Returns:
        A score in which every record is missed, and counts as `blind_guess`.
    """
    no_rows = truth.x.new_empty(0, *truth.task.shape)
    empty = Reconstruction(node, attack, no_rows, None, Certificate.FAILED, 1.0)
    (scored,) = score(empty, truth)
    return scored


_IDENTIFIED = (
    "nearer (Euclidean) to its own record than to every other record of the data set; "
    "chance: at most, of blind guesses"
)
_MATCHING = (
    "at the smallest sum of squared errors, of a node with b records only the first b "
    "reconstructions; a record without one counts in min, median and mean as the mean of all other "
    "records would"
)


def definitions(task: TaskSpec, lpips: str = NO_WEIGHTS) -> dict[str, str]:
    """Describe what each metric means for this data, for the record.

    Args:
        task: Of the trace.
        lpips: The sentence of `lpips_weights.find`.

    Returns:
        A sentence for each metric, by its name, and one for the matching.
    """
    exact = "not measured (the data has no grid)"
    if task.levels:
        exact = f"bit-identical after rounding to k/{task.levels}"
    out = {
        "mse": "mean squared error in data units",
        "relative_error": "|found - true| / |true|, Euclidean",
        "exact": exact,
        "label_correct": "label equal, after matching",
        "identified": _IDENTIFIED,
        "matching": _MATCHING,
        "rank": "of its own record among all records by distance, 1 is best",
    }
    if task.is_image:
        window = metrics.ssim_window(task.shape)
        ssim = "not measured (a side is under 3 px)"
        if window:
            ssim = f"scikit-image structural_similarity, uniform window {window}, data range 1"
        out["psnr"] = f"dB, data range 1, at most {metrics.PSNR_CAP:g} (equal images)"
        out["ssim"] = ssim
        out["lpips"] = lpips
    return out


def blind_guess(truth: Truth, node: int) -> Tensor:
    """Return what anybody could guess of a node's records without a leak.

    Args:
        truth: The records of all nodes, and the pool.
        node: Whose records are guessed.

    Returns:
        (*shape): the mean of all other records, grey if there is none.
    """
    others = torch.cat([truth.pool.to(truth.x), truth.x[truth.node != node]])
    if not len(others):
        return torch.full_like(truth.x[0], 0.5)
    return others.mean(0)


def blind_chance(guesses: int, candidates: Tensor, total: int) -> float:
    """Bound the chance of a blind guess to identify a record, averaged over the records of a node.

    The records of a node are b of the data set's N, any b of them equally likely to a guesser who
    saw no leak. A guess identifies a record only if that record is the nearest of all N to it, so k
    guesses have k such records at most, and each of these is the node's with chance b / N.
    Whichever guesses are made and however they are matched, k b / N records are identified on
    average at most, which is k / N of the node's b. Distinct records of the data set as guesses
    reach that, but for matches that leave a record that was guessed right to another guess. Records
    that are equal to m - 1 others count m times, since each stands for all of them.

    Args:
        guesses: k, reconstructions that can be matched.
        candidates: (b,) For each record the number of different ones among the N, itself counted
            once: N - m + 1.
        total: N.

    Returns:
        k max(m) / N, at most 1.
    """
    equal = total - int(candidates.min()) + 1
    return min(1.0, guesses * equal / total)


def _score(found: Reconstruction, truth: Truth, records: Tensor, weights: Weights | None) -> Score:
    """Match one reconstruction to its node's records and measure every pair."""
    x, y = truth.of(found.node)
    x = x.cpu()
    y = y.cpu()
    size = len(x)
    if not size:
        nodes = sorted(set(truth.node.tolist()))
        raise LeakauditError(f"the truth has no records of node {found.node}; it has nodes {nodes}")
    guess = found.x.detach().cpu()
    pairs = match(guess, x)
    guessed = guess[pairs.found]
    true = x[pairs.true]
    columns = _measure(guessed, true, truth.task, weights)
    _identify(columns, guessed, true, records)
    missed: dict[str, tuple[float, ...]] = {}
    if pairs.missing:
        missed = _missed(found.node, pairs, truth, records, weights)
    handed_in = len(guess)
    labels_found = None
    if found.y is not None:
        label = found.y.detach().cpu()
        if len(label) == len(guess):
            columns["label_correct"] = metrics.labels_correct(label[pairs.found], y[pairs.true])
        if not len(guess):
            handed_in = len(label)
        labels_found = _share(label[:size], y)
    surplus = max(0, handed_in - size)
    _, candidates = metrics.identification(x, x, records)
    chance = None
    if int(candidates.min()) > 1 and len(pairs.found):
        chance = blind_chance(len(pairs.found), candidates, len(records))
    return Score(
        node=found.node,
        attack=found.attack,
        matched=_spread(pairs.found, pairs, size),
        **{name: _spread(values, pairs, size) for name, values in columns.items()},
        chance=chance,
        labels_found=labels_found,
        surplus=surplus,
        missed={name: values for name, values in missed.items() if name in columns},
        note=remark(pairs.missing, surplus, size),
    )


def _identify(columns: dict[str, Tensor], x: Tensor, y: Tensor, records: Tensor) -> None:
    """Add the rank of every pair, and whether it is identified.

    Nothing is added if there is no other record to tell it from.
    """
    rank, candidates = metrics.identification(x, y, records)
    if len(candidates) and int(candidates.min()) > 1:
        columns["rank"] = rank
        columns["identified"] = rank == 1


def _missed(
    node: int, pairs: Match, truth: Truth, records: Tensor, weights: Weights | None
) -> dict[str, tuple[float, ...]]:
    """What the blind guess scores on the missed records, for the metrics that are numbers."""
    x, _ = truth.of(node)
    lost = torch.ones(len(x), dtype=torch.bool)
    lost[pairs.true] = False
    true = x.cpu()[lost]
    guess = blind_guess(truth, node).cpu().expand_as(true)
    columns = _measure(guess, true, truth.task, weights)
    _identify(columns, guess, true, records)
    numbers: dict[str, tuple[float, ...]] = {}
    for name, values in columns.items():
        if values.dtype is not torch.bool:
            numbers[name] = tuple(map(float, values.tolist()))
    return numbers


def remark(missing: int, surplus: int, size: int) -> str:
    """Tell that a reconstruction does not have as many records as the node.

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
        if weights is not None:
            out["lpips"] = metrics.lpips_distance(x, y, weights, data_range=1.0)
    return {name: values for name, values in out.items() if values is not None}


def _share(found: Tensor, true: Tensor) -> float:
    """Share of the true labels that are among those found."""
    pairs = match_labels(found, true)
    correct = metrics.labels_correct(found[pairs.found], true[pairs.true])
    return float(correct.sum()) / len(true)


def _spread(values: Tensor, pairs: Match, size: int) -> tuple[Any, ...]:
    """Spread one value a pair over the true records, None (False for yes or no) for the others."""
    absent = False if values.dtype is torch.bool else None
    out: list[Any] = [absent] * size
    for row, value in zip(pairs.true.tolist(), values.tolist(), strict=True):
        out[row] = value
    return tuple(out)
