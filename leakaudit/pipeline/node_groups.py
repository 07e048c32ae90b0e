"""The nodes of a trace, attacked in groups: their leaks are searched together, and the time left is shared by all nodes left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leakaudit._util.seeds import generator
from leakaudit.extraction import hearing
from leakaudit.extraction.deduction import Deduction
from leakaudit.inversion import attacking
from leakaudit.leak import GradientLeak
from leakaudit.pipeline.checkpoint import Checkpoint
from leakaudit.progress import remaining, sharing, step, watching
from leakaudit.reconstruction import Reconstruction
from leakaudit.tasks.task import LOOP_ABOVE, Task
from leakaudit.trace import Trace

if TYPE_CHECKING:
    from leakaudit.pipeline.attack_run import Options

TOGETHER = 32  # most nodes of a group
MEMORY = 512 << 20  # bytes of the values and models of a group, where it has several nodes
EVERY = 1.0  # seconds between two files of a checkpoint


@dataclass
class Found:
    """What the attacks of one run gave so far. reasons: why nothing is determined, by node. late: nodes for which no time was left."""

    pairs: list[tuple[GradientLeak, Reconstruction]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    late: list[int] = field(default_factory=list)
    interrupted: bool = False


def attack(trace: Trace, task: Task, options: Options, kept: Checkpoint) -> Found:
    """Attack all nodes of a run; Ctrl-C ends it and leaves what was found.

    Groups are the same whatever was finished before, and what was searched in one batch is kept together, so that a run that goes on
    gives what one without a break gives.
    """
    order = list(
        hearing.targets(trace, options.adversary) if options.nodes is None else options.nodes
    )
    size = _together(trace, task, options)
    run = _Run(task, options, kept, Deduction(trace, options.adversary), kept.finished())
    try:
        with watching(seconds=options.max_seconds or None):
            for first in range(0, len(order), size):
                step("nodes", first, len(order))
                group = order[first : first + size]
                if remaining() <= 0:
                    run.found.late += group
                    continue
                with sharing((len(order) - first) / len(group)):
                    run.attack(group)
        step("nodes", len(order), len(order))
    except KeyboardInterrupt:
        run.found.interrupted = True
    run.keep()
    run.found.pairs.sort(key=lambda pair: order.index(pair[0].node))
    return run.found


def _together(trace: Trace, task: Task, options: Options) -> int:
    """Return how many nodes make a group: one where the model is too large for a vmap."""
    if task.layout.size > LOOP_ABOVE:
        return 1
    rows = min(options.rounds or hearing.MOST, trace.rounds) or 1
    return max(1, min(TOGETHER, MEMORY // (2 * 8 * rows * task.layout.size)))


@dataclass
class _Run:
    """One run under way. done: what was finished before it. alone: what it has finished since the last file, each by itself."""

    task: Task
    options: Options
    kept: Checkpoint
    heard: Deduction
    done: dict[int, Reconstruction]
    found: Found = field(default_factory=Found)
    alone: list[Reconstruction] = field(default_factory=list)
    saved: float = field(default_factory=time.monotonic)

    def attack(self, group: Sequence[int]) -> None:
        """Attack the nodes of one group that are not finished."""
        leaks = []
        for node in group:
            got = hearing.deduce(self.heard, [node], self.options.rounds)
            self.found.reasons |= got.undetermined
            leaks += list(got)
        self.found.pairs += [
            (leak, self.done[leak.node]) for leak in leaks if leak.node in self.done
        ]
        left = [leak for leak in leaks if leak.node not in self.done]
        random = [generator(self.options.seed, leak.node) for leak in left]
        batch: list[Reconstruction] = []
        for settled in attacking.attack_together(
            left, self.task, self.options.attack, random, **self.options.settings
        ):
            self.found.pairs.append((left[settled.place], settled.found))
            if not settled.late:
                (batch if settled.together else self.alone).append(settled.found)
            if time.monotonic() > self.saved + EVERY:
                self.keep()
        self.kept.save(batch)

    def keep(self) -> None:
        """Write what was finished since the last time."""
        self.kept.save(self.alone)
        self.alone, self.saved = [], time.monotonic()
