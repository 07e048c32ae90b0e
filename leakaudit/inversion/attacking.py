"""Attacks on leaks: one by its name, or the strongest that fits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Generator

from leakaudit import registry
from leakaudit.errors import AttackError, LeakauditError
from leakaudit.leak import GradientLeak, Leaks
from leakaudit.progress import expired, sharing
from leakaudit.reconstruction import Attack, Batched, Certificate, Reconstruction, Selective
from leakaudit.tasks.task import LOOP_ABOVE, Task


def attack(
    leaks: Leaks,
    name: str | Attack = "auto",
    *,
    generator: Generator,
    task: Task | None = None,
    **settings: Any,
) -> list[Reconstruction]:
    """Run one attack, or the strongest that fits each leak (`auto`), and return a reconstruction a leak.

    name: of the attack, or the attack itself. settings: the hyper-parameters of one that is named. task: needed only where the model is a user's own
    ``package.module:factory``: Task.build(leaks.task, trusted=True).
    Raises LeakauditError for an unknown attack or setting, AttackError where a named attack cannot use a leak.
    """
    task = task or Task.build(leaks.task)
    return [attack_one(leak, task, name, generator, **settings) for leak in leaks]


def attack_one(
    leak: GradientLeak, task: Task, name: str | Attack, generator: Generator, **settings: Any
) -> Reconstruction:
    """Attack one leak; `auto` goes from exact to iterative attacks until one fits."""
    if name == "auto":
        return next(attack_together([leak], task, name, [generator], **settings)).found
    start = time.perf_counter()
    if isinstance(name, str):
        chosen: Attack = registry.configure(registry.get("attacks", name), settings)
    elif settings:
        raise LeakauditError(
            f"the attack is given as a value, so give it {', '.join(settings)} when it is made"
        )
    else:
        chosen = name
        name = type(chosen).__name__
    if why := chosen.refuses(leak, task):
        raise AttackError(f"node {leak.node}: attack {name} cannot use this leak: {why}")
    return replace(chosen(leak, task, generator), seconds=time.perf_counter() - start)


@dataclass(frozen=True)
class Settled:
    """One leak of several that is done with.

    place: of the leak. together: whether it was searched in one batch with others, on whom it then depends by rounding. late: whether
    its time was over.
    """

    place: int
    found: Reconstruction
    together: bool
    late: bool


def attack_together(
    leaks: Sequence[GradientLeak],
    task: Task,
    name: str,
    generators: Sequence[Generator],
    **settings: Any,
) -> Iterator[Settled]:
    """Attack several leaks, each with its own generator, as `attack_one` does; yield each one as soon as it is settled.

    `Batched` attacks get them together where the model is small; others go one after the other, and share the time that is left.
    """
    if name != "auto":
        chosen: Attack = registry.configure(registry.get("attacks", name), settings)
        for leak in leaks:
            if why := chosen.refuses(leak, task):
                raise AttackError(f"node {leak.node}: attack {name} cannot use this leak: {why}")
        yield from _run(name, chosen, range(len(leaks)), leaks, task, generators, settings)
        return
    if settings:
        raise LeakauditError(
            f"auto takes no settings, got {', '.join(settings)}; name the attack that they are for"
        )
    left = {k: _Course() for k in range(len(leaks))}
    for known, candidate in in_order():
        why_not = {k: candidate.refuses(leaks[k], task) for k in left}
        if isinstance(candidate, Selective):
            why_not = {k: reason or candidate.idle(leaks[k], task) for k, reason in why_not.items()}
        for k, reason in why_not.items():
            left[k].reasons += [f"{known}: {reason}"] if reason else []
        for settled in _run(
            known, candidate, [k for k in left if not why_not[k]], leaks, task, generators, {}
        ):
            left[settled.place].add(settled)
            if settled.found.certificate is not Certificate.FAILED or settled.late:
                yield left.pop(settled.place).end(settled.place, leaks, task)
    for k, course in left.items():
        yield course.end(k, leaks, task)


@dataclass
class _Course:
    """How `auto` has gone for one leak so far."""

    best: Reconstruction | None = None
    reasons: list[str] = field(default_factory=list)
    seconds: float = 0.0
    together: bool = False
    late: bool = False

    def add(self, settled: Settled) -> None:
        """Keep the better reconstruction; one that failed is no reason to drop inputs that were found before."""
        found, self.late = settled.found, settled.late
        self.seconds, self.together = (
            self.seconds + found.seconds,
            self.together or settled.together,
        )
        if self.best is None or (
            found.certificate is not Certificate.FAILED and (len(found.x) or not len(self.best.x))
        ):
            self.best = found

    def end(self, place: int, leaks: Sequence[GradientLeak], task: Task) -> Settled:
        """Return what is reported."""
        note = "no attack can use this leak. " + "; ".join(self.reasons)
        none = Reconstruction(
            leaks[place].node,
            "none",
            torch.empty(0, *task.spec.shape),
            None,
            Certificate.FAILED,
            1.0,
            note=note,
        )
        return Settled(
            place, replace(self.best or none, seconds=self.seconds), self.together, self.late
        )


def _run(
    name: str,
    chosen: Attack,
    places: Sequence[int],
    leaks: Sequence[GradientLeak],
    task: Task,
    generators: Sequence[Generator],
    settings: Mapping[str, Any],
) -> Iterator[Settled]:
    """Run one attack on the leaks at some places."""
    if isinstance(chosen, Batched) and len(places) > 1 and task.layout.size <= LOOP_ABOVE:
        start = time.perf_counter()
        for at, found in chosen.many(
            [leaks[k] for k in places], task, [generators[k] for k in places]
        ):
            seconds = (time.perf_counter() - start) / len(places)
            yield Settled(
                places[at], replace(found, seconds=seconds), together=True, late=expired()
            )
        return
    for n, k in enumerate(places):
        with sharing(len(places) - n):
            settled = Settled(
                k,
                attack_one(leaks[k], task, name, generators[k], **settings),
                together=False,
                late=expired(),
            )
        yield settled


def in_order() -> Iterator[tuple[str, Attack]]:
    """Return all attacks with their defaults, exact ones first, then by rank."""
    known = [
        (n, cast(Attack, registry.configure(kind, {})))
        for n, kind in registry.everything("attacks")
    ]
    return iter(sorted(known, key=lambda pair: (not pair[1].exact, pair[1].rank, pair[0])))
