"""What an attack is: a value that is called with a leak, and what it may offer besides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

import torch

from leakaudit.core.errors import AttackError, check_methods
from leakaudit.core.reconstruction import Certificate, Reconstruction

if TYPE_CHECKING:
    from torch import Generator

    from leakaudit.core.leak import GradientLeak
    from leakaudit.tasks.task import Task

Run = Callable[..., Reconstruction]


class Attack(ABC):
    """A value made of hyper-parameters that is called with a leak.

    An attack is a frozen dataclass that defines `refuses` and `__call__`; a call asks `refuses`
    first. It may also be `Batched` or `Selective`.

    Attributes:
        exact: Whether it solves equations instead of optimising.
        rank: Its position in `auto`: exact attacks first, then iterative ones, low ranks first.
        reads: The leaks that it accepts, in words.
        paper: Its source.
        cost: Its cost, in words.
        quick: Whether it takes seconds, so that `auto` runs it even if its time is over and nothing
            else came back.
        tokens: Whether it accepts models whose inputs are tokens.
        incomplete: Whether it accepts leaks in which coordinates are missing.
        changes: Whether it accepts leaks of what local steps changed (`GradientLeak.training`).
    """

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 100
    reads: ClassVar[str] = "gradients"
    paper: ClassVar[str] = "unpublished"
    cost: ClassVar[str] = "not measured"
    quick: ClassVar[bool] = False
    tokens: ClassVar[bool] = False
    incomplete: ClassVar[bool] = False
    changes: ClassVar[bool] = False

    @property
    def estimator(self) -> str:
        """How the attacked gradients are estimated from the messages.

        Empty for what the relations determine, or the local update that the two-step estimate
        assumes (`leakaudit.views.extraction.two_steps`).
        """
        return ""

    def __init_subclass__(cls, **options: Any) -> None:
        """Let `refuses` decide before every call."""
        super().__init_subclass__(**options)
        if "__call__" in vars(cls):
            cls.__call__ = _after_refusal(cls.__call__)  # type: ignore[method-assign]

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


def _after_refusal(run: Run) -> Run:
    """Return a `__call__` that raises if `refuses` gives a reason."""

    @wraps(run)
    def checked(attack: Attack, leak: GradientLeak, task: Task, generator: Generator) -> Any:
        why = attack.refuses(leak, task)
        if why:
            raise AttackError(f"{type(attack).__name__.lower()} cannot use this leak: {why}")
        return run(attack, leak, task, generator)

    return checked


def failed(
    attack: str, leak: GradientLeak, task: Task, why: str, residual: float = 1.0
) -> Reconstruction:
    """Report that an attack found nothing, and why."""
    none = torch.empty(0, *task.spec.shape)
    return Reconstruction(leak.node, attack, none, None, Certificate.FAILED, residual, note=why)


def withdrawn(found: Reconstruction, why: str) -> Reconstruction:
    """Return a reconstruction without its certificates, and why."""
    return replace(
        found,
        certificate=Certificate.APPROXIMATE,
        certified=0,
        interval=None,
        note=f"no certificate: {why}; {found.note}",
    )


@runtime_checkable
class Batched(Protocol):
    """An attack that also takes several leaks at once; a call equals `many` with one leak."""

    def many(
        self, leaks: Sequence[GradientLeak], task: Task, generators: Sequence[Generator]
    ) -> Iterator[tuple[int, Reconstruction]]:
        """Yield position and reconstruction of each leak; others affect only its rounding.

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
