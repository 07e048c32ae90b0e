"""How much of a command is done: one number, and one line of words, from nested steps.

A step that starts while another is unfinished lies inside it, and the next report of the outer one
ends it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

MANY = 1_000_000  # from this total on, such as of bytes, the words state a percentage
SETTLED = 0.02  # share of the work after which the remaining time is estimated; a choice


@dataclass
class _OverallStage:
    """Steps of one kind."""

    what: str  # the units of work
    done: int  # how many are finished
    total: int  # how many there are
    began: float  # when the first was reported

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.done >= self.total

    @property
    def words(self) -> str:
        """For example ``nodes 3 of 10``."""
        if self.total >= MANY:
            return f"{self.what} {self.done / self.total:.0%}"
        return f"{self.what} {self.done} of {self.total}"


@dataclass
class Overall:
    """The steps of a command that are under way."""

    # the outermost steps of the command, in whose share its progress is stated; "" for whatever is
    # outermost. What comes before is only named.
    main: str = ""
    clock: Callable[[], float] = time.monotonic  # returns the time in seconds
    stages: list[_OverallStage] = field(default_factory=list)  # from the outermost to the innermost
    _share: float = 0.0
    _since: tuple[float, float] | None = None  # when the main steps began, and their share then

    def heard(self, what: str, done: int, total: int) -> _OverallStage | None:
        """Take note of a step."""
        if what == self.main and self.stages and self.stages[0].what != what:
            self.stages.clear()
        self._hold(self._depth(what), what, done, total)
        self._measure()
        outermost = self.stages[0]
        return outermost if outermost.finished and len(self.stages) == 1 else None

    def _depth(self, what: str) -> int:
        """The depth of a stage: its own if it is under way, otherwise below the unfinished ones."""
        for depth, stage in enumerate(self.stages):
            if stage.what == what:
                return depth
        for depth, stage in enumerate(self.stages):
            if stage.finished:
                return depth
        return len(self.stages)

    def _hold(self, depth: int, what: str, done: int, total: int) -> None:
        began = self.clock()
        if depth < len(self.stages):
            before = self.stages[depth]
            if before.what == what and not before.finished:
                began = before.began
        self.stages[depth:] = [_OverallStage(what, done, max(1, total), began)]

    def _measure(self) -> None:
        """Compute the share that is done, which never falls while the same steps are under way."""
        if self.main and self.stages[0].what != self.main:
            return
        share = 0.0
        for stage in reversed(self.stages):
            share = min(1.0, (stage.done + share) / stage.total)
        if self._since is None or (not self.main and share < self._share and self._is_new()):
            self._since = (self.stages[0].began, share)
            self._share = share
        self._share = max(self._share, share)

    def _is_new(self) -> bool:
        """Whether the outermost stage began after the share was last counted from zero."""
        return self._since is not None and self.stages[0].began > self._since[0]

    @property
    def share(self) -> float | None:
        """The share of the work that is done; None before the main steps begin."""
        return None if self._since is None else self._share

    @property
    def words(self) -> str:
        """The steps under way, the outermost first; single steps inside are only named."""
        said = []
        for depth, stage in enumerate(self.stages):
            if depth and stage.total == 1:
                said.append(stage.what)
            else:
                said.append(stage.words)
        return ", ".join(said)

    def remaining(self) -> float | None:
        """Return the estimated remaining seconds; None if too little is done to tell."""
        if self._since is None:
            return None
        began, before = self._since
        gained = self._share - before
        if gained < SETTLED or self._share >= 1.0:
            return None
        return (self.clock() - began) * (1.0 - self._share) / gained
