"""The nodes of a trace, attacked in groups.

The leaks of a group are searched together, and the time left is shared by all nodes left.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leakaudit._util.seeds import generator
from leakaudit.errors import LeakauditError
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
    from leakaudit.pipeline.attack_run import AttackOptions

TOGETHER = 32  # maximum number of nodes in a group; a choice
MEMORY = 512 << 20  # bytes of the values and models of a group of several nodes; a choice
EVERY = 1.0  # seconds between two files of a checkpoint; a choice


@dataclass
class Found:
    """The results of the attacks of one run so far.

    Attributes:
        pairs: Each leak with its reconstruction.
        reasons: Why no gradient is determined, by node.
        not_understood: Nodes for which the reason is that the messages are not understood.
        late: Nodes that were not attacked before the time limit.
        interrupted: Whether Ctrl-C interrupted the run.
    """

    pairs: list[tuple[GradientLeak, Reconstruction]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    not_understood: set[int] = field(default_factory=set)
    late: list[int] = field(default_factory=list)
    interrupted: bool = False


def attack(trace: Trace, task: Task, options: AttackOptions, kept: Checkpoint) -> Found:
    """Attack all nodes of a run; after Ctrl-C, return the results so far.

    Groups are the same whatever was finished before, and what was searched in one batch is kept
    together. So a run that was interrupted and resumed gives what a run without a break gives.

    Args:
        trace: The recording.
        task: Its model and loss.
        options: The options. Without nodes, all that the adversary can attack.
        kept: Checkpoint with finished results, to which new ones are added.

    Returns:
        What was found, in the order of the nodes.
    """
    if options.nodes is None:
        order = list(hearing.targets(trace, options.adversary))
    else:
        order = list(options.nodes)
    size = _together(trace, task, options)
    run = _Run(task, options, kept, Deduction(trace, options.adversary), _finished(trace, kept))
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


def _finished(trace: Trace, kept: Checkpoint) -> dict[int, Reconstruction]:
    """Return the results of a checkpoint, which must be those of nodes and inputs of the trace."""
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
    """Return the number of nodes per group: one if the model is too large for vmap.

    A node needs a gradient and a model in each round, both in float64.
    """
    if task.layout.size > LOOP_ABOVE:
        return 1
    rows = min(options.rounds or hearing.MOST, trace.rounds) or 1
    bytes_per_node = 2 * 8 * rows * task.layout.size
    return max(1, min(TOGETHER, MEMORY // bytes_per_node))


@dataclass
class _Run:
    """A run in progress.

    Attributes:
        task: Model and loss of the trace.
        options: The options.
        kept: Checkpoint for finished reconstructions.
        heard: What the adversary deduces from the trace.
        done: Results that were finished before this run, by node.
        found: Results so far.
        alone: Results since the last file, one reconstruction each.
        saved: Time of the last file, by the monotonic clock.
        covered: Nodes whose gradients an earlier leak contains, as a part of a sum.
    """

    task: Task
    options: AttackOptions
    kept: Checkpoint
    heard: Deduction
    done: dict[int, Reconstruction]
    found: Found = field(default_factory=Found)
    alone: list[Reconstruction] = field(default_factory=list)
    saved: float = field(default_factory=time.monotonic)
    covered: set[int] = field(default_factory=set)

    def attack(self, group: Sequence[int]) -> None:
        """Attack the nodes of one group that are not finished."""
        leaks = []
        for node in group:
            if node in self.covered:
                continue
            got = hearing.deduce(self.heard, [node], self.options.rounds, incomplete=True)
            self.found.reasons |= got.undetermined
            self.found.not_understood |= got.not_understood
            leaks += list(got)
            self.covered.update(other for leak in got for other in leak.others)
        left = []
        for leak in leaks:
            if leak.node in self.done:
                self.found.pairs.append((leak, self.done[leak.node]))
            else:
                left.append(leak)
        random = [generator(self.options.seed, leak.node) for leak in left]
        batch: list[Reconstruction] = []
        search = attacking.attack_together(
            left, self.task, self.options.attack, random, **self.options.settings
        )
        for settled in search:
            self.found.pairs.append((left[settled.place], settled.found))
            if not settled.late:
                finished = batch if settled.together else self.alone
                finished.append(settled.found)
            if time.monotonic() > self.saved + EVERY:
                self.keep()
        self.kept.save(batch)

    def keep(self) -> None:
        """Write the results since the last file."""
        self.kept.save(self.alone)
        self.alone = []
        self.saved = time.monotonic()
