"""What a sweep does, as a value: a scenario, and its table ``[sweep]`` with what varies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leakaudit import registry
from leakaudit.adversary import Adversary
from leakaudit.auditing.plan import AuditPlan
from leakaudit.errors import LeakauditError, suggest
from leakaudit.protocols.scenario import Scenario
from leakaudit.trace import Json

Values = Mapping[str, tuple[Json, ...]]
NOISE = (
    "noise",
    "constant",
    "delta",
    "sensitivity",
    "smoothness",
)  # how an epsilon is set, as in an audit


@dataclass(frozen=True)
class SweepPlan:
    """The grid.

    over: values of fields of the scenario, and of constants that every victim or the model has.
    own: attack or victim -> its hyper-parameter or constant -> values, for its cells alone. set:
    hyper-parameters and constants by attack or victim. epsilon, noise, constant, delta,
    sensitivity, smoothness: as in an audit, for the worst of the adversaries. attacks: names, or
    ``auto``. seeds: of the scenario and the attack. nodes: attacked, all by default. gradients: of
    a leak at most. psnr: dB from which a record counts as recovered. figure: the axis of the
    figure, by name.
    """

    scenario: Scenario
    attacks: tuple[str, ...] = ("auto",)
    adversaries: tuple[str, ...] = ("eavesdropper",)
    seeds: tuple[int, ...] = (0,)
    over: Values = field(default_factory=dict)
    own: Mapping[str, Values] = field(default_factory=dict)
    set: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    epsilon: tuple[float, ...] = ()
    noise: str = "exact"
    constant: str = "sigma"
    delta: float | None = None
    sensitivity: float | None = None
    smoothness: float | None = None
    nodes: tuple[int, ...] = ()
    gradients: int = 8
    psnr: float = 20.0
    figure: str | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Check what needs no data."""
        if not self.attacks or not self.adversaries or not self.seeds:
            raise LeakauditError("sweep: expected at least one attack, one adversary and one seed")
        for name in self.attacks:
            if name != "auto":
                registry.get("attacks", name)
        object.__setattr__(
            self,
            "adversaries",
            tuple(dict.fromkeys(str(Adversary.parse(who)) for who in self.adversaries)),
        )
        if (
            not isinstance(self.psnr, int | float)
            or isinstance(self.psnr, bool)
            or not math.isfinite(self.psnr)
        ):
            raise LeakauditError(f"sweep: psnr: expected a number of dB, got {self.psnr!r}")
        for name, values in (("seeds", self.seeds), ("nodes", self.nodes)):
            if not all(
                isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values
            ) or len({*values}) < len(values):
                raise LeakauditError(
                    f"sweep: {name}: expected different whole numbers from 0, got {list(values)}"
                )
        for name in (*self.own, *self.set):
            if name not in (*self.victims, *self.attacks):
                hint = suggest(name, (*self.victims, *self.attacks))
                raise LeakauditError(
                    f"sweep: {name}: there is neither such an attack nor such a victim in the sweep{hint}"
                )
        self.noises(self.scenario, None)
        if self.figure is not None and self.figure not in self.axes:
            raise LeakauditError(
                f"sweep: figure: {self.figure!r} does not vary in this sweep{suggest(self.figure, self.axes)}"
            )

    @property
    def victims(self) -> tuple[str, ...]:
        """Names of the victims."""
        return tuple(str(v) for v in self.over.get("victim", (self.scenario.victim,)))

    @property
    def axes(self) -> dict[str, tuple[Json, ...]]:
        """Everything that varies beside attack, adversary and seed: name -> values; ``dlg.steps`` is of one attack or victim."""
        owned = {
            f"{of}.{key}": values for of, table in self.own.items() for key, values in table.items()
        }
        return {**self.over, **({"epsilon": finite(self.epsilon)} if self.epsilon else {}), **owned}

    def noises(self, scenario: Scenario, epsilon: float | None) -> AuditPlan:
        """Return the audit's plan by which a cell's epsilon is set; checks it too."""
        said = {name: getattr(self, name) for name in NOISE}
        epsilons = self.epsilon if epsilon is None else (epsilon,)
        rest: dict[str, Any] = {
            "adversaries": self.adversaries,
            "nodes": self.nodes,
            "gradients": self.gradients,
        }
        try:
            return AuditPlan(scenario, epsilon=epsilons, **said, **rest)
        except LeakauditError as error:
            raise LeakauditError(str(error).replace("audit:", "sweep:", 1)) from None


def finite(epsilons: Iterable[float]) -> tuple[Json, ...]:
    """Return epsilons as JSON holds them: infinity is the text ``inf``."""
    return tuple("inf" if e == math.inf else e for e in epsilons)
