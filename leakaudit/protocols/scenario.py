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

    Attributes:
        victim: Name of the protocol.
        nodes: Number of nodes that hold data.
        graph: Who talks to whom, a kind of `topology.make`.
        rounds: Length of the run.
        data: Name of the data set.
        samples: Records of a node.
        split: How the records are divided among the nodes.
        model: Name of the model.
        set: Constants of the victim and arguments of the model, by name.
        dtype: ``float32`` or ``float64``.
        seed: Decides all randomness of the run.
        wires: Undirected edges that are recorded: ``all``, ``none``, ``node:3`` or ``0-1,1-2``.
        layers: Columns of the model vector that are recorded: ``all``, ``first``, or parameter
            names joined by commas.
        states: Whether the truth keeps the private vectors.
        curves: Whether the truth keeps loss, accuracy, consensus and norms of every round.
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
            kind = KINDS.get(str(f.type))
            value = getattr(self, f.name)
            if kind is None:
                continue
            truth_for_number = kind is int and isinstance(value, bool)
            if truth_for_number or not isinstance(value, kind):
                raise LeakauditError(f"{f.name}: expected {NAMED[kind]}, got {value!r}")
        if self.dtype not in DTYPES:
            raise LeakauditError(f"dtype: expected float32 or float64, got {self.dtype!r}")
        for name in ("rounds", "samples", "nodes"):
            if getattr(self, name) < 1:
                raise LeakauditError(f"{name}: expected at least 1, got {getattr(self, name)}")

    @classmethod
    def from_toml(cls, path: Path) -> Scenario:
        """Read a scenario file, or the scenario of an audit's file.

        Args:
            path: The file.

        Raises:
            LeakauditError: It cannot be read, or has an unknown key.
        """
        return cls.of(toml_file.read(path, f"scenario {path}"), path)

    @classmethod
    def of(cls, values: Mapping[str, Any], path: Path) -> Scenario:
        """Return the scenario of a file's values.

        Args:
            values: Of the file; its table ``scenario`` counts if it has one, else all but
                ``audit``.
            path: The file, for errors.

        Raises:
            LeakauditError: There is an unknown key.
        """
        own = values
        if "scenario" in values:
            own = toml_file.table(values, "scenario", what=f"scenario {path}")
        values = {k: v for k, v in own.items() if k != "audit"}
        known = {f.name for f in fields(cls)}
        for key in values:
            if key not in known:
                raise LeakauditError(f"scenario {path}: unknown key {key!r}{suggest(key, known)}")
        return cls(**values)

    def to_toml(self) -> str:
        """Return the text that `from_toml` reads."""
        top = [f"{k} = {_toml(v)}" for k, v in asdict(self).items() if k != "set"]
        constants = [f"{k} = {_toml(v)}" for k, v in self.set.items()]
        return "\n".join([*top, "", "[set]", *constants, ""])

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
                f"victim {self.victim!r}: expected a subclass of leakaudit.victim.Victim, "
                f"got {kind!r}"
            )
        mine = registry.parameters(kind)
        constants: dict[str, Any] = {k: self.samples for k in ("samples", "records") if k in mine}
        rest = {}
        for key, value in self.set.items():
            if key in mine:
                constants[key] = value
            else:
                rest[key] = value
        victim: Victim = registry.configure(kind, constants)
        return victim, rest


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
