"""What a gate checks, as written in leakaudit.toml: frozen values, every key validated."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeAlias

from msgspec import Meta

from leakaudit._util.config import InvalidValue
from leakaudit._util.forms import Day, Growth, Nodes, Real, Settings, Words
from leakaudit._util.settings import inside
from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.core.quantities import MEASURES
from leakaudit.judging.gate.measures import AGGREGATES

LEVELS = ("off", "warn", "error")
LINT = (*LEVELS, "strict")
# Values that editors offer; they are validated below, with a suggestion of the nearest one.
Level: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(LEVELS)})]
Lint: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(LINT)})]
Aggregate: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(AGGREGATES)})]
Limited: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": [*MEASURES, "epsilon"]})]

Function = Callable[[int, Path], object]  # a program under test, called with a seed and a path


@dataclass(frozen=True)
class Check:
    """One program under test, its adversaries and attacks.

    Attributes:
        name: name of the check, without "/".
        run: ``module:function``, called with a seed and the path of the trace to write, or such a
            function itself.
        scenario: file name of a scenario, or its values; instead of `run`.
        tap: command of a program that ``leakaudit tap`` can record, instead of `run`. It runs in
            the folder of the configuration, once for each seed, which replaces ``{seed}`` and is
            LEAKAUDIT_SEED in its environment.
        describe: TOML file that describes the messages of `tap`; inferred from them if empty.
        truth: .npz file with the records x, y and node of all nodes, required by `tap`; read after
            each run, and ``{seed}`` is replaced as well.
        rounds: how many rounds the program of `tap` is to train, so that missing ones are noticed.
        adversaries: as for ``leakaudit attack --as``.
        attacks: names of attacks, or ``auto``.
        set: hyper-parameters of each attack.
        nodes: nodes to attack; None for all that hold data.
        gradients: largest number of gradients that an attack may use; None for no limit.
        sensitivity: largest change of a gradient if one record is exchanged; epsilon is computed
            for this sensitivity. None for that of the declared clip or of the claim; without one of
            them, there is no epsilon.
        delta: delta of the (epsilon, delta) guarantee.
        smoothness: Lipschitz constant of a node's gradients; without it, a protocol that does not
            release its models has no epsilon per record.
        lint: what to do if the recording contradicts its own declarations. ``error`` fails if they
            are refuted and warns if they do not follow, ``strict`` fails in both cases, ``warn`` in
            neither, ``off`` disables the lint.
        secure: kinds of messages that are encrypted when the program runs in practice, which a
            recording cannot show.
        undetermined: adversaries for whom the protocol is expected to determine nothing, so that
            nothing is attacked.
        timeout: most seconds that one run may take.

    Raises:
        LeakauditError: a value is out of range, or two of them contradict each other.
    """

    name: str
    run: str | Function = ""
    scenario: str | Mapping[str, object] = ""
    tap: str = ""
    describe: str = ""
    truth: str = ""
    rounds: int | None = None
    adversaries: Words = ("eavesdropper",)
    attacks: Words = ("auto",)
    set: Settings = field(default_factory=dict)
    nodes: Nodes | None = None
    gradients: int | None = None
    sensitivity: Real | None = None
    delta: Real = 1e-5
    smoothness: Real | None = None
    lint: Lint = "error"
    secure: Words = ()
    undetermined: Words = ()
    timeout: Real = 3600.0

    def __post_init__(self) -> None:
        where = f"check {self.name}"
        if self.smoothness is not None and not 0 <= self.smoothness < math.inf:
            raise InvalidValue(
                where, f"expected a number >= 0, got {self.smoothness}", "smoothness"
            )
        self._check_numbers(where)
        self._check_nodes(where)
        _one_of(where, "lint", self.lint, LINT)
        self._check_program(where)
        if "/" in self.name or not self.name:
            raise LeakauditError(f"check {self.name!r}: expected a name without '/'")
        if not self.timeout > 0:
            raise InvalidValue(where, f"expected seconds > 0, got {self.timeout:g}", "timeout")
        for who in self.undetermined:
            if who not in self.adversaries:
                near = suggest(who, self.adversaries)
                expected = f"expected one of the check's adversaries, got {who!r}{near}"
                raise InvalidValue(where, expected, "undetermined")
        if not self.adversaries or not self.attacks:
            raise InvalidValue(where, "expected at least one adversary and one attack")
        for attack in self.set:
            if attack not in self.attacks:
                near = suggest(attack, self.attacks)
                expected = f"expected one of the check's attacks, got {attack!r}{near}"
                raise InvalidValue(where, expected, "set", attack)

    def _check_numbers(self, where: str) -> None:
        if self.sensitivity is not None and not 0 < self.sensitivity < math.inf:
            raise InvalidValue(
                where, f"expected a number > 0, got {self.sensitivity:g}", "sensitivity"
            )
        if not 0 < self.delta < 1:
            raise InvalidValue(where, f"expected 0 < delta < 1, got {self.delta:g}", "delta")
        if self.gradients is not None and self.gradients < 1:
            raise InvalidValue(where, f"expected a number >= 1, got {self.gradients}", "gradients")

    def _check_nodes(self, where: str) -> None:
        if self.nodes is None:
            return
        if not self.nodes:
            expected = "expected at least one node, got none; omit the key for all nodes"
            raise InvalidValue(where, expected, "nodes")
        if len(set(self.nodes)) < len(self.nodes) or min(self.nodes) < 0:
            expected = f"expected distinct numbers >= 0, got {list(self.nodes)}"
            raise InvalidValue(where, expected, "nodes")

    def _check_program(self, where: str) -> None:
        if sum(map(bool, (self.run, self.scenario, self.tap))) != 1:
            expected = (
                "expected one of run = 'module:function', tap = 'torchrun … train.py' and "
                "scenario = 'file.toml'"
            )
            raise InvalidValue(where, expected)
        self._check_tap(where)
        if not isinstance(self.run, str) or not self.run:
            return
        module, colon, function = self.run.partition(":")
        if not (module and colon and function):
            raise InvalidValue(where, f"expected 'module:function', got {self.run!r}", "run")

    def _check_tap(self, where: str) -> None:
        for name in ("describe", "truth", "rounds"):
            if getattr(self, name) and not self.tap:
                raise InvalidValue(where, "expected only with tap = 'torchrun … train.py'", name)
        if not self.tap:
            return
        try:
            words = shlex.split(self.tap)
        except ValueError as error:
            raise InvalidValue(where, f"expected a command: {error}", "tap") from None
        if not words:
            raise InvalidValue(where, "expected a command, got only spaces", "tap")
        if not self.truth:
            expected = (
                "truth is missing, without which no reconstruction can be scored; save the "
                "records as arrays x, y and node, and set truth = 'records.npz'"
            )
            raise InvalidValue(where, expected, "tap")
        if self.rounds is not None and self.rounds < 1:
            raise InvalidValue(where, f"expected a number >= 1, got {self.rounds}", "rounds")

    @property
    def cells(self) -> list[str]:
        """Names of the cells."""
        return [
            cell_name(self.name, adversary, attack)
            for adversary in self.adversaries
            for attack in self.attacks
        ]


def cell_name(check: str, adversary: str, attack: str) -> str:
    """Return the name of a cell, ``check/adversary/attack``."""
    return f"{check}/{adversary}/{attack}"


@dataclass(frozen=True)
class Budget:
    """The largest allowed value of a measure; the last budget that matches a cell applies.

    Attributes:
        measure: name of a measure, or ``epsilon``.
        most: largest allowed value.
        cells: glob over names of cells.
        level: ``error``, ``warn`` or ``off``.
        aggregate: how the numbers of all seeds are combined.

    Raises:
        LeakauditError: a value is unknown, or `most` is not finite.
    """

    measure: Limited
    most: Real
    cells: str = "*"
    level: Level = "error"
    aggregate: Aggregate = "worst"

    def __post_init__(self) -> None:
        _one_of("budget", "measure", self.measure, (*MEASURES, "epsilon"))
        _finite("budget", self.most, "most")
        _one_of("budget", "level", self.level, LEVELS)
        _one_of("budget", "aggregate", self.aggregate, AGGREGATES)


@dataclass(frozen=True)
class Acceptance:
    """A finding that someone accepts until a date.

    Attributes:
        id: name of the acceptance.
        reason: why the finding is accepted.
        owner: who accepts it.
        expires: last day on which it applies.
        cells: glob over names of cells.
        measure: glob over measures.
        most: largest value to which it applies; None for any.

    Raises:
        LeakauditError: `most` is not finite.
    """

    id: str
    reason: str
    owner: str
    expires: Day
    cells: str = "*"
    measure: str = "*"
    most: Real | None = None

    def __post_init__(self) -> None:
        if self.most is not None:
            _finite(f"accept {self.id}", self.most, "most")


@dataclass(frozen=True)
class Gate:
    """The complete configuration of a gate.

    Attributes:
        checks: programs under test.
        budgets: limits on measures.
        accepted: findings that do not fail the gate.
        seeds: number of runs of each check.
        alpha: probability of a false regression in a whole run of the gate.
        baseline: file beside the configuration, "" for none.
        compare: measures that may not grow over the baseline.
        tolerance: growth of each measure that is ignored; by default, the measure's own tolerance.
        folder: folder of the configuration; names of files and modules are relative to it.
        source: name of the configuration file, for messages.

    Raises:
        LeakauditError: a value is out of range or unknown.
    """

    checks: tuple[Check, ...] = ()
    budgets: tuple[Budget, ...] = ()
    accepted: tuple[Acceptance, ...] = ()
    seeds: int = 16
    alpha: Real = 0.001
    baseline: str = "leakage-baseline.json"
    compare: Words = ("gain", "exact", "identified", "labels")
    tolerance: Growth = field(default_factory=dict)
    folder: Path = Path()
    source: str = "leakaudit.toml"

    def __post_init__(self) -> None:
        if self.seeds < 1 or not 0 < self.alpha < 1:
            expected = "expected seeds >= 1 and 0 < alpha < 1"
            raise InvalidValue("gate", f"{expected}, got {self.seeds} and {self.alpha}")
        for name, growth in self.tolerance.items():
            _finite("gate", growth, "tolerance", name)
        for name in self.compare:
            _one_of("gate", "compare", name, MEASURES)
        for name in self.tolerance:
            _one_of("gate", "tolerance", name, MEASURES)
        ids = [acceptance.id for acceptance in self.accepted]
        repeated = sorted(one for one in set(ids) if ids.count(one) > 1)
        if repeated:
            raise LeakauditError(f"accept: expected unique ids, got {repeated[0]!r} twice")

    @property
    def baseline_path(self) -> Path | None:
        """Path of the baseline, inside the folder of the configuration; None for none."""
        if not self.baseline:
            return None
        if not inside(self.folder, self.baseline):
            expected = "expected a file inside the folder of the configuration"
            raise InvalidValue("gate", f"{expected}, got {self.baseline!r}", "baseline")
        return self.folder / self.baseline

    def only(self, names: Iterable[str]) -> Gate:
        """Return the gate restricted to the named checks; if none is named, all."""
        wanted = list(names)
        known = [check.name for check in self.checks]
        for name in wanted:
            if name not in known:
                raise LeakauditError(f"check {name!r} does not exist{suggest(name, known)}")
        if not wanted:
            return self
        return replace(self, checks=tuple(check for check in self.checks if check.name in wanted))


def _finite(where: str, value: float, *at: str) -> None:
    if not math.isfinite(value):
        raise InvalidValue(where, f"expected a finite number, got {value:g}", *at)


def _one_of(where: str, key: str, value: str, known: Iterable[str]) -> None:
    options = list(known)
    if value not in options:
        raise InvalidValue(where, f"unknown {value!r}{suggest(value, options)}", key)
