"""The nodes of a trace in groups, whose leaks are searched together in the time left.

Which nodes an earlier group covers by a sum of gradients is known once it is finished: other
processes attack all groups as if nothing was covered, and repeat the few for which that was wrong.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from leakaudit._util.jobs import IN_PROCESS, Pool
from leakaudit._util.seeds import generator
from leakaudit.core.errors import LeakauditError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.progress import expired, remaining, sharing, step, watching
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.trace import Trace
from leakaudit.inversion import attacking
from leakaudit.inversion.attacking import FinalReconstruction
from leakaudit.runs.pipeline.checkpoint import Checkpoint
from leakaudit.tasks.task import LOOP_ABOVE, Task
from leakaudit.traces import trace_file
from leakaudit.views.extraction import hearing
from leakaudit.views.extraction.deduction import Deduction

if TYPE_CHECKING:
    from leakaudit.runs.pipeline.attack_options import AttackOptions

TOGETHER = 32  # maximum number of nodes in a group; a choice
MEMORY = 512 << 20  # bytes of the values and models of a group of several nodes; a choice
EVERY = 1.0  # seconds between two files of a checkpoint; a choice


@dataclass
class GroupResults:
    """The results of the attacks of one run so far."""

    # each leak with its reconstruction
    pairs: list[tuple[GradientLeak, Reconstruction]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)  # why no gradient is determined, by node
    # nodes for which the reason is that the messages are not understood
    not_understood: set[int] = field(default_factory=set)
    # nodes that were not attacked before the time limit
    late: list[int] = field(default_factory=list)
    interrupted: bool = False  # whether Ctrl-C interrupted the run


def attack(
    trace: Trace,
    task: Task,
    options: AttackOptions,
    kept: Checkpoint,
    path: Path | None = None,
    executor: Pool = IN_PROCESS,
) -> GroupResults:
    """Attack all nodes of a run; after Ctrl-C, return the results so far.

    Groups do not depend on what was finished before, so a resumed run gives the same results.
    """
    if options.nodes is None:
        order = list(hearing.targets(trace, options.adversary))
    else:
        order = list(options.nodes)
    size = _together(trace, task, options)
    groups = [tuple(order[first : first + size]) for first in range(0, len(order), size)]
    run = _Run(trace, task, options, kept, _finished(trace, kept))
    try:
        with watching(seconds=options.max_seconds or None):
            if executor.inside or path is None:
                run.here(groups)
            else:
                run.elsewhere(groups, path, executor)
        step("nodes", len(order), len(order))
    except KeyboardInterrupt:
        run.found.interrupted = True
    run.keep()
    run.found.pairs.sort(key=lambda pair: order.index(pair[0].node))
    return run.found


def _finished(trace: Trace, kept: Checkpoint) -> dict[int, Reconstruction]:
    """Return the results of a checkpoint, which must fit the trace."""
    done = kept.finished()
    for one in done.values():
        nodes = {one.node, *one.others}
        fits = tuple(one.x.shape[1:]) == tuple(trace.task.shape)
        if not fits or not nodes <= set(range(trace.graph.nodes)):
            raise LeakauditError(
                f"{kept.folder}: the results of node {one.node} have inputs of shape "
                f"{tuple(one.x.shape[1:])}, which are not those of the trace; "
                "start again without --resume"
            )
    return done


def _together(trace: Trace, task: Task, options: AttackOptions) -> int:
    """Return the nodes per group: one if the model is too large for vmap.

    A node needs a gradient and a model in each round, both in float64.
    """
    if task.layout.size > LOOP_ABOVE:
        return 1
    rows = min(options.rounds or hearing.MOST, trace.rounds) or 1
    bytes_per_node = 2 * 8 * rows * task.layout.size
    return max(1, min(TOGETHER, MEMORY // bytes_per_node))


@dataclass
class _Run:
    trace: Trace
    task: Task  # model and loss of the trace
    options: AttackOptions
    kept: Checkpoint  # checkpoint for finished reconstructions
    done: dict[int, Reconstruction]  # results that were finished before this run, by node
    found: GroupResults = field(default_factory=GroupResults)  # results so far
    # results since the last file, one reconstruction each
    alone: list[Reconstruction] = field(default_factory=list)
    # time of the last file, by the monotonic clock
    saved: float = field(default_factory=time.monotonic)

    def here(self, groups: Sequence[tuple[int, ...]]) -> None:
        """Attack groups one after the other, and keep each reconstruction at once."""
        deduction = Deduction(self.trace, self.options.adversary)
        covered: frozenset[int] = frozenset()
        attacked = 0
        total = sum(map(len, groups))
        for nodes in groups:
            step("nodes", attacked, total)
            if remaining() <= 0:
                self.found.late += nodes
                continue
            with sharing((total - attacked) / len(nodes)):
                heard = _listen(deduction, self._group(nodes, covered), self.options)
                covered |= heard.covered
                left = self._heard(heard)
                self._settled(left, _settle(left, self.task, self.options))
            attacked += len(nodes)

    def elsewhere(self, groups: Sequence[tuple[int, ...]], path: Path, executor: Pool) -> None:
        """Attack groups on an executor, and keep those of each finished group."""
        workers = executor.workers or len(groups)
        turns = math.ceil(len(groups) / workers)
        job = _GroupJob(path.absolute(), _recording_of(self.trace), self.options, turns)
        late = dict(enumerate(groups))
        total = sum(map(len, groups))
        step("nodes", 0, total)
        for place, attacked in _spread(job, [self._group(some) for some in groups], executor):
            del late[place]
            self._settled(self._heard(attacked.heard), attacked.settled)
            step("nodes", total - sum(map(len, late.values())), total)
        self.found.late += [node for some in late.values() for node in some]

    def _group(self, nodes: tuple[int, ...], covered: frozenset[int] = frozenset()) -> _NodeGroup:
        return _NodeGroup(nodes, covered & {*nodes}, frozenset(nodes) & self.done.keys())

    def _heard(self, heard: _GroupLeaks) -> list[GradientLeak]:
        """Note what was deduced, and return the leaks that are not finished."""
        self.found.reasons |= heard.reasons
        self.found.not_understood |= heard.not_understood
        left = []
        for leak in heard.leaks:
            if leak.node in self.done:
                self.found.pairs.append((leak, self.done[leak.node]))
            else:
                left.append(leak)
        return left

    def _settled(
        self, leaks: Sequence[GradientLeak], search: Iterable[FinalReconstruction]
    ) -> None:
        batch: list[Reconstruction] = []
        for settled in search:
            self.found.pairs.append((leaks[settled.place], settled.found))
            if not settled.late:
                finished = batch if settled.together else self.alone
                finished.append(settled.found)
            if time.monotonic() > self.saved + EVERY:
                self.keep()
        self.kept.save(batch)

    def keep(self) -> None:
        self.kept.save(self.alone)
        self.alone = []
        self.saved = time.monotonic()


# --- groups, in this process or another -----------------------------------------------------------


@dataclass(frozen=True)
class _NodeGroup:
    """Nodes that are attacked together."""

    nodes: tuple[int, ...]
    # those of them whose gradients a leak of an earlier group contains, as a part of a sum
    covered: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()  # those of them whose reconstruction is known already


@dataclass(frozen=True)
class _GroupLeaks:
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
    heard: _GroupLeaks
    # the reconstructions of the leaks that were not done before, in their order
    settled: tuple[FinalReconstruction, ...]


def _listen(heard: Deduction, group: _NodeGroup, options: AttackOptions) -> _GroupLeaks:
    """Deduce the leaks of one group, as its attack wants them."""
    estimator = attacking.estimator(options.attack, options.settings)
    covered = set(group.covered)
    leaks: list[GradientLeak] = []
    reasons: dict[int, str] = {}
    not_understood: set[int] = set()
    for node in group.nodes:
        if node in covered:
            continue
        got = hearing.deduce(heard, [node], options.rounds, incomplete=True, estimator=estimator)
        reasons |= got.undetermined
        not_understood |= got.not_understood
        leaks += list(got)
        covered.update(other for leak in got for other in leak.others)
    return _GroupLeaks(tuple(leaks), reasons, frozenset(not_understood))


def _settle(
    leaks: Sequence[GradientLeak], task: Task, options: AttackOptions
) -> Iterator[FinalReconstruction]:
    """Attack the leaks of one group, and yield each when it is finished."""
    random = [generator(options.seed, leak.node) for leak in leaks]
    return attacking.attack_together(leaks, task, options.attack, random, **options.settings)


@dataclass(frozen=True)
class _GroupJob:
    """The job of attacking a group."""

    path: Path  # the trace, which the worker reads
    same: tuple[str, str | None]  # identifies the recording
    options: AttackOptions
    rounds: int  # number of groups that a worker attacks one after the other, which share the time

    @cached_property
    def trace(self) -> Trace:
        """The trace."""
        trace = trace_file.load(self.path)
        if _recording_of(trace) != self.same:
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

    def __call__(self, group: _NodeGroup) -> _AttackedGroup:
        """Attack one group."""
        with sharing(self.rounds):
            heard = _listen(self.deduction, group, self.options)
            left = [leak for leak in heard.leaks if leak.node not in group.done]
            settled = tuple(_settle(left, self.task, self.options))
        light = tuple(map(_without_values, heard.leaks))
        return _AttackedGroup(replace(heard, leaks=light), settled)


def _spread(
    job: _GroupJob, groups: Sequence[_NodeGroup], executor: Pool
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


def _recording_of(trace: Trace) -> tuple[str, str | None]:
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
