"""The plan of an audit as a value: a scenario and its table ``[audit]``, fixed before any data."""

from __future__ import annotations

import math
from dataclasses import InitVar, asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from leakaudit._util import config
from leakaudit._util.forms import Nodes, Number, Numbers, Settings, Words, form
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import suggest
from leakaudit.core.trace import Json
from leakaudit.protocols.scenario import Scenario

NOISES = ("exact", "claim")


@dataclass(frozen=True)
class AuditPlan:
    """The grid and its tests."""

    scenario: Scenario
    # points of the grid; inf means without noise, empty keeps the scenario's constants
    epsilon: Numbers = ()
    delta: Number | None = None  # delta of all epsilons; None for that of the claim, otherwise 1e-5
    # what these epsilons refer to: the `exact` view bound of the worst adversary, or the `claim` of
    # the paper
    noise: str = "exact"
    constant: str = "sigma"  # the constant of the victim that sets the view bound
    # largest change of a gradient if one record is exchanged; None for the value that the claim
    # assumes, otherwise 1
    sensitivity: Number | None = None
    # Lipschitz constant of a node's gradients, without which protocols that do not release their
    # models have no epsilon per record; None if it is not known
    smoothness: Number | None = None
    adversaries: Words = ("eavesdropper",)  # as for `attack --as`
    attacks: Words = ("auto",)  # names of attacks, or `auto`
    set: Settings = field(default_factory=dict)  # hyper-parameters of attacks by name
    seeds: int = 1  # runs per point of the grid, each with different records, noise and start
    nodes: Nodes = ()  # nodes to attack; empty for all. The statistics refer only to the first one.
    gradients: int = 8  # largest number of gradients of a leak
    alpha: Number = 0.01  # probability of a false alarm in the whole audit
    psnr: Number = 20.0  # PSNR in dB from which a reconstruction counts as a success
    candidates: int = 10  # number of known records from which the target of a replay is drawn
    replays: int = 200  # number of times that a target is drawn and identified by likelihood
    canary: int = 200  # number of replays with and without a record, together
    # whether canaries of a single run are used, if a node holds several records
    one_run: bool = False
    table: InitVar[str] = "audit"  # named in errors: the values may come from another table

    def __post_init__(self, table: str) -> None:
        """Validate everything that does not need data."""
        self._check_numbers(table)
        # The same adversary can be written in several ways: normalise, and keep each one once.
        written = dict.fromkeys(str(Adversary.parse(who)) for who in self.adversaries)
        object.__setattr__(self, "adversaries", tuple(written))
        for name in self.attacks:
            if name != "auto":
                registry.configure(registry.get("attacks", name), dict(self.set.get(name, {})))
        if unused := [name for name in self.set if name not in self.attacks]:
            near = suggest(unused[0], self.attacks)
            expected = f"expected one of the plan's attacks, got {unused[0]!r}{near}"
            raise config.InvalidValue(table, expected, "set", unused[0])
        if not self.adversaries or not self.attacks:
            raise config.InvalidValue(table, "expected at least one adversary and one attack")

    def _check_numbers(self, table: str) -> None:
        for name in ("seeds", "gradients"):
            _check(table, name, "a whole number from 1", getattr(self, name), 1)
        for name in ("replays", "canary"):
            _check(table, name, "a whole number from 0", getattr(self, name), 0)
        _check(table, "candidates", "a whole number from 2", self.candidates, 2)
        if self.noise not in NOISES:
            near = suggest(str(self.noise), NOISES)
            expected = f"expected one of {', '.join(NOISES)}, got {self.noise!r}{near}"
            raise config.InvalidValue(table, expected, "noise")
        positive = all(_number(e) and e > 0 for e in self.epsilon)
        if not positive or len(set(self.epsilon)) < len(self.epsilon):
            expected = "expected distinct numbers > 0 (inf for no noise)"
            raise config.InvalidValue(table, f"{expected}, got {list(self.epsilon)}", "epsilon")
        for name, low, high in (("alpha", 0, 1), ("delta", 0, 1), ("sensitivity", 0, math.inf)):
            value = getattr(self, name)
            if value is not None and not (_number(value) and low < value < high):
                expected = f"expected a number above {low} and below {high:g}, got {value!r}"
                raise config.InvalidValue(table, expected, name)
        smoothness = self.smoothness
        if smoothness is not None and not (_number(smoothness) and 0 <= smoothness < math.inf):
            expected = f"expected a finite number >= 0, got {smoothness!r}"
            raise config.InvalidValue(table, expected, "smoothness")

    @cached_property
    def parsed(self) -> tuple[Adversary, ...]:
        """The adversaries as values, in the order of `adversaries`."""
        return tuple(Adversary.parse(who) for who in self.adversaries)

    @classmethod
    def from_toml(cls, path: Path) -> AuditPlan:
        """Read a file with a scenario and a table ``[audit]``, which may be absent."""
        file = config.read(path, f"plan {path}")
        asked = file.table("audit")
        scenario = Scenario.of(replace(file, file=f"scenario {path}", name=f"scenario {path}"))
        return asked.decode(FORM, partial(cls, scenario, table=""))

    def to_json(self) -> dict[str, Json]:
        """Return everything that defines the audit; infinity is the text ``inf``."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {**plain, "epsilon": ["inf" if e == math.inf else e for e in self.epsilon]}


def _check(table: str, name: str, wanted: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise config.InvalidValue(table, f"expected {wanted}, got {value!r}", name)


def _number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # an integer beyond the largest float
        return False


FORM = form(AuditPlan, "scenario")
