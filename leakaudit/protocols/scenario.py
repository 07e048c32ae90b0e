"""A recording as a value: who trains what on which data, TOML in, a trace and its truth out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from leakaudit import registry
from leakaudit._util import toml_file
from leakaudit.errors import LeakauditError, suggest
from leakaudit.victim import Victim

DTYPES = ("float32", "float64")
KINDS: dict[str, type] = {"str": str, "int": int, "bool": bool}
NAMED = {str: "text", int: "a whole number", bool: "true or false"}


@dataclass(frozen=True)
class Scenario:
    """Everything that decides a run.

    set: constants of the victim and arguments of the model by name. samples: records a node. wires: ``all``, ``none``,
    ``node:3`` or ``0-1,1-2``; layers: ``all``, ``first`` or parameter names joined by commas. states, curves: what the truth
    keeps beside the data: private vectors, and loss, accuracy, consensus and norms of every round.
    """

    victim: str = "pdmm"
    nodes: int = 10
    graph: str = "rgg"
    rounds: int = 20
    data: str = "faces"
    samples: int = 1
    split: str = "iid"
    model: str = "mlp"
    set: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    seed: int = 0
    wires: str = "all"
    layers: str = "all"
    states: bool = False
    curves: bool = False

    def __post_init__(self) -> None:
        """Check what needs no other file."""
        for f in fields(self):
            kind, value = KINDS.get(str(f.type)), getattr(self, f.name)
            if kind is not None and (
                not isinstance(value, kind) or (kind is int and isinstance(value, bool))
            ):
                raise LeakauditError(f"{f.name}: expected {NAMED[kind]}, got {value!r}")
        if self.dtype not in DTYPES:
            raise LeakauditError(f"dtype: expected float32 or float64, got {self.dtype!r}")
        for name in ("rounds", "samples", "nodes"):
            if getattr(self, name) < 1:
                raise LeakauditError(f"{name}: expected at least 1, got {getattr(self, name)}")

    @classmethod
    def from_toml(cls, path: Path) -> Scenario:
        """Read a scenario file, or the scenario of an audit's file; unknown keys are refused."""
        return cls.of(toml_file.read(path, f"scenario {path}"), path)

    @classmethod
    def of(cls, values: Mapping[str, Any], path: Path) -> Scenario:
        """Return the scenario of a file's values: those of its table ``scenario`` where it has one, else all but ``audit``."""
        own = (
            toml_file.table(values, "scenario", what=f"scenario {path}")
            if "scenario" in values
            else values
        )
        values = {k: v for k, v in own.items() if k != "audit"}
        known = {f.name for f in fields(cls)}
        for key in values:
            if key not in known:
                raise LeakauditError(f"scenario {path}: unknown key {key!r}{suggest(key, known)}")
        return cls(**values)

    def to_toml(self) -> str:
        """Return the text that `from_toml` reads."""
        top = [f"{k} = {_toml(v)}" for k, v in asdict(self).items() if k != "set"]
        return (
            "\n".join([*top, "", "[set]", *(f"{k} = {_toml(v)}" for k, v in self.set.items())])
            + "\n"
        )

    def parts(self) -> tuple[Victim, dict[str, Any]]:
        """Return the configured victim, and what is left of `set` for the model.

        A victim's ``samples`` or ``records``, on which noise and claims rest, are those of the
        scenario if `set` has none.

        Raises:
            LeakauditError: The victim is not complete, or does not take one of its constants.
        """
        kind = registry.get("victims", self.victim)
        if not (isinstance(kind, type) and issubclass(kind, Victim)):
            raise LeakauditError(
                f"victim {self.victim!r}: expected a subclass of leakaudit.victim.Victim, got {kind!r}"
            )
        mine = registry.parameters(kind)
        known: dict[str, Any] = {k: self.samples for k in ("samples", "records") if k in mine}
        victim: Victim = registry.configure(
            kind, {**known, **{k: v for k, v in self.set.items() if k in mine}}
        )
        return victim, {k: v for k, v in self.set.items() if k not in mine}


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return (
        repr(value)
        if isinstance(value, int | float)
        else '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
    )
