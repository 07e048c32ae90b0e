"""A sweep's plan from TOML, and to JSON and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from msgspec import Meta, structs

from leakaudit._util import config
from leakaudit._util.decoding import TypeMismatch, decoded
from leakaudit._util.forms import form
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Json, Setting
from leakaudit.protocols.scenario import FORM, Scenario
from leakaudit.reporting.results.model import encoded
from leakaudit.runs.sweeping.plan import SweepPlan

TABLES = ("scenario", "sweep", "audit")  # tables that a file may have
MOST_SEEDS = 1_000_000  # a choice, far above what a sweep can compute
ELSEWHERE = ("set", "seed", "states", "curves", "epsilon")  # not allowed as an axis of `over`

# The table [sweep].
WRITTEN = form(
    SweepPlan,
    "scenario",
    "own",
    "device",
    seeds=Annotated[
        Annotated[int, Meta(ge=1)] | tuple[int, ...],
        Meta(description="an integer >= 1, or a list of seeds"),
    ],
    over=Annotated[Mapping[str, Any], Meta(description="a table of lists")],
    set=Annotated[
        Mapping[str, Mapping[str, Any]],
        Meta(description="tables [sweep.set.NAME], NAME an attack or a victim"),
    ],
)
# The plan in JSON, in which infinity is text.
STORED = form(
    SweepPlan,
    scenario=dict[str, Any],
    epsilon=tuple[int | float | Literal["inf"], ...],
)


def load(path: Path) -> SweepPlan:
    """Read a file with a scenario and a table ``[sweep]``."""
    file = config.read(path, f"sweep {path}")
    if "scenario" in file.values:
        file.known(TABLES)
    if not isinstance(file.values.get("sweep"), dict):
        raise file.error("expected a table [sweep] that defines what varies", "sweep")
    return of(file, f"scenario {path}")


def of(file: config.ConfigTable, name: str) -> SweepPlan:
    """Return the plan of a file; errors in its scenario begin with a name."""
    scenario = Scenario.of(replace(file.without("sweep"), file=name, name=name))
    return file.table("sweep").decode(WRITTEN, partial(_planned, scenario))


def _planned(
    scenario: Scenario,
    over: Mapping[str, Any] = MappingProxyType({}),
    seeds: int | tuple[int, ...] = 1,
    **rest: Any,
) -> SweepPlan:
    if isinstance(seeds, int):
        if seeds > MOST_SEEDS:
            says = f"expected at most {MOST_SEEDS} seeds, got {seeds!s:.40}"
            raise config.InvalidValue("", says, "seeds")
        seeds = tuple(range(scenario.seed, scenario.seed + seeds))
    shared, own = _axes(over)
    return SweepPlan(scenario, **rest, seeds=seeds, over=shared, own=own)


def _axes(
    over: Mapping[str, Any],
) -> tuple[dict[str, tuple[Setting, ...]], dict[str, dict[str, tuple[Setting, ...]]]]:
    """Return the axes of all cells, and those of single attacks or victims."""
    shared = {}
    own = {}
    for key, given in over.items():
        if isinstance(given, Mapping):
            own[key] = {inner: _values(values, key, inner) for inner, values in given.items()}
            continue
        shared[key] = _values(given, key)
        if key in ELSEWHERE:
            says = "cannot vary here; put seeds, epsilon and set into [sweep] itself"
            raise config.InvalidValue("", says, "over", key)
    return shared, own


def with_seed(plan: SweepPlan, seed: int) -> SweepPlan:
    """Return the sweep with another first seed."""
    return replace(
        plan,
        scenario=replace(plan.scenario, seed=seed),
        seeds=tuple(range(seed, seed + len(plan.seeds))),
    )


def to_json(plan: SweepPlan) -> dict[str, Json]:
    """Return everything that defines the sweep; `of_json` reads it."""
    plain = {**asdict(plan), "epsilon": [encoded(epsilon) for epsilon in plan.epsilon]}
    kept: dict[str, Json] = json.loads(json.dumps(plain))
    return kept


def of_json(values: Any) -> SweepPlan:
    """Return the plan that `to_json` wrote."""
    try:
        plan = decoded(values, STORED)
    except TypeMismatch as error:
        raise LeakauditError(f"expected the plan of a sweep, got something else: {error}") from None
    given = structs.asdict(plan)
    epsilon = tuple(math.inf if e == "inf" else e for e in given["epsilon"])
    scenario = config.ConfigTable(given["scenario"]).named("scenario").decode(FORM, Scenario)
    return SweepPlan(**{**given, "scenario": scenario, "epsilon": epsilon})


def _values(given: Any, *at: str) -> tuple[Setting, ...]:
    if not _are_values(given):
        expected = "expected a list of distinct words or finite numbers"
        raise config.InvalidValue("", f"{expected}, got {given!r:.60}", "over", *at)
    return tuple(given)


def _are_values(given: Any) -> bool:
    if not isinstance(given, list) or not given:
        return False
    for value in given:
        if not isinstance(value, str | int | float):
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return False
    return len({*map(repr, given)}) == len(given)
