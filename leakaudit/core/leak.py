"""What an adversary learns about gradients, in one form for all protocols."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakaudit.core.display import CardDisplay
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import TaskSpec, Training


@dataclass(frozen=True)
class GradientLeak(CardDisplay):
    """``combination @ gradients = value``, up to noise, for the gradients of one node's mean loss.

    If only sums over several nodes are determined, the loss is the mean over the records of all.

    A row with a single 1 is a gradient, as DLG uses it; a row +1, -1 is a difference of two.

    Attributes:
        node: The node that the gradients belong to.
        rounds: (T,) int64, the protocol's rounds in which the gradients were taken, from 1.
        combination: (m, T).
        value: (m, c).
        std: (m,) standard deviation of the noise on each coordinate, with the messages' rounding.
        columns: (start, stop) of the flat model vector; c = stop - start.
        noise: (m, q) or None. The error of value is ``noise @ e`` with e of unit variance; std
            contains the norms of its rows.
        theta: (T, d), the models at which the gradients were taken; None if unknown.
        theta_std: Standard deviation of the error of `theta`.
        batch: Samples behind each gradient, or behind each of its inner steps; None if unknown.
        records: Records that the node holds; None if unknown.
        wire: Precision of the number format of messages: the distance from 1 to the next number.
        inner: Gradient steps summed in each gradient: 1, or k_max.
        inner_weight: Sum of the weights of these steps, in units of the last one; larger than
            `inner`, for which None stands, with momentum.
        step: Step size of the inner steps; None if there are none or it is unknown.
        adversary: The adversary that obtains this leak.
        formula: How it was derived, for reports.
        scope: Limits of the derivation, for reports.
        theta_rounds: (T,) int64, the rounds of these models, often one before; empty if unknown.
        seen: (m, c) bool, the entries of value that are determined; the others are zero and mean
            nothing. None if all are determined.
        training: The local steps, if value holds the model before them minus the one after them.
            The columns then stand for rounds, and theta holds the models before. None for
            gradients.
        others: Sorted nodes whose records count as well, if only a mean over nodes is determined.
        estimate: Why the values are an estimate whose error `std` does not contain, so that no
            certificate can rest on them; empty if they are determined.
        statistics: Round -> layer -> mean and unbiased variance (c,) of the node's batch in this
            layer, as far as they are known.

    Raises:
        LeakauditError: The shapes do not agree.
    """

    node: int
    rounds: Tensor
    combination: Tensor
    value: Tensor
    std: Tensor
    columns: tuple[int, int]
    noise: Tensor | None = None
    theta: Tensor | None = None
    theta_std: float = 0.0
    batch: int | None = None
    records: int | None = None
    wire: float = 0.0
    inner: int = 1
    inner_weight: float | None = None
    step: float | None = None
    adversary: str = "eavesdropper"
    formula: str = ""
    scope: str = ""
    theta_rounds: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    seen: Tensor | None = None
    training: Training | None = None
    others: tuple[int, ...] = ()
    estimate: str = ""
    statistics: Mapping[int, Mapping[str, tuple[Tensor, Tensor]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that the shapes agree."""
        m, t = self.combination.shape
        width = self.columns[1] - self.columns[0]
        if self.value.shape != (m, width) or self.rounds.shape != (t,) or self.std.shape != (m,):
            raise LeakauditError(
                f"leak of node {self.node}: "
                f"expected value ({m}, {width}), rounds ({t},), std ({m},), "
                f"got {tuple(self.value.shape)}, {tuple(self.rounds.shape)}, "
                f"{tuple(self.std.shape)}"
            )
        if self.theta is not None and self.theta.shape[0] != t:
            raise LeakauditError(
                f"leak of node {self.node}: expected {t} models, got {self.theta.shape[0]}"
            )

        if self.seen is not None:
            if self.seen.shape != self.value.shape or self.seen.dtype != torch.bool:
                raise LeakauditError(
                    f"leak of node {self.node}: expected a mask seen of ({m}, {width}) truth "
                    f"values, got {tuple(self.seen.shape)} of {self.seen.dtype}"
                )
            if bool((self.value[~self.seen] != 0).any()):
                raise LeakauditError(
                    f"leak of node {self.node}: expected zeros where seen is false, "
                    "got other values; set them to zero"
                )

    def __repr__(self) -> str:
        """One line without tensors."""
        rows, width = self.value.shape
        noise = float(self.std.max()) if rows else 0.0
        return (
            f"GradientLeak({self.who}, {self.kind}, rounds {self.span}, {rows} x"
            f" {width} values, std {noise:.2g}, batch {self.batch},"
            f" adversary {self.adversary!r:.60})"
        )

    @property
    def who(self) -> str:
        """The nodes in words, shortened if they are many."""
        if not self.others:
            return f"node {self.node}"
        return f"nodes {', '.join(map(str, self.nodes)):.60}"

    @property
    def span(self) -> str:
        """The first and the last round in words."""
        if not len(self.rounds):
            return "none"
        first = int(self.rounds.min())
        last = int(self.rounds.max())
        if first == last:
            return str(first)
        return f"{first}-{last}"

    @property
    def when(self) -> tuple[int, ...]:
        """The rounds as numbers."""
        return tuple(self.rounds.tolist())

    @property
    def nodes(self) -> tuple[int, ...]:
        """All nodes whose records are behind the gradients, sorted."""
        return tuple(sorted((self.node, *self.others)))

    @property
    def samples(self) -> int | None:
        """Different samples behind each gradient; None if unknown.

        Inner steps take one mini-batch after the other, and a record again only after all others.
        """
        if self.inner == 1:
            return self.batch
        if self.batch is None or self.records is None:
            return None
        return min(self.inner * self.batch, self.records)

    @property
    def inputs(self) -> int | None:
        """Largest number of different samples behind all gradients together; None if unknown."""
        return self.samples if self.steady else self.records

    @property
    def steady(self) -> bool:
        """Whether, according to the declaration, all gradients of the leak use the same samples."""
        return self.combination.shape[1] == 1 or self.records in (None, self.samples)

    @property
    def gaps(self) -> str:
        """Why an attack that reads every coordinate of gradients cannot use the leak, or empty."""
        if self.training is not None:
            return (
                "it reads gradients, but the messages hold only what "
                f"{self.training.steps} steps of {self.training.optimiser} changed; use tokens"
            )
        if self.seen is None:
            return ""
        share = float(self.seen.double().mean())
        return (
            f"it requires every coordinate, but the messages hold {share:.1%} of them; "
            "use completion"
        )

    def equation(self, k: int) -> GradientLeak:
        """Return equation `k` (1, T') as a leak of its own, with the T' gradients in it."""
        used = self.combination[k].nonzero().flatten()
        model_rounds = self.theta_rounds
        if len(model_rounds):
            model_rounds = model_rounds[used]
        return replace(
            self,
            rounds=self.rounds[used],
            combination=self.combination[k : k + 1, used],
            value=self.value[k : k + 1],
            std=self.std[k : k + 1],
            noise=None if self.noise is None else self.noise[k : k + 1],
            theta=None if self.theta is None else self.theta[used],
            theta_rounds=model_rounds,
            seen=None if self.seen is None else self.seen[k : k + 1],
        )

    @property
    def single(self) -> Tensor:
        """(m,) bool, which rows are a single gradient."""
        return self.combination.count_nonzero(dim=1) == 1

    @property
    def is_plain(self) -> bool:
        """Whether every row is a single gradient rather than a combination."""
        return bool(self.single.all())

    @property
    def kind(self) -> str:
        """``gradient``, ``difference`` or ``change``, for tables."""
        if self.training is not None:
            return "change"
        return "gradient" if self.is_plain else "difference"


@dataclass(frozen=True)
class Leaks(CardDisplay):
    """What one adversary learns about several nodes; iterate over the leaks.

    Attributes:
        task: The task that the gradients belong to.
        items: The leaks, by node. One of a sum over several nodes stands for all of them.
        undetermined: Node -> the reason why none of its gradients is determined.
        not_understood: Those of these nodes whose messages are not the ones that the protocol
            declares, so that nothing is known about what they determine.
    """

    task: TaskSpec
    items: tuple[GradientLeak, ...]
    undetermined: Mapping[int, str] = field(default_factory=dict)
    not_understood: frozenset[int] = frozenset()

    def __iter__(self) -> Iterator[GradientLeak]:
        """Leaks by node."""
        return iter(self.items)

    def __len__(self) -> int:
        """Number of leaks."""
        return len(self.items)

    def __repr__(self) -> str:
        """One line, without the values."""
        nodes = sorted({node for leak in self.items for node in leak.nodes})
        determined = f"{', '.join(map(str, nodes)) or 'none':.60}"
        return (
            f"Leaks({len(self.items)} leaks, determined for nodes {determined},"
            f" not determined for {len(self.undetermined)} nodes)"
        )

    def __getitem__(self, index: int) -> GradientLeak:
        """Return one leak by its position."""
        return self.items[index]
