"""The plan of a sweep as a value: a scenario, and a table ``[sweep]`` that defines what varies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from leakaudit._util import config
from leakaudit._util.forms import Nodes, Number, Numbers, Settings, Words
from leakaudit._util.plain import encoded, is_number
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import suggest
from leakaudit.core.trace import Setting
from leakaudit.judging.auditing.plan import AuditPlan
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks import weights

NO_ATTACK = "none"  # the attack of a cell that only trains, and its adversary

WEIGHTS = "weights"  # an axis whose values are files

Values = Mapping[str, tuple[Setting, ...]]


@dataclass(frozen=True)
class _OwnAxis:
    of: str  # name of the attack or the victim
    key: str  # name of the hyper-parameter or constant
    values: tuple[Setting, ...]

    @property
    def name(self) -> str:
        return f"{self.of}.{self.key}"


@dataclass(frozen=True)
class SweepPlan:
    """The grid of a sweep."""

    scenario: Scenario  # what all cells have in common
    attacks: Words = ("auto",)  # names of attacks, or `auto`; empty or `none` only trains
    adversaries: Words = ("eavesdropper",)  # as for `attack --as`
    seeds: tuple[int, ...] = (0,)  # seeds of the scenario and the attack
    # values of fields of the scenario, and of constants that every victim or the model has
    over: Values = field(default_factory=dict)
    # attack or victim -> its hyper-parameter or constant -> values, for its cells only
    own: Mapping[str, Values] = field(default_factory=dict)
    # hyper-parameters and constants by attack or victim
    set: Settings = field(default_factory=dict)
    # values of the privacy parameter for the worst of the adversaries; empty keeps the scenario's
    # own constants
    epsilon: Numbers = ()
    noise: str = "exact"  # as in an audit, like the next four
    constant: str = "sigma"
    delta: Number | None = None
    sensitivity: Number | None = None
    smoothness: Number | None = None
    nodes: Nodes = ()  # nodes to attack, empty for all
    gradients: int = 8  # largest number of gradients of a leak
    psnr: Number = 20.0  # PSNR in dB from which a record counts as recovered
    figure: str | None = None  # name of the axis of the figure, None to choose one automatically
    bounds: bool = False  # whether the exact epsilon of the worst view of each cell is computed
    device: str = "cpu"  # device on which the cells are computed

    def __post_init__(self) -> None:
        """Validate everything that does not need data."""
        if not self.adversaries or not self.seeds:
            raise config.InvalidValue("sweep", "expected at least one adversary and one seed")
        if self.attacks == (NO_ATTACK,):
            object.__setattr__(self, "attacks", ())
        if not (self.attacks or self.scenario.curves or self.bounds):
            says = "expected an attack, or a scenario with curves = true, which is only trained"
            raise config.InvalidValue("sweep", says, "attacks")
        for name in self.attacks:
            if name != "auto":
                registry.get("attacks", name)
        parsed = map(str, map(Adversary.parse, self.adversaries))
        object.__setattr__(self, "adversaries", tuple(dict.fromkeys(parsed)))
        if not is_number(self.psnr):
            expected = f"expected a number of dB, got {self.psnr!r}"
            raise config.InvalidValue("sweep", expected, "psnr")
        for name, values in (("seeds", self.seeds), ("nodes", self.nodes)):
            if not all(map(_is_index, values)) or len({*values}) < len(values):
                expected = f"expected distinct integers >= 0, got {list(values)}"
                raise config.InvalidValue("sweep", expected, name)
        known = (*self.victims, *self.attacks)
        for name in (*self.own, *self.set):
            if name not in known:
                says = "expected the name of an attack or a victim of the sweep"
                raise config.InvalidValue("sweep", f"{says}{suggest(name, known)}", name)
        self.noises(self.scenario, None)
        if self.figure is not None and self.figure not in self.axes:
            says = f"{self.figure!r} does not vary in this sweep{suggest(self.figure, self.axes)}"
            raise config.InvalidValue("sweep", says, "figure")

    def pinned(self) -> SweepPlan:
        """Return the plan with the digests of all weights, on which results depend."""
        over = dict(self.over)
        if WEIGHTS in over:
            over[WEIGHTS] = tuple(weights.pinned(str(place)) for place in over[WEIGHTS])
        return replace(self, scenario=self.scenario.pinned(), over=over)

    @property
    def victims(self) -> tuple[str, ...]:
        """Names of the victims."""
        return tuple(map(str, self.over.get("victim", (self.scenario.victim,))))

    @property
    def shared_axes(self) -> dict[str, tuple[Setting, ...]]:
        """What varies in all cells besides attack, adversary and seed."""
        shared = dict(self.over)
        if self.epsilon:
            shared["epsilon"] = tuple(encoded(epsilon) for epsilon in self.epsilon)
        return shared

    @property
    def own_axes(self) -> list[_OwnAxis]:
        """What varies in the cells of one attack or victim."""
        found = []
        for of, table in self.own.items():
            for key, values in table.items():
                found.append(_OwnAxis(of, key, values))
        return found

    @property
    def axes(self) -> dict[str, tuple[Setting, ...]]:
        """All axes: name -> values; ``dlg.steps`` belongs to one attack or victim."""
        found = self.shared_axes
        for axis in self.own_axes:
            found[axis.name] = axis.values
        return found

    def noises(self, scenario: Scenario, epsilon: float | None) -> AuditPlan:
        """Return the audit plan that sets the epsilon of a cell, or of all if None."""
        epsilons = self.epsilon if epsilon is None else (epsilon,)
        return AuditPlan(
            scenario,
            epsilon=epsilons,
            noise=self.noise,
            constant=self.constant,
            delta=self.delta,
            sensitivity=self.sensitivity,
            smoothness=self.smoothness,
            adversaries=self.adversaries,
            nodes=self.nodes,
            gradients=self.gradients,
            table="sweep",
        )


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
