"""A sweep's plan from TOML, and to JSON and back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from leakaudit._util import toml_file
from leakaudit.errors import LeakauditError, suggest
from leakaudit.protocols.scenario import Scenario
from leakaudit.results.model import encoded
from leakaudit.sweeping.plan import SweepPlan
from leakaudit.trace import Json

TABLES = ("scenario", "sweep", "audit")  # that one file may have
LISTS = ("attacks", "adversaries", "epsilon", "nodes")
TUPLES = tuple(f.name for f in fields(SweepPlan) if isinstance(f.default, tuple))  # lists in JSON
ELSEWHERE = ("set", "seed", "states", "curves", "epsilon")  # no axis of `over`
VARY = tuple(f.name for f in fields(Scenario) if f.name not in ELSEWHERE)


def load(path: Path) -> SweepPlan:
    """Read a file with a scenario and a table ``[sweep]``.

    Args:
        path: The file, TOML.

    Raises:
        LeakauditError: A key is unknown, in which case the nearest is named, or a value cannot be.
    """
    values = toml_file.read(path, f"sweep {path}")
    if "scenario" in values:
        _known(values, TABLES, f"sweep {path}")
    asked = values.pop("sweep", None)
    if not isinstance(asked, dict):
        raise LeakauditError(f"sweep {path}: expected a table [sweep], which says what varies")
    keys = {f.name for f in fields(SweepPlan)} - {"scenario", "own", "device"}
    _known(asked, keys, f"sweep {path}")
    scenario = Scenario.of(values, path)
    plain = {k: v for k, v in asked.items() if k not in (*LISTS, "seeds", "set", "over")}
    lists: dict[str, Any] = {k: _list(k, asked[k]) for k in LISTS if k in asked}
    seeds = _seeds(asked.get("seeds", 1), scenario.seed)
    settings = _tables("set", asked.get("set", {}))
    shared, own = _axes(asked.get("over", {}))
    return SweepPlan(scenario, **plain, **lists, seeds=seeds, set=settings, over=shared, own=own)


def _axes(over: Any) -> tuple[dict[str, tuple[Json, ...]], dict[str, dict[str, tuple[Json, ...]]]]:
    """Return the axes of all cells, and those in a table of their own, of one attack or victim."""
    if not isinstance(over, dict):
        raise LeakauditError(f"sweep: over: expected a table of lists, got {over!r:.60}")
    shared = {k: _values(f"over.{k}", v) for k, v in over.items() if not isinstance(v, dict)}
    for key in shared:
        if key in ELSEWHERE:
            raise LeakauditError(
                f"sweep: over.{key}: does not vary here; "
                "seeds, epsilon and set stand in [sweep] itself"
            )
    own = {}
    for of, table in over.items():
        if isinstance(table, dict):
            own[of] = {key: _values(f"over.{of}.{key}", v) for key, v in table.items()}
    return shared, own


def with_seed(plan: SweepPlan, seed: int) -> SweepPlan:
    """Return the same sweep with as many seeds, from another first one.

    Args:
        plan: The sweep.
        seed: The first seed.
    """
    return replace(
        plan,
        scenario=replace(plan.scenario, seed=seed),
        seeds=tuple(range(seed, seed + len(plan.seeds))),
    )


def with_device(plan: SweepPlan, device: str) -> SweepPlan:
    """Return the same sweep on another device.

    Args:
        plan: The sweep.
        device: For example ``cuda``.
    """
    return replace(plan, device=device)


def to_json(plan: SweepPlan) -> dict[str, Json]:
    """Return everything that decides the sweep; `of_json` reads it.

    Args:
        plan: The sweep.
    """
    plain = {**asdict(plan), "epsilon": [encoded(epsilon) for epsilon in plan.epsilon]}
    kept: dict[str, Json] = json.loads(json.dumps(plain))
    return kept


def of_json(values: Any) -> SweepPlan:
    """Return the plan that `to_json` wrote.

    Args:
        values: Its JSON.

    Raises:
        LeakauditError: It is something else.
    """
    try:
        lists = {name: tuple(values[name]) for name in TUPLES}
        over = _tuples(values["over"])
        own = {of: _tuples(table) for of, table in values["own"].items()}
        epsilon = tuple(math.inf if e == "inf" else e for e in values["epsilon"])
        scenario = Scenario(**values["scenario"])
        rest = {**values, **lists, "over": over, "own": own, "epsilon": epsilon}
        return SweepPlan(**{**rest, "scenario": scenario})
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise LeakauditError(f"expected the plan of a sweep, got something else: {error}") from None


def _tuples(table: Mapping[str, Iterable[Json]]) -> dict[str, tuple[Json, ...]]:
    return {key: tuple(values) for key, values in table.items()}


def _values(where: str, given: Any) -> tuple[Json, ...]:
    """Return the values of an axis: words, numbers, true or false, all different."""
    if not _are_values(given):
        raise LeakauditError(
            f"sweep: {where}: expected a list of different words or finite numbers, "
            f"got {given!r:.60}"
        )
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


def _list(key: str, given: Any) -> tuple[Any, ...]:
    if not isinstance(given, list):
        raise LeakauditError(f"sweep: {key}: expected a list, got {given!r:.60}")
    return tuple(given)


def _tables(key: str, given: Any) -> Mapping[str, Mapping[str, Json]]:
    if not isinstance(given, dict) or not all(isinstance(v, dict) for v in given.values()):
        raise LeakauditError(
            f"sweep: {key}: expected tables [sweep.{key}.NAME], NAME an attack or a victim, "
            f"got {given!r:.60}"
        )
    return given


def _seeds(given: Any, first: int) -> tuple[int, ...]:
    """Return the seeds: a list, or so many from the scenario's own."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 1:
        return tuple(range(first, first + given))
    if isinstance(given, list):
        return tuple(given)
    raise LeakauditError(
        f"sweep: seeds: expected a whole number from 1, or a list of seeds, got {given!r:.60}"
    )


def _known(given: Iterable[str], known: Iterable[str], where: str) -> None:
    names = list(known)
    for key in given:
        if key not in names:
            raise LeakauditError(f"{where}: unknown key {key!r}{suggest(key, names)}")
