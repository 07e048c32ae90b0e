"""The cells of a sweep: one scenario, adversary and attack each, and the hash that names its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product

from leakaudit import registry
from leakaudit.adversary import Adversary
from leakaudit.errors import LeakauditError, suggest
from leakaudit.protocols.scenario import Scenario
from leakaudit.results import provenance
from leakaudit.sweeping.plan import SweepPlan, finite
from leakaudit.tasks import models
from leakaudit.tasks.build_task import SETTINGS
from leakaudit.trace import Json

DEPEND = ("leakaudit", "torch", "numpy", "scipy")  # packages whose version a result depends on
FIELDS = tuple(f.name for f in fields(Scenario) if f.name != "set")


@dataclass(frozen=True)
class Cell:
    """One cell. settings: of the attack. epsilon: None for the scenario's own constants. at: place on every axis that it has."""

    plan: SweepPlan = field(repr=False)
    scenario: Scenario
    adversary: str
    attack: str
    settings: Mapping[str, Json]
    epsilon: float | None
    at: Mapping[str, Json]

    def config(self) -> dict[str, Json]:
        """Everything that the result depends on, beside the versions of packages."""
        p, noise = self.plan, None
        if self.epsilon is not None:
            rest: dict[str, Json] = {
                "noise": p.noise,
                "constant": p.constant,
                "delta": p.delta,
                "sensitivity": p.sensitivity,
            }
            if (
                p.smoothness is not None
            ):  # left out otherwise, so that cells of earlier sweeps are found again
                rest["smoothness"] = p.smoothness
            noise = {
                "epsilon": finite([self.epsilon])[0],
                **rest,
                "adversaries": list(p.adversaries),
            }
        return {
            "scenario": {**asdict(self.scenario), "set": dict(self.scenario.set)},
            "adversary": self.adversary,
            "attack": self.attack,
            "settings": dict(self.settings),
            "epsilon": noise,
            "nodes": list(p.nodes),
            "gradients": p.gradients,
            "device": p.device,
        }

    def key(self, versions: Mapping[str, str | None]) -> str:
        """Name of its result: a digest of the configuration and the versions."""
        return provenance.digest({"cell": self.config(), "versions": dict(versions)})

    @property
    def words(self) -> str:
        """What a reader calls it."""
        return ", ".join(
            [
                *(f"{k}={v}" for k, v in self.at.items()),
                self.attack,
                f"seed {self.scenario.seed}",
                self.adversary,
            ]
        )


def versions() -> dict[str, str | None]:
    """Return the versions that results depend on."""
    known = provenance.versions()
    return {name: known[name] for name in DEPEND}


def expand(plan: SweepPlan) -> list[Cell]:
    """Return all cells, seed by seed, so that a sweep that is cut short has seen the whole grid.

    Raises LeakauditError for a constant or a hyper-parameter that is not there, or a value of another type.
    """
    grid = [
        (who, attack, point)
        for who in plan.adversaries
        for attack in plan.attacks
        for point in _points(plan, attack)
    ]
    made = [_cell(plan, who, attack, point) for who, attack, point in grid]
    return [
        replace(cell, scenario=replace(cell.scenario, seed=seed))
        for seed in plan.seeds
        for cell in made
    ]


def _points(plan: SweepPlan, attack: str) -> Iterator[dict[str, Json]]:
    """Every place on the axes that concern an attack and its victim."""
    owned = _owned(plan)
    for point in _product({k: v for k, v in plan.axes.items() if k not in owned}):
        victim = str(point.get("victim", plan.scenario.victim))
        mine = {k: v for k, v in owned.items() if k.split(".", 1)[0] in (attack, victim)}
        yield from ({**point, **more} for more in _product(mine))


def _owned(plan: SweepPlan) -> dict[str, tuple[Json, ...]]:
    return {
        f"{of}.{key}": values for of, table in plan.own.items() for key, values in table.items()
    }


def _product(axes: Mapping[str, Sequence[Json]]) -> Iterator[dict[str, Json]]:
    return (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))


def _cell(plan: SweepPlan, who: str, attack: str, point: Mapping[str, Json]) -> Cell:
    base, epsilon = plan.scenario, point.get("epsilon") if plan.epsilon else None
    owned = _owned(plan)
    named = {k: v for k, v in point.items() if k in FIELDS}
    victim = str(named.get("victim", base.victim))
    loose = {k: v for k, v in point.items() if k not in (*FIELDS, "epsilon", *owned)}

    def of(name: str) -> dict[str, Json]:
        mine = {
            k.split(".", 1)[1]: v
            for k, v in point.items()
            if k in owned and k.split(".", 1)[0] == name
        }
        return {**plan.set.get(name, {}), **mine}

    constants, settings = {**base.set, **loose, **of(victim)}, of(attack)
    scenario = replace(base, **named, set=constants)
    _, args = scenario.parts()
    _refuse(scenario, args)
    _attackable(plan, scenario, who)
    if attack == "auto" and settings:
        raise LeakauditError(
            f"sweep: auto: takes no hyper-parameters, got {', '.join(settings)}; name the attack that they are for"
        )
    if attack != "auto":
        settings = registry.values(registry.configure(registry.get("attacks", attack), settings))
    return Cell(
        plan,
        scenario,
        who,
        attack,
        settings,
        None if epsilon is None else float(epsilon),
        dict(point),
    )


def _attackable(plan: SweepPlan, scenario: Scenario, who: str) -> None:
    """Refuse nodes and adversaries that a scenario has not, and adversaries that leave nobody to attack."""
    adversary, nodes = Adversary.parse(who), plan.nodes or range(scenario.nodes)
    known = scenario.nodes + 1  # the server of a centralised protocol is the last
    for name, chosen, limit in (
        ("nodes", nodes, scenario.nodes),
        ("adversaries", adversary.corrupt, known),
    ):
        if missing := [n for n in chosen if n >= limit]:
            raise LeakauditError(
                f"sweep: {name}: there is no node {missing[0]}; a scenario of the sweep has nodes 0 to {scenario.nodes - 1}"
            )
    if all(n in adversary.corrupt for n in nodes):
        raise LeakauditError(f"sweep: nodes: adversary {who} leaves no node to attack")


def _refuse(scenario: Scenario, args: Mapping[str, Json]) -> None:
    """Refuse a constant that neither the victim nor a model of ours has, and say where one of a single victim belongs."""
    if scenario.model not in models.MODELS:
        return
    known = [*registry.parameters(models.MODELS[scenario.model]), *SETTINGS]
    both = [*registry.parameters(registry.get("victims", scenario.victim)), *known]
    for key in args:
        if key not in known:
            hint = suggest(key, both)
            where = "; a constant of one victim alone belongs to [sweep.set.VICTIM] or [sweep.over.VICTIM]"
            raise LeakauditError(
                f"sweep: neither {scenario.victim} nor {scenario.model} has a parameter {key!r}{hint}{where}"
            )
