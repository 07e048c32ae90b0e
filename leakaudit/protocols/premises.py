"""What the claims about a run assume of its data, compared with these data beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property

import torch
from torch import Tensor

from leakaudit.core.claim import Claim
from leakaudit.core.errors import LeakauditError
from leakaudit.core.evidence import Evidence, Origin
from leakaudit.core.trace import Graph, Json, Trace, Truth
from leakaudit.protocols.victim import Victim
from leakaudit.tasks import clipping
from leakaudit.tasks.task import Problem, Task

# A Lipschitz constant, a sensitivity or a number of records scales the noise of a protocol, and an
# epsilon holds only for data that keep it. Whoever records has the data, so the first rounds are
# run once without recording anything: at every model at which a node evaluates its gradient, the
# gradients of its records are computed one by one, and compared with those of other records.
#
# What is found is a lower bound of what the data can do: an assumption may be contradicted, never
# confirmed. The trace is public, and so its provenance has figures with one significant digit only,
# which tell records apart no better than the order of magnitude of a gradient does; the exact ones
# are private, in the truth.

# Of the provenance: subject -> name of its origin, a detail, and the value that is contradicted.
KEY = "evidence"
MORE = 1 + 1e-3  # factor above an assumption that rounding cannot explain
# Choices: numbers of gradients and models in all, numbers of gradients at once, and records of a
# node and of others that are compared at one model.
NUMBERS = 1 << 27
MODELS = 1_000
AT_ONCE = 1 << 25
OWN = 32
OTHERS = 16


@dataclass(frozen=True)
class _Premise:
    """A number that the data must keep."""

    subject: str  # the constant, as users know it
    assumed: float
    source: str  # who assumes it


@dataclass
class _GradientExtremes:
    """The largest gradients of single records in the first rounds of a run."""

    # largest norm of the gradient of a record, as it is used: after clipping, and without the l2
    # term, which does not depend on data
    norm: float = 0.0
    # largest change of a node's mean gradient if one record is replaced by another
    moved: float = 0.0
    models: int = 0  # number of models at which gradients were computed
    numbers: int = 0
    sampled: bool = False  # whether some records or models were left out


class _BudgetSpent(Exception):
    """The affordable number of gradients has been computed."""


@dataclass(frozen=True, eq=False)
class _WatchedTask(Task):
    """A task that notes the extremes of the gradients that it computes."""

    # records, of any nodes, that replace one
    others: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))
    clip: float = 0.0  # norm to which the gradient of each record is clipped; 0 for none
    batch: int = 1  # number of records in a mean
    found: _GradientExtremes = field(default_factory=_GradientExtremes)  # the extremes so far

    @classmethod
    def of(cls, problem: Problem, victim: Victim) -> _WatchedTask:
        """Return the task of a problem, whose records replace each other."""
        own = {one.name: getattr(problem.task, one.name) for one in fields(Task)}
        x, y = problem.x.flatten(0, 1), problem.y.flatten(0, 1)
        some = _some(len(x), OTHERS)
        batch = getattr(victim, "batch", 0) or problem.samples
        return cls(
            **own,
            others=(x[some], y[some]),
            clip=getattr(victim, "clip", 0.0),
            batch=min(batch, problem.samples),
        )

    @cached_property
    def plain(self) -> Task:
        return Task(**{one.name: getattr(self, one.name) for one in fields(Task)})

    def gradients(
        self,
        thetas: Tensor,
        x: Tensor,
        y: Tensor,
        chunk: int | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Compute `Task.gradients`, and note the extremes of single records."""
        if self.found.numbers >= NUMBERS or self.found.models >= MODELS:
            self.found.sampled = True
            raise _BudgetSpent
        self._note(thetas.detach(), x, y)
        return self.plain.gradients(thetas, x, y, chunk, out)

    def _note(self, thetas: Tensor, x: Tensor, y: Tensor) -> None:
        """Note the extremes of single records at some models; see `gradients`."""
        records = _some(x.shape[1], OWN)
        other_x, other_y = self.others
        each = len(records) + len(other_x)
        rows = _some(len(thetas), max(1, AT_ONCE // (each * thetas.shape[1])))
        self.found.sampled |= len(rows) < len(thetas) or len(records) < x.shape[1]
        theta = thetas[rows].repeat_interleave(each, 0)
        expand = (len(rows), *(-1 for _ in other_x.shape))
        xs = torch.cat([x[rows][:, records], other_x.expand(*expand)], 1).flatten(0, 1)
        ys = torch.cat([y[rows][:, records], other_y.expand(len(rows), *other_y.shape)], 1)
        g = clipping.gradients(self.plain, theta, xs[:, None], ys.flatten(0, 1)[:, None], self.clip)
        g = (g - self.l2 * theta).reshape(len(rows), each, -1)
        own = g[:, : len(records)]
        moved = float(torch.cdist(own.double(), g.double()).max()) / self.batch
        self.found.norm = max(self.found.norm, float(own.norm(dim=2).max()))
        self.found.moved = max(self.found.moved, moved)
        self.found.models += len(rows)
        self.found.numbers += g.numel()


def _some(count: int, most: int) -> Tensor:
    """Return at most so many indices, evenly spaced."""
    if count <= most:
        return torch.arange(count)
    return torch.linspace(0, count - 1, most).round().long()


def premises(
    victim: Victim, graph: Graph, rounds: int, public: Mapping[str, Tensor]
) -> list[_Premise]:
    """Return what the claims about a run assume of its data."""
    claims = victim.claims(graph, rounds, public)
    found = list(_claimed(claims))
    records = getattr(victim, "records", 0)
    if records and any(claim.epsilon is not None for claim in claims):
        found.append(_Premise("records", records, "the claim"))
    return found


def _claimed(claims: Sequence[Claim]) -> Iterator[_Premise]:
    norms = [claim.gradient_norm.limit for claim in claims if claim.gradient_norm is not None]
    if norms:
        yield _Premise("lipschitz", min(norms), "the claim")
    moves = [claim.sensitivity for claim in claims if claim.sensitivity]
    if moves:
        yield _Premise("sensitivity", min(moves), "the claim")


@dataclass(frozen=True)
class Contradiction:
    """A premise that the data of a run do not keep."""

    premise: _Premise
    found: float  # what the data reach
    where: str = ""  # at how many models it was measured

    @property
    def says(self) -> str:
        """What whoever records is told, with the exact figure, which is private."""
        assumed = f"{self.premise.source} assumes {self.premise.subject} = {self.premise.assumed:g}"
        figure = self._figure(f"{self.found:.4g}")
        return f"{assumed}, which these data contradict: {figure}{self.where}"

    @property
    def evidence(self) -> Evidence:
        """What the public trace says of it, to one significant digit."""
        figure = f"{self.found:.1g}"
        if self.premise.subject == "records":  # the trace states it in any case
            figure = f"{self.found:g}"
        else:
            figure = f"about {float(figure):g}"
        says = f"{self._figure(figure)} where {self.premise.assumed:g} is assumed{self.where}"
        return Evidence(self.premise.subject, Origin.CONTRADICTED, says)

    @property
    def least(self) -> float:
        """The least value that the figure in `evidence` stands for; the trace is public."""
        figure = float(f"{self.found:.1g}")
        digit = 10.0 ** math.floor(math.log10(figure))
        return max(figure - digit / 2, self.premise.assumed)

    def _figure(self, figure: str) -> str:
        if self.premise.subject == "records":
            return f"{figure} records per node"
        if self.premise.subject == "lipschitz":
            return f"gradients of single records of norm up to {figure}"
        return f"replacing a record changes a gradient by up to {figure}"


def contradicted(
    wanted: Sequence[_Premise], extremes: _GradientExtremes | None, samples: int
) -> list[Contradiction]:
    """Return the premises that the data do not keep; without extremes, only `records` is one."""
    extremes = extremes or _GradientExtremes()
    where = f" (at {extremes.models} models of the run)"
    if extremes.sampled:
        where = f" (sampled: at {extremes.models} models of the run)"
    found: list[Contradiction] = []
    for premise in wanted:
        if premise.subject == "records":
            if samples < premise.assumed:
                found.append(Contradiction(premise, samples))
            continue
        reached = extremes.moved
        if premise.subject == "lipschitz":
            reached = extremes.norm
        if math.isfinite(reached) and reached > premise.assumed * MORE:
            found.append(Contradiction(premise, reached, where))
    return found


def provenance(found: Sequence[Contradiction]) -> dict[str, Json]:
    """Return what the provenance of the trace says about contradicted premises."""
    if not found:
        return {}
    said: dict[str, Json] = {}
    for one in found:
        evidence = one.evidence
        said[evidence.subject] = [evidence.origin.name, evidence.detail, one.least]
    return {KEY: said}


def sentences(truth: Truth) -> list[str]:
    """Return what a truth says about contradicted premises, with the exact figures."""
    said = truth.provenance.get(KEY)
    return [str(one) for one in said] if isinstance(said, list) else []


def about_gradients(trace: Trace) -> bool:
    """Return whether the data of a trace have larger gradients than a claim assumes."""
    said = trace.provenance.get(KEY)
    return isinstance(said, Mapping) and bool({"lipschitz", "sensitivity"} & set(said))


def measured(victim: Victim, problem: Problem, run: Callable[[Problem], None]) -> _GradientExtremes:
    """Return the largest gradients of single records in the first rounds of a run."""
    task = _WatchedTask.of(problem, victim)
    with suppress(_BudgetSpent, LeakauditError):  # the recording itself says what goes wrong
        run(Problem(task, problem.x, problem.y))
    return task.found
