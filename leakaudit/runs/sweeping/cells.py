"""The cells of a sweep: a scenario, an adversary and an attack, and the name of the result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product

from msgspec import UNSET, UnsetType

from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Setting
from leakaudit.protocols.recording import check_settings
from leakaudit.protocols.scenario import Scenario
from leakaudit.reporting.results import provenance
from leakaudit.reporting.results.cell_files import CellConfig, NoiseConfig
from leakaudit.reporting.results.model import encoded, plain
from leakaudit.runs.sweeping.plan import NO_ATTACK, SweepPlan

MOST_CELLS = 50_000  # of one sweep, a choice: even a dry run takes some seconds for as many
ADVICE = "; put a constant of a single victim into [sweep.set.VICTIM] or [sweep.over.VICTIM]"
FIELDS = tuple(f.name for f in fields(Scenario) if f.name != "set")


@dataclass(frozen=True)
class PlannedCell:
    """One cell."""

    plan: SweepPlan = field(repr=False)  # the sweep that it belongs to
    scenario: Scenario
    adversary: str  # as for `attack --as`, or `none` without an attack
    attack: str  # name of the attack, `auto`, or `none`: the cell only trains
    settings: Mapping[str, object]  # hyper-parameters of the attack
    # privacy parameter for which the noise is set, None for the scenario's own constants
    epsilon: float | None
    at: Mapping[str, Setting]  # its value on every axis that applies to it

    def config(self) -> CellConfig:
        """Return everything that the result depends on, besides package versions."""
        return CellConfig(
            scenario={**asdict(self.scenario), "set": dict(self.scenario.set)},
            adversary=self.adversary,
            attack=self.attack,
            settings=dict(self.settings),
            epsilon=self._noise(),
            nodes=self.plan.nodes,
            gradients=self.plan.gradients,
            bounds=self.plan.bounds or UNSET,
            device=self.plan.device,
        )

    def _noise(self) -> NoiseConfig | None:
        if self.epsilon is None:
            return None
        plan = self.plan
        smoothness: float | UnsetType = UNSET
        if plan.smoothness is not None:
            smoothness = plan.smoothness
        return NoiseConfig(
            epsilon=encoded(self.epsilon),
            noise=plan.noise,
            constant=plan.constant,
            delta=plan.delta,
            sensitivity=plan.sensitivity,
            smoothness=smoothness,
            adversaries=plan.adversaries,
        )

    def key(self, versions: Mapping[str, str | None]) -> str:
        """Return the name of its result: a digest of configuration and versions."""
        try:
            config = plain(self.config())
        except TypeError as error:
            raise LeakauditError(f"settings: expected JSON values only: {error}") from None
        return provenance.digest({"cell": config, "versions": dict(versions)})

    @property
    def words(self) -> str:
        """Its name for readers."""
        places = [f"{axis}={value}" for axis, value in self.at.items()]
        if self.attack == NO_ATTACK:
            return ", ".join([*places, self.scenario.victim, f"seed {self.scenario.seed}"])
        return ", ".join([*places, self.attack, f"seed {self.scenario.seed}", self.adversary])


def expand(plan: SweepPlan) -> list[PlannedCell]:
    """Return all cells, seed by seed: an interrupted sweep has covered the whole grid."""
    made: list[PlannedCell] = []
    attacked = tuple(product(plan.adversaries, plan.attacks))
    for who, attack in attacked or ((NO_ATTACK, NO_ATTACK),):
        for point in _points(plan, attack):
            if (len(made) + 1) * len(plan.seeds) > MOST_CELLS:
                raise LeakauditError(
                    f"sweep: expected at most {MOST_CELLS} cells, got more from "
                    f"{len(plan.seeds)} seeds and the values of the axes; split the sweep"
                )
            made.append(_cell(plan, who, attack, point))
    cells = []
    for seed in plan.seeds:
        for cell in made:
            cells.append(replace(cell, scenario=replace(cell.scenario, seed=seed)))
    return cells


def _points(plan: SweepPlan, attack: str) -> Iterator[dict[str, Setting]]:
    """Yield the combinations of values on the axes of an attack and its victim."""
    for point in _product(plan.shared_axes):
        victim = str(point.get("victim", plan.scenario.victim))
        mine = {a.name: a.values for a in plan.own_axes if a.of in (attack, victim)}
        for more in _product(mine):
            yield {**point, **more}


def _product(axes: Mapping[str, Sequence[Setting]]) -> Iterator[dict[str, Setting]]:
    return (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))


def _cell(plan: SweepPlan, who: str, attack: str, point: Mapping[str, Setting]) -> PlannedCell:
    owned = {axis.name for axis in plan.own_axes}
    named = {}
    loose = {}
    for name, value in point.items():
        if name in FIELDS:
            named[name] = value
        elif name != "epsilon" and name not in owned:
            loose[name] = value
    victim = str(named.get("victim", plan.scenario.victim))
    constants = {**plan.scenario.set, **loose, **_settings_of(victim, plan, point)}
    # A value of an axis may be of any type; the scenario checks it.
    scenario = Scenario(**{**asdict(plan.scenario), **named, "set": constants})
    _, args = scenario.parts()
    check_settings(scenario, args, ADVICE)
    epsilon = float(point["epsilon"]) if plan.epsilon else None
    if attack == NO_ATTACK:
        return PlannedCell(plan, scenario, who, attack, {}, epsilon, dict(point))
    _attackable(plan, scenario, who)

    settings = _settings_of(attack, plan, point)
    if attack == "auto" and settings:
        raise LeakauditError(
            f"sweep: auto: expected no hyper-parameters, got {', '.join(settings)}; "
            "put them under the name of an attack"
        )
    if attack != "auto":
        settings = registry.values(registry.configure(registry.get("attacks", attack), settings))
    return PlannedCell(plan, scenario, who, attack, settings, epsilon, dict(point))


def _settings_of(name: str, plan: SweepPlan, point: Mapping[str, Setting]) -> dict[str, object]:
    settings = dict(plan.set.get(name, {}))
    for axis in plan.own_axes:
        if axis.of == name and axis.name in point:
            settings[axis.key] = point[axis.name]
    return settings


def _attackable(plan: SweepPlan, scenario: Scenario, who: str) -> None:
    """Reject nodes that a scenario lacks, and adversaries without a node to attack."""
    adversary = Adversary.parse(who)
    nodes = plan.nodes or range(scenario.nodes)
    _refuse_beyond("nodes", plan.nodes or (), scenario.nodes, scenario)
    # The server of a centralised protocol comes after all nodes.
    _refuse_beyond("adversaries", adversary.corrupt, scenario.nodes + 1, scenario)
    if adversary.corrupt.issuperset(nodes):
        raise LeakauditError(f"sweep: nodes: adversary {who} leaves no node to attack")


def _refuse_beyond(name: str, chosen: Iterable[int], limit: int, scenario: Scenario) -> None:
    for node in chosen:
        if node >= limit:
            raise LeakauditError(
                f"sweep: {name}: node {node} does not exist "
                f"(a scenario of the sweep has nodes 0 to {scenario.nodes - 1})"
            )
