"""What an adversary can determine about each node, by which formula, and how accurately."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import torch

from leakaudit._util.plural import counted
from leakaudit.core.adversary import Adversary, node_list
from leakaudit.core.errors import NotDetermined
from leakaudit.core.progress import step
from leakaudit.core.trace import Json, Trace
from leakaudit.theory.relations import Expression
from leakaudit.theory.relations.estimate import Estimate
from leakaudit.views.extraction import gradient_values, hearing
from leakaudit.views.extraction.deduction import Deduction, assumption

GRADIENTS = 16  # gradients per node that are explained


@dataclass(frozen=True)
class ExplainedRow:
    """One combination of a node's gradients that is determined."""

    combination: str
    # (round, index) of each gradient and its exact coefficient as text
    weights: tuple[tuple[int, int | None, str], ...]
    formula: str  # how it is computed from messages, in exact rationals
    noisy: bool  # whether it holds only up to the protocol's own noise
    std: float  # noise per coordinate of the formula with least variance
    amplification: float  # factor by which the formula magnifies independent errors of the messages
    size: float  # root mean square of the value

    @property
    def is_of_one_round(self) -> bool:
        """Whether all its gradients belong to one round."""
        rounds = {round_ for round_, _, _ in self.weights}
        return len(rounds) == 1

    @property
    def formal(self) -> bool:
        """Whether the noise exceeds the value."""
        return self.std > self.size


@dataclass(frozen=True)
class Explanation:
    """The complete explanation for one node."""

    node: int
    adversary: str
    gradients: int  # number of gradients that were examined
    rows: tuple[ExplainedRow, ...]  # the combinations that are determined
    scope: str = ""  # the basis of the result
    reason: str = ""  # why nothing is determined
    # whether the messages are those that the protocol declares, as far as this is known from the
    # messages themselves, and the declaration explains whatever may reveal the gradients
    understood: bool = True

    def __repr__(self) -> str:
        """The summary."""
        return f"Explanation({self.summary!r:.300})"

    @property
    def summary(self) -> str:
        """A summary in one sentence."""
        if not self.rows:
            what = "not determined"
            if not self.understood:
                what = "not understood"
            return f"node {self.node}: {what}: {self.reason}"
        clear = [row for row in self.rows if not row.formal]
        single = sum(row.is_of_one_round for row in clear)
        noisy = sum(row.noisy for row in clear)
        kinds = []
        if single:
            kinds.append(counted(single, "gradient"))
        if len(clear) > single:
            kinds.append(counted(len(clear) - single, "combination") + " of several")
        verb = "is" if len(clear) <= 1 else "are"
        determined = f"{' and '.join(kinds) or 'none'} {verb} determined"
        text = f"node {self.node}: of {counted(self.gradients, 'gradient')}, {determined}"
        if noisy:
            text += f" ({noisy} up to the protocol's noise)"
        lost = len(self.rows) - len(clear)
        if lost:
            text += f"; noise hides {counted(lost, 'estimate')}"
        return text

    def to_json(self) -> dict[str, Json]:
        """Return plain values."""
        rows: list[Json] = []
        for row in self.rows:
            rows.append({**asdict(row), "formal": row.formal})
        return {**asdict(self), "rows": rows, "summary": self.summary}


def explain(
    trace: Trace,
    adversary: Adversary | str,
    nodes: Iterable[int] | None = None,
    gradients: int = GRADIENTS,
) -> list[Explanation]:
    """Explain nodes by their first gradients.

    Args:
        trace: The recording.
        adversary: Who observes it, also as text such as "node:3".
        nodes: Nodes to explain, as a list; by default all that hold data and that the adversary
            does not control.
        gradients: Number of gradients per node.

    Raises:
        LeakauditError: A node does not exist, the protocol is unknown, or the adversary does not
            know a required constant.
    """
    hearing.check_rounds(gradients)
    adversary = Adversary.of(adversary)
    heard = Deduction(trace, adversary)
    said = []
    todo = node_list(nodes)
    hearing.check_nodes(adversary, todo)
    if todo is None:
        todo = list(hearing.targets(trace, adversary))
    for k, node in enumerate(todo):
        trace.graph.require(node, "trace")
        step("nodes", k, len(todo))
        said.append(_node(heard, node, gradients))
    step("nodes", len(todo), len(todo))
    return said


def _node(heard: Deduction, node: int, gradients: int) -> Explanation:
    who = str(heard.view.adversary)
    try:
        found = heard.of(node, gradients)
    except NotDetermined as e:
        assumed = assumption(heard.assumed) if e.understood else ""
        return Explanation(node, who, 0, (), assumed, str(e), e.understood)
    estimated = gradient_values.minimum_variance(heard, found.knowledge, found.rows)
    sizes = _sizes(estimated, heard)
    exact = len(found.rows) - found.noisy
    rows = []
    for k, row in enumerate(found.rows):
        rows.append(
            ExplainedRow(
                combination=str(row),
                weights=_weights(row),
                formula=str(found.formula(row)),
                noisy=k >= exact,
                std=float(estimated.std[k]),
                amplification=float(estimated.amplification[k]),
                size=sizes[k],
            )
        )
    looked_at = len(found.knowledge.gradients(node))
    scope = [found.scope]
    summed = hearing.clearer_sum(heard, found, float(estimated.std.min()), gradients)
    if summed is not None:
        scope.append(f"{heard.summed(node)} with noise of {float(summed.std.min()):.2g} only")
    return Explanation(node, who, looked_at, tuple(rows), scope="; ".join(filter(None, scope)))


def _sizes(estimated: Estimate, heard: Deduction) -> list[float]:
    squares = torch.zeros(len(estimated.combinations), dtype=torch.float64)
    for _, columns, value in estimated.blocks(heard.fetch):
        squares += value.square().mean(1).cpu() * (value.shape[1] / columns)
    sizes: list[float] = squares.sqrt().tolist()
    return sizes


def _weights(row: Expression) -> tuple[tuple[int, int | None, str], ...]:
    """Return (round, index, coefficient as text) of each gradient in a combination."""
    weights = []
    for k, coefficient in row.terms.items():
        vector = row.home[k]
        weights.append((vector.round, vector.index, str(coefficient)))
    return tuple(weights)
