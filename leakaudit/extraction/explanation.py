"""What an adversary determines of each node, by which formula, and how exactly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from leakaudit.adversary import Adversary
from leakaudit.errors import LeakauditError, NotDetermined
from leakaudit.extraction import gradient_values, hearing
from leakaudit.extraction.deduction import Deduction
from leakaudit.progress import step
from leakaudit.trace import Json, Trace

GRADIENTS = 16  # of a node that are explained


@dataclass(frozen=True)
class DeterminedRow:
    """One combination of a node's gradients that is determined.

    Attributes:
        combination: In words.
        weights: (round, index) of each gradient and its exact coefficient as text.
        formula: How the messages give it, in exact rationals.
        noisy: Whether it holds only up to the protocol's own noise.
        std: Noise per coordinate of the formula of least variance.
        amplification: Of an error that every message has by itself.
        size: Root mean square of the value.
    """

    combination: str
    weights: tuple[tuple[int, int | None, str], ...]
    formula: str
    noisy: bool
    std: float
    amplification: float
    size: float

    @property
    def formal(self) -> bool:
        """Whether the value is lost in its noise."""
        return self.std > self.size


@dataclass(frozen=True)
class Explanation:
    """Everything about one node.

    Attributes:
        node: That it is about.
        adversary: As text.
        gradients: How many were looked at.
        rows: The combinations that are determined.
        scope: On what this rests.
        reason: Why nothing is determined.
    """

    node: int
    adversary: str
    gradients: int
    rows: tuple[DeterminedRow, ...]
    scope: str = ""
    reason: str = ""

    @property
    def summary(self) -> str:
        """One sentence."""
        if not self.rows:
            return f"node {self.node}: {self.reason}"
        single = sum(len({w[0] for w in r.weights}) == 1 for r in self.rows)
        noisy = sum(r.noisy for r in self.rows)
        formal = sum(r.formal for r in self.rows)
        kinds = [
            f"{n} {what}"
            for n, what in (
                (single, "gradients"),
                (len(self.rows) - single, "combinations of several"),
            )
            if n
        ]
        also = [
            f"{n} {what}"
            for n, what in ((noisy, "up to the protocol's noise"), (formal, "lost in noise"))
            if n
        ]
        return (
            f"node {self.node}: of {self.gradients} gradients, {' and '.join(kinds)} are determined"
            + (f" ({', '.join(also)})" if also else "")
        )

    def to_json(self) -> dict[str, Json]:
        """Plain values."""
        rows = [{**asdict(r), "formal": r.formal} for r in self.rows]
        return {**asdict(self), "rows": rows, "summary": self.summary}


def explain(
    trace: Trace,
    adversary: Adversary,
    nodes: Iterable[int] | None = None,
    gradients: int = GRADIENTS,
) -> list[Explanation]:
    """Explain nodes by their first gradients.

    Args:
        trace: The recording.
        adversary: Who observes it.
        nodes: To be explained; by default all that hold data and are not the adversary's own.
        gradients: How many of each node.

    Raises:
        LeakauditError: A node does not exist, the protocol is unknown, or the adversary would need
            to know a constant.
    """
    heard = Deduction(trace, adversary)
    said = []
    todo = list(hearing.targets(trace, adversary) if nodes is None else nodes)
    for k, node in enumerate(todo):
        if not 0 <= node < trace.graph.nodes:
            raise LeakauditError(
                f"there is no node {node}: the trace has nodes 0 to {trace.graph.nodes - 1}"
            )
        step("nodes", k, len(todo))
        said.append(_node(heard, node, gradients))
    step("nodes", len(todo), len(todo))
    return said


def _node(heard: Deduction, node: int, gradients: int) -> Explanation:
    who = str(heard.view.adversary)
    try:
        found = heard.of(node, gradients)
    except NotDetermined as e:
        return Explanation(node, who, 0, (), reason=str(e))
    quietest = gradient_values.quietest(heard, found.knowledge, found.rows)
    vectors = found.knowledge.declared.vectors
    size = quietest.apply(heard.fetch).square().mean(1).sqrt().tolist()
    rows = [
        DeterminedRow(
            combination=str(row),
            weights=tuple(
                (vectors[k].round, vectors[k].index, str(v)) for k, v in row.terms.items()
            ),
            formula=str(found.formula(row)),
            noisy=at >= len(found.rows) - found.noisy,
            std=float(quietest.std[at]),
            amplification=float(quietest.amplification[at]),
            size=size[at],
        )
        for at, row in enumerate(found.rows)
    ]
    looked = sum(g.vector in found.knowledge.used for g in found.knowledge.declared.gradients(node))
    return Explanation(node, who, looked, tuple(rows), scope=found.scope)
