"""What a gate checks, as written in leakaudit.toml or under ``[tool.leakaudit]``: frozen values, every key validated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit.errors import LeakauditError, suggest
from leakaudit.gate.measures import AGGREGATES, MEASURES

if TYPE_CHECKING:
    from leakaudit.trace import Json

LEVELS = ("off", "warn", "error")
LINT = (*LEVELS, "strict")


@dataclass(frozen=True)
class Check:
    """One program under test and who attacks it how.

    run: ``module:function``, called with a seed and the path of the trace that it writes, or a
    function of the same arguments. scenario: a scenario's file name or its values, in place of run.
    attacks: names or ``auto``; set: their hyper-parameters by attack. adversaries: as for
    ``leakaudit attack --as``. nodes: whose inputs, None for all. gradients: used at most.
    sensitivity, delta: of epsilon. smoothness: Lipschitz constant of a node's gradients, without
    which protocols that do not release their models have no epsilon for records. lint: what the
    recording says of its own declarations; ``error`` fails where it refutes them and warns where
    they do not follow, ``strict`` fails on both, ``warn`` on neither, ``off`` does not look.
    secure: kinds of messages that are encrypted where the program runs; no recording can show that,
    so it is declared here. undetermined: adversaries for whom it is expected that the protocol
    determines nothing, so that nothing can be attacked. timeout: seconds that one run may take.
    """

    name: str
    run: Any = ""
    scenario: str | Mapping[str, Json] = ""
    adversaries: tuple[str, ...] = ("eavesdropper",)
    attacks: tuple[str, ...] = ("auto",)
    set: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    nodes: tuple[int, ...] | None = None
    gradients: int | None = None
    sensitivity: float = 1.0
    delta: float = 1e-5
    smoothness: float | None = None
    lint: str = "error"
    secure: tuple[str, ...] = ()
    undetermined: tuple[str, ...] = ()
    timeout: float = 3600.0

    def __post_init__(self) -> None:
        if self.smoothness is not None and not 0 <= self.smoothness < math.inf:
            raise LeakauditError(
                f"check {self.name}: smoothness: expected a number >= 0, got {self.smoothness}"
            )
        self._numbers()
        _one_of(f"check {self.name}", "lint", self.lint, LINT)
        if bool(self.run) == bool(self.scenario):
            raise LeakauditError(
                f"check {self.name}: expected either run = 'module:function' or scenario = 'file.toml'"
            )
        if (
            isinstance(self.run, str)
            and self.run
            and (":" not in self.run or not all(self.run.split(":", 1)))
        ):
            raise LeakauditError(
                f"check {self.name}: run: expected 'module:function', got {self.run!r}"
            )
        if "/" in self.name or not self.name:
            raise LeakauditError(f"check {self.name!r}: expected a name without '/'")
        if not self.timeout > 0:
            raise LeakauditError(
                f"check {self.name}: timeout: expected seconds > 0, got {self.timeout:g}"
            )
        for who in self.undetermined:
            if who not in self.adversaries:
                raise LeakauditError(
                    f"check {self.name}: undetermined: no adversary {who!r} here{suggest(who, self.adversaries)}"
                )
        if not self.adversaries or not self.attacks:
            raise LeakauditError(
                f"check {self.name}: expected at least one adversary and one attack"
            )
        for attack in self.set:
            if attack not in self.attacks:
                raise LeakauditError(
                    f"check {self.name}: set.{attack}: no such attack in this check{suggest(attack, self.attacks)}"
                )

    def _numbers(self) -> None:
        """Refuse values with which epsilon would mean nothing, or nothing would be attacked."""
        if not 0 < self.sensitivity < math.inf:
            raise LeakauditError(
                f"check {self.name}: sensitivity: expected a number > 0, got {self.sensitivity:g}"
            )
        if not 0 < self.delta < 1:
            raise LeakauditError(
                f"check {self.name}: delta: expected 0 < delta < 1, got {self.delta:g}"
            )
        if self.gradients is not None and self.gradients < 1:
            raise LeakauditError(
                f"check {self.name}: gradients: expected a number from 1 on, got {self.gradients}"
            )
        if self.nodes is None:
            return
        if not self.nodes:
            raise LeakauditError(
                f"check {self.name}: nodes: expected at least one node, got none; leave it out for all"
            )
        if len(set(self.nodes)) < len(self.nodes) or min(self.nodes) < 0:
            raise LeakauditError(
                f"check {self.name}: nodes: expected different numbers from 0 on, got {list(self.nodes)}"
            )

    @property
    def cells(self) -> list[str]:
        """Names of the cells, ``check/adversary/attack``."""
        return [
            f"{self.name}/{who}/{attack}" for who in self.adversaries for attack in self.attacks
        ]


@dataclass(frozen=True)
class Budget:
    """The largest value of a measure that is allowed. cells: a glob; the last budget that fits a cell and measure holds."""

    measure: str
    most: float
    cells: str = "*"
    level: str = "error"
    aggregate: str = "worst"

    def __post_init__(self) -> None:
        _one_of("budget", "measure", self.measure, (*MEASURES, "epsilon"))
        _finite("budget", "most", self.most)
        _one_of("budget", "level", self.level, LEVELS)
        _one_of("budget", "aggregate", self.aggregate, AGGREGATES)


@dataclass(frozen=True)
class Acceptance:
    """A finding that somebody answers for until a date. cells, measure: globs. most: the value up to which, None for any."""

    id: str
    reason: str
    owner: str
    expires: date
    cells: str = "*"
    measure: str = "*"
    most: float | None = None

    def __post_init__(self) -> None:
        if self.most is not None:
            _finite(f"accept {self.id}", "most", self.most)


@dataclass(frozen=True)
class Gate:
    """Everything that a gate does.

    seeds: runs of a check. alpha: chance of a false regression in a whole run. baseline: file beside the configuration, "" for none.
    compare: measures that may not grow. tolerance: growth of each that is none. folder: where names of files and modules begin.
    """

    checks: tuple[Check, ...] = ()
    budgets: tuple[Budget, ...] = ()
    accepted: tuple[Acceptance, ...] = ()
    seeds: int = 16
    alpha: float = 0.01
    baseline: str = "leakage-baseline.json"
    compare: tuple[str, ...] = ("gain", "exact", "identified", "labels")
    tolerance: Mapping[str, float] = field(default_factory=dict)
    folder: Path = Path()
    source: str = "leakaudit.toml"

    def __post_init__(self) -> None:
        if self.seeds < 1 or not 0 < self.alpha < 1:
            raise LeakauditError(
                f"gate: expected seeds >= 1 and 0 < alpha < 1, got {self.seeds} and {self.alpha}"
            )
        for name, growth in self.tolerance.items():
            _finite("gate", f"tolerance.{name}", growth)
        for name in (*self.compare, *self.tolerance):
            _one_of("gate", "compare and tolerance", name, MEASURES)
        if repeated := sorted(
            {a.id for a in self.accepted if [b.id for b in self.accepted].count(a.id) > 1}
        ):
            raise LeakauditError(f"accept: the id {repeated[0]!r} is there twice")

    @property
    def baseline_path(self) -> Path | None:
        """Where the baseline lies, None for none."""
        return self.folder / self.baseline if self.baseline else None

    def only(self, names: Iterable[str]) -> Gate:
        """Return the gate with these checks alone, all of them where no name is given; raises LeakauditError for one that is not there."""
        wanted = list(names)
        known = [c.name for c in self.checks]
        for name in wanted:
            if name not in known:
                raise LeakauditError(f"there is no check {name!r}{suggest(name, known)}")
        return (
            replace(self, checks=tuple(c for c in self.checks if c.name in wanted))
            if wanted
            else self
        )


def _finite(where: str, key: str, value: float) -> None:
    if not math.isfinite(value):
        raise LeakauditError(f"{where}: {key}: expected a finite number, got {value:g}")


def _one_of(where: str, key: str, value: str, known: Iterable[str]) -> None:
    options = list(known)
    if value not in options:
        raise LeakauditError(f"{where}: {key}: unknown {value!r}{suggest(value, options)}")
