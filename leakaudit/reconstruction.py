"""What an attack is, and what it gives back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from torch import Generator, Tensor

if TYPE_CHECKING:
    from leakaudit.leak import GradientLeak
    from leakaudit.tasks.task import Task


SHOWN = 256  # candidates of one input that are kept: all that can lie on one line


class Certificate(Enum):
    """How sure a reconstruction is of itself, without the truth."""

    EXACT = (
        "reproduces every leaked equation to rounding, and no other input on the data's grid does"
    )
    INTERVAL = "every value lies within its interval at 99 % confidence; the data have no grid that would make it exact"
    APPROXIMATE = "fits the leak, others may fit as well"
    FAILED = "did not fit the leak; try more restarts or another attack"


@dataclass(frozen=True)
class Reconstruction:
    """One node's inputs as an attack sees them.

    x: (b, *shape) in the data's units, clamped to [0, 1] for images, b = 0 where nothing was found. y: (b,) labels, None where they
    were not found. certificate: of all inputs together; certified: how many of the first ones are exact each by itself.
    residual: relative misfit of the leak. seconds: wall time. note: what a reader should know. interval: (b, *shape) half-widths
    within which all values lie at once, with INTERVAL only. choices: for an input that is one of several candidates, by its
    place, up to `SHOWN` others (k, *shape) that explain the leak as well.
    """

    node: int
    attack: str
    x: Tensor
    y: Tensor | None
    certificate: Certificate
    residual: float
    seconds: float = 0.0
    note: str = ""
    certified: int = 0
    interval: Tensor | None = None
    choices: Mapping[int, Tensor] = field(default_factory=dict)

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """One of each input (b)."""
        return tuple(
            Certificate.EXACT if k < self.certified else self.certificate
            for k in range(len(self.x))
        )


class Attack(Protocol):
    """A value made of hyper-parameters that is called with a leak.

    exact: solves equations instead of optimising. rank: its place in `auto`, which goes from exact to iterative and from
    low rank to high. reads: leaks that it takes, in words. paper: its source. cost: in words.

    It may also be `Batched` or `Selective`.
    """

    exact: ClassVar[bool]
    rank: ClassVar[int]
    reads: ClassVar[str]
    paper: ClassVar[str]
    cost: ClassVar[str]

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Say what this attack misses in the leak, None where it can start."""

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the inputs; raises AttackError where `refuses` has something to say."""


@runtime_checkable
class Batched(Protocol):
    """An attack that also takes several leaks at once; calling it is `many` of one."""

    def many(
        self, leaks: Sequence[GradientLeak], task: Task, generators: Sequence[Generator]
    ) -> Iterator[tuple[int, Reconstruction]]:
        """Yield each leak's place and reconstruction, which depends on the others by rounding alone."""


@runtime_checkable
class Selective(Protocol):
    """An attack that `auto` leaves out of some leaks that it could start on."""

    def idle(self, leak: GradientLeak, task: Task) -> str | None:
        """Say why `auto` leaves it out, None where it does not."""
