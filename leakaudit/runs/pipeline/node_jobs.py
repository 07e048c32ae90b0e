"""Groups of nodes attacked by other processes, which read the trace themselves.

Which nodes an earlier group covers by a sum of gradients is only known once it is finished. So all
groups are first attacked as if nothing was covered, and repeated if that was wrong, which is rare.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from leakaudit._util.jobs import Pool
from leakaudit._util.seeds import generator
from leakaudit.core.errors import LeakauditError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.progress import expired, sharing
from leakaudit.core.trace import Trace
from leakaudit.inversion import attacking
from leakaudit.inversion.attacking import FinalReconstruction
from leakaudit.tasks.task import Task
from leakaudit.traces import trace_file
from leakaudit.views.extraction import hearing
from leakaudit.views.extraction.deduction import Deduction

if TYPE_CHECKING:
    from leakaudit.runs.pipeline.attack_options import AttackOptions


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that are attacked together."""

    nodes: tuple[int, ...]
    # those of them whose gradients a leak of an earlier group contains, as a part of a sum
    covered: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()  # those of them whose reconstruction is known already


@dataclass(frozen=True)
class GroupLeaks:
    """The leaks of one group."""

    # one per determined node; values and models are left out if another process sent them
    leaks: tuple[GradientLeak, ...]
    reasons: dict[int, str]  # why no gradient is determined, by node
    # nodes for which the reason is that the messages are not understood
    not_understood: frozenset[int]

    @property
    def covered(self) -> frozenset[int]:
        """The nodes whose gradients these leaks contain as parts of sums."""
        return frozenset(other for leak in self.leaks for other in leak.others)


@dataclass(frozen=True)
class _AttackedGroup:
    heard: GroupLeaks
    # the reconstructions of the leaks that were not done before, in their order
    settled: tuple[FinalReconstruction, ...]


def listen(heard: Deduction, group: NodeGroup, rounds: int | None) -> GroupLeaks:
    """Deduce the leaks of one group, of at most so many rounds."""
    covered = set(group.covered)
    leaks: list[GradientLeak] = []
    reasons: dict[int, str] = {}
    not_understood: set[int] = set()
    for node in group.nodes:
        if node in covered:
            continue
        got = hearing.deduce(heard, [node], rounds, incomplete=True)
        reasons |= got.undetermined
        not_understood |= got.not_understood
        leaks += list(got)
        covered.update(other for leak in got for other in leak.others)
    return GroupLeaks(tuple(leaks), reasons, frozenset(not_understood))


def settle(
    leaks: Sequence[GradientLeak], task: Task, options: AttackOptions
) -> Iterator[FinalReconstruction]:
    """Attack the leaks of one group, and yield each when it is finished."""
    random = [generator(options.seed, leak.node) for leak in leaks]
    return attacking.attack_together(leaks, task, options.attack, random, **options.settings)


@dataclass(frozen=True)
class GroupJob:
    """The job of attacking a group."""

    path: Path  # the trace, which the worker reads
    same: tuple[str, str | None]  # identifies the recording
    options: AttackOptions
    rounds: int  # number of groups that a worker attacks one after the other, which share the time

    @cached_property
    def trace(self) -> Trace:
        """The trace."""
        trace = trace_file.load(self.path)
        if recording_of(trace) != self.same:
            raise LeakauditError(
                f"{self.path} on {socket.gethostname()} is not the recording that is attacked; "
                "copy the same trace to all machines"
            )
        return trace

    @cached_property
    def deduction(self) -> Deduction:
        """What the adversary observes."""
        return Deduction(self.trace, self.options.adversary)

    @cached_property
    def task(self) -> Task:
        """Model and loss."""
        options = self.options
        return Task.build(self.trace.task, device=options.device, trusted=options.trusted)

    def __call__(self, group: NodeGroup) -> _AttackedGroup:
        """Attack one group."""
        with sharing(self.rounds):
            heard = listen(self.deduction, group, self.options.rounds)
            left = [leak for leak in heard.leaks if leak.node not in group.done]
            settled = tuple(settle(left, self.task, self.options))
        light = tuple(map(_without_values, heard.leaks))
        return _AttackedGroup(replace(heard, leaks=light), settled)


def attack(
    job: GroupJob, groups: Sequence[NodeGroup], executor: Pool
) -> Iterator[tuple[int, _AttackedGroup]]:
    """Attack groups on an executor; yield each with its place, in order."""
    covered: frozenset[int] = frozenset()
    todo = list(groups)
    kept: dict[int, _AttackedGroup] = {}
    due = 0
    while due < len(todo):
        places = [place for place in range(due, len(todo)) if place not in kept]
        for outcome in executor.completed(job, [todo[p] for p in places], expired, [job.path]):
            kept[places[outcome.place]] = outcome.result()
            while due in kept and todo[due].covered == covered & {*todo[due].nodes}:
                attacked = kept.pop(due)
                covered |= attacked.heard.covered
                yield due, attacked
                due += 1
        for place in range(due, len(todo)):
            group = replace(todo[place], covered=covered & {*todo[place].nodes})
            if group != todo[place]:
                todo[place] = group
                kept.pop(place, None)
        if expired():
            yield from kept.items()
            return


def recording_of(trace: Trace) -> tuple[str, str | None]:
    """Return what distinguishes a recording from all others."""
    return trace.id, trace.recording


def _without_values(leak: GradientLeak) -> GradientLeak:
    """Return a leak whose large tensors are one zero, expanded."""
    return replace(
        leak,
        value=torch.zeros(1, dtype=leak.value.dtype).expand_as(leak.value),
        theta=None if leak.theta is None else torch.zeros(1).expand_as(leak.theta),
        seen=None,
    )
