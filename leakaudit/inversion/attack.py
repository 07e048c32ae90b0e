"""What an attack is: a value that is called with a leak, and what it may offer besides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, runtime_checkable

from leakaudit.core.errors import check_methods

if TYPE_CHECKING:
    from torch import Generator

    from leakaudit.core.leak import GradientLeak
    from leakaudit.core.reconstruction import Reconstruction
    from leakaudit.tasks.task import Task


class Attack(ABC):
    """A value made of hyper-parameters that is called with a leak.

    An attack is a frozen dataclass that defines `refuses` and `__call__`. It may also be
    `Batched` or `Selective`.

    Attributes:
        exact: Whether it solves equations instead of optimising.
        rank: Its position in `auto`: exact attacks first, then iterative ones, low ranks first.
        reads: The leaks that it accepts, in words.
        paper: Its source.
        cost: Its cost, in words.
        tokens: Whether it accepts models whose inputs are tokens.
        incomplete: Whether it accepts leaks in which coordinates are missing.
        changes: Whether it accepts leaks of what local steps changed (`GradientLeak.training`).
    """

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 100
    reads: ClassVar[str] = "gradients"
    paper: ClassVar[str] = "unpublished"
    cost: ClassVar[str] = "not measured"
    tokens: ClassVar[bool] = False
    incomplete: ClassVar[bool] = False
    changes: ClassVar[bool] = False

    def __new__(cls, *_: object, **__: object) -> Self:
        """Reject a class that does not define all abstract methods."""
        check_methods(cls, "attack", "refuses and __call__")
        return super().__new__(cls)

    @abstractmethod
    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Return why this attack cannot use a leak.

        Args:
            leak: The leak to attack.
            task: The task that the gradients belong to.

        Returns:
            A reason in words, or None if it can.
        """

    @abstractmethod
    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the inputs.

        Args:
            leak: Gradients of one node.
            task: The task that they belong to.
            generator: Source of all randomness.

        Returns:
            The inputs, with a certificate.

        Raises:
            AttackError: The attack cannot use this leak.
        """


@runtime_checkable
class Batched(Protocol):
    """An attack that also takes several leaks at once; a call equals `many` with one leak."""

    def many(
        self, leaks: Sequence[GradientLeak], task: Task, generators: Sequence[Generator]
    ) -> Iterator[tuple[int, Reconstruction]]:
        """Yield the position and the reconstruction of each leak; others affect only its rounding.

        Args:
            leaks: The leaks to attack together.
            task: The task that the gradients belong to.
            generators: Source of randomness for each leak.
        """


@runtime_checkable
class Selective(Protocol):
    """An attack that `auto` skips for some leaks that it could use."""

    def idle(self, leak: GradientLeak, task: Task) -> str | None:
        """Return why `auto` skips this attack.

        Args:
            leak: The leak to attack.
            task: The task that the gradients belong to.

        Returns:
            A reason in words, or None if `auto` tries it.
        """
