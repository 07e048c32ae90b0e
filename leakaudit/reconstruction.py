"""What an attack is, and what it gives back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, runtime_checkable

from torch import Generator, Tensor

from leakaudit.errors import check_methods

if TYPE_CHECKING:
    from leakaudit.leak import GradientLeak
    from leakaudit.tasks.task import Task


SHOWN = 256  # candidates of one input that are kept: all that can lie on one line


class Certificate(Enum):
    """How sure a reconstruction is of itself, without the truth."""

    EXACT = (
        "reproduces every leaked equation to rounding, and no other input on the data's grid does"
    )
    INTERVAL = (
        "every value lies within its interval at 99 % confidence; "
        "the data have no grid that would make it exact"
    )
    APPROXIMATE = "fits the leak, others may fit as well"
    FAILED = "did not fit the leak; try more restarts or another attack"


@dataclass(frozen=True)
class Reconstruction:
    """One node's inputs as an attack sees them.

    Attributes:
        node: Whose inputs.
        attack: Registered name of the attack.
        x: (b, *shape) in the data's units, clamped to [0, 1] for images; b = 0 if nothing was
            found.
        y: (b,) labels; None if they were not found.
        certificate: Of all inputs together.
        residual: Relative misfit of the leak.
        seconds: Wall time.
        note: What a reader should know.
        certified: How many of the first inputs are exact, each by itself.
        interval: (b, *shape) half-widths within which all values lie at once; only with INTERVAL.
        choices: For an input that is one of several candidates, by its place: up to `SHOWN` others
            (k, *shape) that explain the leak as well.
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
        certified = [Certificate.EXACT] * min(self.certified, len(self.x))
        rest = [self.certificate] * (len(self.x) - len(certified))
        return (*certified, *rest)


class Attack(ABC):
    """A value made of hyper-parameters that is called with a leak.

    An attack is a frozen dataclass that defines `refuses` and `__call__`. It may also be `Batched`
    or `Selective`.

    Attributes:
        exact: Whether it solves equations instead of optimising.
        rank: Its place in `auto`, which goes from exact to iterative and from low rank to high.
        reads: Leaks that it takes, in words.
        paper: Its source.
        cost: What it costs, in words.
    """

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 100
    reads: ClassVar[str] = "gradients"
    paper: ClassVar[str] = "unpublished"
    cost: ClassVar[str] = "not measured"

    def __new__(cls, *_: object, **__: object) -> Self:
        """Refuse a class that does not define all abstract methods."""
        check_methods(cls, "attack", "refuses and __call__")
        return super().__new__(cls)

    @abstractmethod
    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Say what this attack misses in a leak.

        Args:
            leak: What would be attacked.
            task: What the gradients are of.

        Returns:
            A reason in words, or None if the attack can start.
        """

    @abstractmethod
    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the inputs.

        Args:
            leak: Gradients of one node.
            task: What they are of.
            generator: Source of all randomness.

        Returns:
            The inputs, and how sure the attack is of them.

        Raises:
            AttackError: The attack cannot use this leak.
        """


@runtime_checkable
class Batched(Protocol):
    """An attack that also takes several leaks at once; calling it is `many` of one."""

    def many(
        self, leaks: Sequence[GradientLeak], task: Task, generators: Sequence[Generator]
    ) -> Iterator[tuple[int, Reconstruction]]:
        """Yield each leak's place and reconstruction, which depends on the others only by rounding.

        Args:
            leaks: What is attacked together.
            task: What the gradients are of.
            generators: Source of randomness for each leak.
        """


@runtime_checkable
class Selective(Protocol):
    """An attack that `auto` leaves out of some leaks that it could start on."""

    def idle(self, leak: GradientLeak, task: Task) -> str | None:
        """Say why `auto` leaves a leak out.

        Args:
            leak: What would be attacked.
            task: What the gradients are of.

        Returns:
            A reason in words, or None if `auto` tries it.
        """
