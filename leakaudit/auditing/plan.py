"""What an audit does, as a value: a scenario, and its table ``[audit]``, fixed before any data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import InitVar, asdict, dataclass, field, fields
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

    epsilon: grid; inf is without noise, empty keeps the scenario's own constants. noise: whether
    the ``exact`` view of the worst of the adversaries has that epsilon, or the paper's ``claim``
    says so. constant: of the victim, by which the exact view is set. delta, sensitivity: as the
    claim assumes where not given, else 1e-5 and 1. smoothness: Lipschitz constant of a node's
    gradients, without which protocols that do not release their models have no epsilon for records.
    adversaries: as for ``attack --as``. attacks: names, or ``auto``; set: their hyper-parameters.
    seeds: runs a point of the grid, each with other records, noise and start. nodes: attacked, all
    by default; the statistics are of the first alone. gradients: of a leak at most. alpha: chance
    of a false alarm of the whole audit. psnr: dB from which a reconstruction counts as a success.
    candidates, replays: the target is drawn so often from so many known records, and identified by
    likelihood. canary: replays with and without a record, together. one_run: canaries of a single
    run, where a node holds several records.
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
        for name in ("seeds", "gradients"):
            _check(table, name, "a whole number from 1", getattr(self, name), 1)
        for name in ("replays", "canary"):
            _check(table, name, "a whole number from 0", getattr(self, name), 0)
        _check(table, "candidates", "a whole number from 2", self.candidates, 2)
        if self.noise not in NOISES:
            raise LeakauditError(
                f"{table}: noise: expected one of {', '.join(NOISES)}, got {self.noise!r}{suggest(str(self.noise), NOISES)}"
            )
        if not all(_number(e) and e > 0 for e in self.epsilon) or len(set(self.epsilon)) < len(
            self.epsilon
        ):
            raise LeakauditError(
                f"{table}: epsilon: expected different numbers above 0, inf for no noise, got {list(self.epsilon)}"
            )
        for name, low, high in (("alpha", 0, 1), ("delta", 0, 1), ("sensitivity", 0, math.inf)):
            value = getattr(self, name)
            if value is not None and not (_number(value) and low < value < high):
                raise LeakauditError(
                    f"{table}: {name}: expected a number above {low} and below {high:g}, got {value!r}"
                )
        if self.smoothness is not None and not (
            _number(self.smoothness) and 0 <= self.smoothness < math.inf
        ):
            raise LeakauditError(
                f"{table}: smoothness: expected a number from 0, got {self.smoothness!r}"
            )
        object.__setattr__(
            self,
            "adversaries",
            tuple(dict.fromkeys(str(Adversary.parse(who)) for who in self.adversaries)),
        )
        for name in self.attacks:
            if name != "auto":
                registry.configure(registry.get("attacks", name), dict(self.set.get(name, {})))
        if unused := [name for name in self.set if name not in self.attacks]:
            raise LeakauditError(
                f"{table}: set.{unused[0]}: no such attack is in the plan{suggest(unused[0], self.attacks)}"
            )
        if not self.adversaries or not self.attacks:
            raise LeakauditError(f"{table}: expected at least one adversary and one attack")

    @classmethod
    def from_toml(cls, path: Path) -> AuditPlan:
        """Read a file with a scenario and a table ``[audit]``, which may be absent; unknown keys are refused with the nearest."""
        values = toml_file.read(path, f"audit {path}")
        asked = toml_file.table(values, "audit", what=f"audit {path}")
        known = [f.name for f in fields(cls) if f.name != "scenario"]
        for key, value in asked.items():
            if key not in known:
                raise LeakauditError(f"audit {path}: unknown key {key!r}{suggest(key, known)}")
            if key in LISTS and not isinstance(value, list):
                raise LeakauditError(f"audit {path}: {key}: expected a list, got {value!r}")
        chosen: dict[str, Any] = {k: tuple(v) if k in LISTS else v for k, v in asked.items()}
        return cls(Scenario.of(values, path), **chosen)

    def to_json(self) -> dict[str, Json]:
        """Everything that decides the audit; infinity is the text ``inf``."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {**plain, "epsilon": ["inf" if e == math.inf else e for e in self.epsilon]}


def _check(table: str, name: str, wanted: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise LeakauditError(f"{table}: {name}: expected {wanted}, got {value!r}")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
