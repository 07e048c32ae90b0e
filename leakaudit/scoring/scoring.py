"""Scoring of reconstructions against the truth: the only package that opens a `Truth`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from leakaudit._util.assignment import Match, kept, match, match_labels
from leakaudit.core.display import CardDisplay
from leakaudit.core.errors import LeakauditError
from leakaudit.core.quantities import QUANTITIES, Data, Metrics, Quantity, add_columns
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import LARGEST_RECORD, Json, TaskSpec, Truth
from leakaudit.scoring import metrics
from leakaudit.scoring.lpips_weights import NO_WEIGHTS, Weights

NOT_SCORED = "no truth file: not scored"
METRICS = tuple(QUANTITIES)
Column = tuple[float | int | bool | None, ...]


@dataclass(frozen=True)
class Score(CardDisplay, Metrics[Column | None, Column | None, Column | None]):
    """The quality of one reconstruction.

    Every column has one entry for each of the node's true records. It is None if the metric was not
    measured. An entry is None (False for yes or no) if no reconstruction was left for that record.

    Attributes:
        node: The node that owns the records.
        attack: Name of the attack.
        matched: Rows of the reconstruction. For a node with b records, only the first b rows can be
            matched.
        owners: The node that owns each record, if these are the records of several nodes.
        chance: Highest probability with which a blind guess identifies a record after the same
            matching, see `blind_chance`.
        blind_psnr: Largest PSNR in dB of `Truth.blind_guess` and one of the records; None if they
            are no images.
        labels_found: Share of the true labels that are among the first b found, regardless of the
            images that they were paired with.
        tokens_found: Share of the different tokens of the node's records that are in the set of
            tokens that was found; None if no set was returned.
        tokens_wrong: Number of tokens in that set that do not occur in the records.
        surplus: Reconstructions (or labels, if there are none) beyond the b that can be matched.
        missed: For each metric, the scores of the missed records in their order: those of
            `Truth.blind_guess`.
        note: Why something is missing.
        {quantities}
    """

    node: int
    attack: str
    matched: tuple[int | None, ...] = ()
    owners: tuple[int, ...] = ()
    add_columns(vars(), QUANTITIES.values(), "Column | None", None)
    chance: float | None = None
    blind_psnr: float | None = None
    labels_found: float | None = None
    tokens_found: float | None = None
    tokens_wrong: int | None = None
    surplus: int = 0
    missed: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    note: str = ""

    def __repr__(self) -> str:
        """One line: the median of each metric."""
        parts = [f"node {self.node}", f"{self.attack!r:.60}"]
        if self.matched:
            parts.append(f"{len(self.matched) - self.not_recovered} of {len(self.matched)} matched")
        for name in METRICS:
            middle = self.statistics(name)["median"]
            if middle is not None:
                parts.append(f"{name} {middle:.4g}")
        if self.note:
            parts.append(f"{self.note!r:.100}")
        return f"Score({', '.join(parts)})"

    @property
    def not_recovered(self) -> int:
        """Number of true records for which no reconstruction was left."""
        return self.matched.count(None)

    def counted(self, metric: str) -> list[float]:
        """Return one value of a metric for every true record.

        Args:
            metric: One of `METRICS`.

        Returns:
            The measured values, then the scores of `Truth.blind_guess` on the missed records. Empty
            if the metric was not measured.
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
            ``per_image``, min, median and mean under each metric, and the entries common to all.
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
        if self.blind_psnr is not None:
            scores["blind_psnr"] = self.blind_psnr
        scores["labels_found"] = self.labels_found
        if self.tokens_found is not None:
            scores["tokens_found"] = self.tokens_found
            scores["tokens_wrong"] = self.tokens_wrong
        scores["not_recovered"] = self.not_recovered
        scores["surplus"] = self.surplus
        scores["matched"] = list(self.matched)
        if self.owners:
            scores["owners"] = list(self.owners)
        return scores


class ScoreTable(list[Score], CardDisplay):
    """A list of scores, which a notebook displays beside the pictures that they compare.

    The pictures are references to what was scored. Pickled files and copies do not contain
    them.
    """

    def __init__(
        self,
        scores: Iterable[Score] = (),
        found: Iterable[Reconstruction] = (),
        truth: Truth | None = None,
    ) -> None:
        super().__init__(scores)
        self.found = tuple(found)
        self.truth = truth

    def __reduce__(self) -> tuple[type[ScoreTable], tuple[list[Score]]]:
        """Keep only the scores."""
        return ScoreTable, (list(self),)


def score(
    found: Reconstruction | Iterable[Reconstruction],
    truth: Truth | None,
    weights: Weights | None = None,
    *,
    own: bool = False,
) -> ScoreTable:
    """Score reconstructions against the truth, after matching each batch to the node's records.

    A reconstruction for several nodes (`Reconstruction.others`) is matched to the records of all.

    Args:
        found: One or several reconstructions.
        truth: The truth. If None, every column is None, and the note states this.
        weights: An LPIPS network, None to omit LPIPS.
        own: After matching, keep only the records of `Reconstruction.node`.

    Returns:
        One score for each reconstruction, in their order, as a list.

    Raises:
        LeakauditError: A node has no records in the truth, or a reconstruction has another shape.
    """
    if isinstance(found, Reconstruction):
        found = [found]
    found = list(found)
    if truth is None:
        unscored = [Score(one.node, one.attack, note=NOT_SCORED) for one in found]
        return ScoreTable(unscored, found)
    if not isinstance(truth, Truth):
        raise LeakauditError(
            f"truth: expected a Truth, got {type(truth).__name__}; "
            "write la.score(found, la.load_truth(file))"
        )
    records = truth.x
    if len(truth.pool):
        records = torch.cat([truth.x, truth.pool.to(truth.x)])
    records = records.cpu()
    scores = [_score(one, truth, records, weights, own) for one in found]
    return ScoreTable(scores, found, truth)


def require_records(truth: Truth, node: int) -> None:
    """Check that a truth has records of a node."""
    known = sorted(set(truth.node.tolist()))
    if node not in known:
        raise LeakauditError(
            f"the truth contains no records of node {node} (it contains nodes {known})"
        )


def nothing(node: int, attack: str, truth: Truth) -> Score:
    """Score an attack on a node that returned nothing: every record counts as missed."""
    no_rows = truth.x.new_empty(0, *truth.task.shape)
    empty = Reconstruction(node, attack, no_rows, None, Certificate.FAILED, 1.0)
    (scored,) = score(empty, truth)
    return scored


_IDENTIFIED = (
    "closer (Euclidean) to its true record than to every other record of the data set; "
    "chance: highest probability for a blind guess"
)
SEVERAL = "not measured (the truth has several numbers as the label of a record)"
_MATCHING = (
    "such that the sum of squared errors is smallest; for a node with b records, only the first b "
    "reconstructions; a record without one counts in min, median and mean with the score of a "
    "blind guess (the mean of all other records)"
)


def definitions(
    task: TaskSpec, lpips: str = NO_WEIGHTS, truth: Truth | None = None
) -> dict[str, str]:
    """Return the definition of each metric for this data, for the record."""
    exact = "not measured (the data has no grid)"
    if task.is_text:
        return _of_text()
    label_correct = "label equal, after matching"
    if truth is not None and truth.y.dim() > 1:
        label_correct = SEVERAL
    if task.levels:
        exact = f"bit-identical after rounding to k/{task.levels}"
    out = {
        **_meanings(Data.ANY),
        "exact": exact,
        "label_correct": label_correct,
        "identified": _IDENTIFIED,
        "matching": _MATCHING,
        "rank": QUANTITIES["rank"].meaning,
    }
    if task.is_image:
        window = metrics.ssim_window(task.shape)
        ssim = "not measured (a side is under 3 px)"
        if window:
            ssim = f"scikit-image structural_similarity, uniform window {window}, data range 1"
        out |= _meanings(Data.IMAGES)
        out["psnr"] = f"dB, data range 1, at most {metrics.PSNR_CAP:g} (equal images)"
        out["ssim"] = ssim
        out["lpips"] = lpips
    return out


def measures(data: Data) -> Iterator[tuple[Quantity, Callable[..., Tensor | None]]]:
    """Yield the numbers of some data that have a function of their name, and that function."""
    for name, one in QUANTITIES.items():
        if (one.kind, one.data) == ("Number", data) and hasattr(metrics, name):
            yield one, getattr(metrics, name)


def _meanings(data: Data) -> dict[str, str]:
    return {one.key: one.meaning for one, _ in measures(data)}


def _of_text() -> dict[str, str]:
    rouge = "ROUGE-{} of words, F1 (rouge-score)"
    if not metrics.can_rouge():
        rouge = "ROUGE-{}: not measured (pip install 'leakaudit[text]')"
    return {
        "exact": "all tokens equal",
        "relative_error": "share of the positions with another token",
        "label_correct": "the token after the sequence is equal, after matching",
        "identified": _IDENTIFIED.replace("Euclidean", "number of different tokens"),
        "matching": _MATCHING.replace(
            "sum of squared errors", "number of different tokens"
        ).replace("the mean of all other records", "the most frequent token at every position"),
        "rank": QUANTITIES["rank"].meaning,
        **_meanings(Data.TEXT),
        "rouge1": rouge.format("1"),
        "rouge2": rouge.format("2"),
        "rougel": rouge.format("L"),
    }


def blind_chance(guesses: int, candidates: Tensor, total: int) -> float:
    """Bound the probability that a blind guess identifies a record, averaged over a node's records.

    The records of a node are b of the data set's N records; without a leak, any b of them are
    equally likely. A guess identifies a record only if that record is the closest of all N to
    it, so k guesses have at most k such records, and each of these belongs to the node with
    probability b / N. For any guesses and any matching, at most k b / N records are identified
    on average, which is k / N of the node's b. Guessing distinct records of the data set
    attains this, except for matches that assign a correctly guessed record to another guess.
    Records that are equal to m - 1 others count m times: `candidates` (b,) are N - m + 1.
    """
    equal = total - int(candidates.min()) + 1
    return min(1.0, guesses * equal / total)


def _score(
    found: Reconstruction, truth: Truth, records: Tensor, weights: Weights | None, own: bool
) -> Score:
    """Match one reconstruction to its nodes' records and measure every pair."""
    nodes = found.nodes
    x, y = (part.cpu() for part in truth.of(*nodes))
    require_records(truth, found.node)
    guess = _paired(found.x.detach().cpu())
    text = truth.task.is_text
    pairs = match(guess, x, text)
    everything = len(x)
    if own and len(nodes) > 1:
        mine = truth.owned([found.node])[truth.owned(nodes)].cpu()
        pairs = kept(pairs, mine)
        nodes = (found.node,)
        x, y = x[mine], y[mine]
    size = len(x)
    owners = truth.node[truth.owned(nodes)].tolist() if len(nodes) > 1 else ()
    guessed = guess[pairs.found]
    true = x[pairs.true]
    columns = _measure(guessed, true, records, truth, weights)
    missed: dict[str, tuple[float, ...]] = {}
    if pairs.missing:
        missed = _missed(nodes, pairs, truth, records, weights)
    handed_in = len(guess)
    labels_found = None
    if found.y is not None and y.dim() == found.y.dim() == 1:  # probabilities have no equal
        label = found.y.detach().cpu()
        if len(label) == len(guess):
            columns["label_correct"] = metrics.labels_correct(label[pairs.found], y[pairs.true])
        if not len(guess):
            handed_in = len(label)
        labels_found = _share(label[:everything], y)
    surplus = max(0, handed_in - everything)
    tokens_found = None
    tokens_wrong = None
    if found.tokens is not None:
        tokens_found, tokens_wrong = _set_of_tokens(found.tokens.cpu(), x)
    _, candidates = metrics.identification(x, x, records, text)
    chance = None
    if int(candidates.min()) > 1 and len(pairs.found):
        chance = blind_chance(len(pairs.found), candidates, len(records))
    return Score(
        node=found.node,
        attack=found.attack,
        matched=_spread(pairs.found, pairs, size),
        owners=tuple(owners),
        **{name: _spread(values, pairs, size) for name, values in columns.items()},
        chance=chance,
        blind_psnr=_blind_psnr(nodes, x, truth) if "psnr" in columns else None,
        labels_found=labels_found,
        tokens_found=tokens_found,
        tokens_wrong=tokens_wrong,
        surplus=surplus,
        missed={name: values for name, values in missed.items() if name in columns},
        note=remark(pairs.missing, surplus, size),
    )


def _paired(x: Tensor) -> Tensor:
    """Return inputs (b, *shape) with NaN for numbers whose errors may be infinite.

    No record has such numbers, and rows with NaN are never paired: their records count as
    missing.
    """
    return x.where(x.abs() <= LARGEST_RECORD, torch.nan)


def _blind_psnr(nodes: tuple[int, ...], x: Tensor, truth: Truth) -> float:
    """Return how close, in dB, a guess without any leak comes to one of the records."""
    guess = truth.blind_guess(*nodes).cpu().expand_as(x)
    return float(metrics.psnr(guess, x, data_range=truth.data_range).max())


def _missed(
    nodes: tuple[int, ...],
    pairs: Match,
    truth: Truth,
    records: Tensor,
    weights: Weights | None,
) -> dict[str, tuple[float, ...]]:
    """The scores of the blind guess on the missed records, for the numeric metrics."""
    x, _ = truth.of(*nodes)
    lost = torch.ones(len(x), dtype=torch.bool)
    lost[pairs.true] = False
    true = x.cpu()[lost]
    guess = truth.blind_guess(*nodes).cpu().expand_as(true)
    columns = _measure(guess, true, records, truth, weights)
    numbers: dict[str, tuple[float, ...]] = {}
    for name, values in columns.items():
        if values.dtype is not torch.bool:
            numbers[name] = tuple(map(float, values.tolist()))
    return numbers


def remark(missing: int, surplus: int, size: int) -> str:
    """Return a note if a reconstruction does not have as many records as the node."""
    said = []
    if missing:
        said.append(f"{missing} of {size} records not recovered")
    if surplus:
        said.append(
            f"{surplus} reconstructions more than the {size} records; only the first {size} count"
        )
    return "; ".join(said)


def _measure(
    x: Tensor, y: Tensor, records: Tensor, truth: Truth, weights: Weights | None
) -> dict[str, Tensor]:
    """Return every metric that applies to the data, one value per pair.

    The rank is among them if there is any other record to distinguish a pair from.
    """
    task = truth.task
    width = truth.data_range
    if task.is_text:
        found: dict[str, Tensor | None] = {
            "exact": x.eq(y).all(1),
            "relative_error": 1 - metrics.tokens_correct(x, y),
        }
        found |= {one.key: measure(x, y) for one, measure in measures(Data.TEXT)}
        if metrics.can_rouge():
            found |= metrics.rouge(x, y)
    else:
        found = {one.key: measure(x, y) for one, measure in measures(Data.ANY)}
        found["exact"] = metrics.exact(x, y, levels=task.levels)
        if task.is_image:
            for one, measure in measures(Data.IMAGES):
                found[one.key] = measure(x, y, data_range=width)
            if weights is not None:
                found["lpips"] = metrics.lpips_distance(x, y, weights, data_range=width)
    columns = {name: values for name, values in found.items() if values is not None}
    rank, candidates = metrics.identification(x, y, records, task.is_text)
    if len(candidates) and int(candidates.min()) > 1:
        columns["rank"] = rank
        columns["identified"] = rank == 1
    return columns


def _share(found: Tensor, true: Tensor) -> float:
    """Return the share of the true labels that were found."""
    pairs = match_labels(found, true)
    correct = metrics.labels_correct(found[pairs.found], true[pairs.true])
    return float(correct.sum()) / len(true)


def _set_of_tokens(found: Tensor, x: Tensor) -> tuple[float, int]:
    """Return the share of the tokens of records that was found, and how many others were."""
    occur = x.long().unique()
    right = int(torch.isin(occur, found.long()).sum())
    wrong = int((~torch.isin(found.long(), occur)).sum())
    return right / len(occur), wrong


def _spread(values: Tensor, pairs: Match, size: int) -> tuple[Any, ...]:
    """Assign one value per pair to the true records, None (False for yes or no) to the others."""
    absent = False if values.dtype is torch.bool else None
    out: list[Any] = [absent] * size
    for row, value in zip(pairs.true.tolist(), values.tolist(), strict=True):
        out[row] = value
    return tuple(out)
