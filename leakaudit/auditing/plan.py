"""What an audit does, as a value: a scenario and its table ``[audit]``, fixed before any data."""

from __future__ import annotations

import math
from dataclasses import InitVar, asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from leakaudit import registry
from leakaudit._util import config
from leakaudit._util.forms import Nodes, Number, Numbers, Settings, Words, form
from leakaudit.adversary import Adversary
from leakaudit.errors import suggest
from leakaudit.protocols.scenario import Scenario
from leakaudit.trace import Json

NOISES = ("exact", "claim")


@dataclass(frozen=True)
class AuditPlan:
    """The grid and its tests.

    Attributes:
        scenario: The run that is audited.
        epsilon: Points of the grid; inf is without noise, empty keeps the scenario's own constants.
        delta: Of every figure; None takes the claim's, else 1e-5.
        noise: What has these epsilons: the ``exact`` view of the worst of the adversaries, or the
            paper's ``claim``.
        constant: Of the victim, by which the exact view is set.
        sensitivity: How far one record moves a gradient; None takes what the claim assumes, else 1.
        smoothness: Lipschitz constant of a node's gradients, without which protocols that do not
            release their models have no epsilon for records; None if it is not known.
        adversaries: As for ``attack --as``.
        attacks: Names, or ``auto``.
        set: Hyper-parameters of attacks, by name.
        seeds: Runs of a point of the grid, each with other records, noise and start.
        nodes: Nodes to attack; empty for all. The statistics are of the first one only.
        gradients: Largest number of gradients of a leak.
        alpha: Chance of a false alarm of the whole audit.
        psnr: dB from which a reconstruction counts as a success.
        candidates: Known records from which the target of a replay is drawn.
        replays: How often it is drawn and identified by likelihood.
        canary: Replays with and without a record, together.
        one_run: Whether canaries of a single run are used, if a node holds several records.
    """

    scenario: Scenario
    epsilon: Numbers = ()
    delta: Number | None = None
    noise: str = "exact"
    constant: str = "sigma"
    sensitivity: Number | None = None
    smoothness: Number | None = None
    adversaries: Words = ("eavesdropper",)
    attacks: Words = ("auto",)
    set: Settings = field(default_factory=dict)
    seeds: int = 1
    nodes: Nodes = ()
    gradients: int = 8
    alpha: Number = 0.01
    psnr: Number = 20.0
    candidates: int = 10
    replays: int = 200
    canary: int = 200
    one_run: bool = False
    table: InitVar[str] = "audit"  # that errors name: the values may come from another one

    def __post_init__(self, table: str) -> None:
        """Check what needs no data."""
        self._check_numbers(table)
        # The same adversary can be written in several ways; one form, and each once.
        written = dict.fromkeys(str(Adversary.parse(who)) for who in self.adversaries)
        object.__setattr__(self, "adversaries", tuple(written))
        for name in self.attacks:
            if name != "auto":
                registry.configure(registry.get("attacks", name), dict(self.set.get(name, {})))
        if unused := [name for name in self.set if name not in self.attacks]:
            near = suggest(unused[0], self.attacks)
            raise config.Wrong(table, f"no such attack is in the plan{near}", "set", unused[0])
        if not self.adversaries or not self.attacks:
            raise config.Wrong(table, "expected at least one adversary and one attack")

    def _check_numbers(self, table: str) -> None:
        for name in ("seeds", "gradients"):
            _check(table, name, "a whole number from 1", getattr(self, name), 1)
        for name in ("replays", "canary"):
            _check(table, name, "a whole number from 0", getattr(self, name), 0)
        _check(table, "candidates", "a whole number from 2", self.candidates, 2)
        if self.noise not in NOISES:
            near = suggest(str(self.noise), NOISES)
            expected = f"expected one of {', '.join(NOISES)}, got {self.noise!r}{near}"
            raise config.Wrong(table, expected, "noise")
        positive = all(_number(e) and e > 0 for e in self.epsilon)
        if not positive or len(set(self.epsilon)) < len(self.epsilon):
            expected = "expected different numbers above 0, inf for no noise"
            raise config.Wrong(table, f"{expected}, got {list(self.epsilon)}", "epsilon")
        for name, low, high in (("alpha", 0, 1), ("delta", 0, 1), ("sensitivity", 0, math.inf)):
            value = getattr(self, name)
            if value is not None and not (_number(value) and low < value < high):
                expected = f"expected a number above {low} and below {high:g}, got {value!r}"
                raise config.Wrong(table, expected, name)
        smoothness = self.smoothness
        if smoothness is not None and not (_number(smoothness) and 0 <= smoothness < math.inf):
            expected = f"expected a number from 0, got {smoothness!r}"
            raise config.Wrong(table, expected, "smoothness")

    @cached_property
    def parsed(self) -> tuple[Adversary, ...]:
        """The adversaries as values, in the order of `adversaries`."""
        return tuple(Adversary.parse(who) for who in self.adversaries)

    @classmethod
    def from_toml(cls, path: Path) -> AuditPlan:
        """Read a file with a scenario and a table ``[audit]``, which may be absent.

        Args:
            path: The file.

        Raises:
            LeakauditError: A key is not known (the nearest is named), or a value is out of range.
        """
        file = config.read(path, f"audit {path}")
        asked = file.table("audit")
        scenario = Scenario.of(replace(file, file=f"scenario {path}", name=f"scenario {path}"))
        return asked.decode(FORM, partial(cls, scenario, table=""))

    def to_json(self) -> dict[str, Json]:
        """Everything that decides the audit; infinity is the text ``inf``."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {**plain, "epsilon": ["inf" if e == math.inf else e for e in self.epsilon]}


def _check(table: str, name: str, wanted: str, value: object, least: int) -> None:
    """Raise LeakauditError unless a value is a whole number from `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise config.Wrong(table, f"expected {wanted}, got {value!r}", name)


def _number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return not math.isnan(value)


FORM = form(AuditPlan, "scenario")
