"""What an audit does, as a value: a scenario and its table ``[audit]``, fixed before any data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import InitVar, asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from leakaudit import registry
from leakaudit._util import toml_file
from leakaudit.adversary import Adversary
from leakaudit.errors import LeakauditError, suggest
from leakaudit.protocols.scenario import Scenario
from leakaudit.trace import Json

NOISES = ("exact", "claim")
LISTS = ("epsilon", "adversaries", "attacks", "nodes")


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
    epsilon: tuple[float, ...] = ()
    delta: float | None = None
    noise: str = "exact"
    constant: str = "sigma"
    sensitivity: float | None = None
    smoothness: float | None = None
    adversaries: tuple[str, ...] = ("eavesdropper",)
    attacks: tuple[str, ...] = ("auto",)
    set: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seeds: int = 1
    nodes: tuple[int, ...] = ()
    gradients: int = 8
    alpha: float = 0.01
    psnr: float = 20.0
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
            raise LeakauditError(f"{table}: set.{unused[0]}: no such attack is in the plan{near}")
        if not self.adversaries or not self.attacks:
            raise LeakauditError(f"{table}: expected at least one adversary and one attack")

    def _check_numbers(self, table: str) -> None:
        for name in ("seeds", "gradients"):
            _check(table, name, "a whole number from 1", getattr(self, name), 1)
        for name in ("replays", "canary"):
            _check(table, name, "a whole number from 0", getattr(self, name), 0)
        _check(table, "candidates", "a whole number from 2", self.candidates, 2)
        if self.noise not in NOISES:
            raise LeakauditError(
                f"{table}: noise: expected one of {', '.join(NOISES)}, "
                f"got {self.noise!r}{suggest(str(self.noise), NOISES)}"
            )
        positive = all(_number(e) and e > 0 for e in self.epsilon)
        if not positive or len(set(self.epsilon)) < len(self.epsilon):
            raise LeakauditError(
                f"{table}: epsilon: expected different numbers above 0, inf for no noise, "
                f"got {list(self.epsilon)}"
            )
        for name, low, high in (("alpha", 0, 1), ("delta", 0, 1), ("sensitivity", 0, math.inf)):
            value = getattr(self, name)
            if value is not None and not (_number(value) and low < value < high):
                raise LeakauditError(
                    f"{table}: {name}: expected a number above {low} and below {high:g}, "
                    f"got {value!r}"
                )
        smoothness = self.smoothness
        if smoothness is not None and not (_number(smoothness) and 0 <= smoothness < math.inf):
            raise LeakauditError(
                f"{table}: smoothness: expected a number from 0, got {smoothness!r}"
            )

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
        values = toml_file.read(path, f"audit {path}")
        asked = toml_file.table(values, "audit", what=f"audit {path}")
        known = [f.name for f in fields(cls) if f.name != "scenario"]
        chosen: dict[str, Any] = {}
        for key, value in asked.items():
            if key not in known:
                raise LeakauditError(f"audit {path}: unknown key {key!r}{suggest(key, known)}")
            if key in LISTS and not isinstance(value, list):
                raise LeakauditError(f"audit {path}: {key}: expected a list, got {value!r}")
            chosen[key] = tuple(value) if key in LISTS else value
        return cls(Scenario.of(values, path), **chosen)

    def to_json(self) -> dict[str, Json]:
        """Everything that decides the audit; infinity is the text ``inf``."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {**plain, "epsilon": ["inf" if e == math.inf else e for e in self.epsilon]}


def _check(table: str, name: str, wanted: str, value: object, least: int) -> None:
    """Raise LeakauditError unless a value is a whole number from `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise LeakauditError(f"{table}: {name}: expected {wanted}, got {value!r}")


def _number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return not math.isnan(value)
