"""What a program's messages are: a TOML file that the user writes or corrects (docs/tap.md)."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit import registry
from leakaudit._util import toml_file
from leakaudit.errors import LeakauditError, suggest
from leakaudit.tasks.task import Task
from leakaudit.trace import TaskSpec

if TYPE_CHECKING:
    from leakaudit.victim import Victim

USUAL = {  # payload -> the protocol if none is named
    "weights": "dpsgd",
    "gradients": "fedsgd",
    "duals": "pdmm",
}
FIRST = ("start", "update")
TOP = ("payload", "protocol", "first", "params", "model", "messages")
MODEL = {
    "name": str,
    "args": dict,
    "shape": list,
    "classes": int,
    "loss": str,
    "mean": list,
    "std": list,
    "levels": int,
    "data": str,
}
MESSAGES = {
    "scale": float,
    "server": int,
    "tags": list,
    "kinds": dict,
    "order": list,
}


@dataclass(frozen=True)
class Description:
    """What is sent, in which protocol, of which model.

    Attributes:
        payload: weights, gradients or duals.
        protocol: name of a victim.
        params: the constants of the protocol that the program uses.
        task: what is trained.
        first: ``start`` if the first message of a wire is the initial model, ``update`` if it is
            the first update.
        scale: of the payload; what is sent times it is what the protocol names.
        server: its rank; None if there is none, or if it is the average that all ranks compute.
        tags: of the messages that count; None for all.
        kinds: tag -> kind, if the protocol has several kinds.
        order: parameters as they stand in a message; empty for the model's order.
    """

    payload: str
    protocol: str
    params: Mapping[str, Any]
    task: Task
    first: str = "start"
    scale: float = 1.0
    server: int | None = None
    tags: frozenset[int] | None = None
    kinds: Mapping[int, str] = field(default_factory=dict)
    order: tuple[str, ...] = ()

    @property
    def victim(self) -> Victim:
        """The protocol with its constants."""
        return _configured(self.protocol, self.params)

    @property
    def start(self) -> int:
        """Round of the first message of a wire."""
        if self.first == "start":
            return 0
        return 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of the parameters as they stand in a message, followed by the model's length."""
        slices = self.task.layout.slices
        sizes = [slices[name].stop - slices[name].start for name in self.order or slices]
        return (*sizes, self.task.layout.size)


def read(path: Path, trusted: bool = True) -> Description:
    """Read a description.

    Args:
        path: of the TOML file.
        trusted: whether a model ``package.module:factory`` may be imported and run; it is also
            looked for beside the file.

    Raises:
        LeakauditError: a key is missing, unknown or does not fit; the message names it.
    """
    try:
        values = toml_file.read(path, f"description {path}")
    except LeakauditError as error:
        raise LeakauditError(
            f"{error}; 'leakaudit tap describe' writes one to start from"
        ) from None
    beside = str(path.resolve().parent)
    if trusted and beside not in sys.path:
        sys.path.append(beside)
    try:
        return of(values, trusted)
    except LeakauditError as error:
        raise LeakauditError(f"description {path}: {error}") from None


def of(values: Mapping[str, Any], trusted: bool = True) -> Description:
    """Return the description that values give.

    Args:
        values: as they stand in the TOML file.
        trusted: whether a model ``package.module:factory`` may be imported and run.

    Raises:
        LeakauditError: a key is missing, unknown or does not fit; the message names it.
    """
    _require_known(values, TOP, "")
    payload = values.get("payload")
    if not isinstance(payload, str) or payload not in USUAL:
        raise LeakauditError(f"payload: expected weights, gradients or duals, got {payload!r}")
    default = "start" if payload == "weights" else "update"
    first = values.get("first", default)
    if first not in FIRST:
        raise LeakauditError(f"first: expected start or update, got {first!r}")
    params = _table(values, "params")
    protocol = _protocol(values.get("protocol", USUAL[payload]), params)
    messages = _typed(_table(values, "messages"), MESSAGES, "messages.")
    task = Task.build(_spec(_table(values, "model")), trusted=trusted)
    order = _order(messages, task)
    tags, kinds = _tags_and_kinds(messages)
    scale = float(messages.get("scale", 1.0))
    if not 0 < abs(scale) < float("inf"):
        raise LeakauditError(f"messages.scale: expected a finite number other than 0, got {scale}")
    return Description(
        payload=payload,
        protocol=protocol,
        params=params,
        task=task,
        first=first,
        scale=scale,
        server=messages.get("server"),
        tags=tags,
        kinds=kinds,
        order=order,
    )


def _protocol(protocol: object, params: Mapping[str, Any]) -> str:
    """Check the protocol's name and constants, and return the name."""
    if not isinstance(protocol, str):
        raise LeakauditError(f"protocol: expected the name of a victim, got {protocol!r}")
    known = registry.parameters(registry.get("victims", protocol))
    _require_known(params, (*known, "samples"), "params.")
    _configured(protocol, params)
    return protocol


def _configured(protocol: str, params: Mapping[str, Any]) -> Victim:
    """Return the protocol with those of the constants that it takes."""
    kind = registry.get("victims", protocol)
    known = registry.parameters(kind)
    taken = {name: value for name, value in params.items() if name in known}
    victim: Victim = registry.configure(kind, taken)
    return victim


def _spec(model: Mapping[str, Any]) -> TaskSpec:
    """Check the table [model] and return what it says is trained."""
    values = _typed(model, MODEL, "model.")
    for name in ("name", "shape"):
        if name not in values:
            raise LeakauditError(
                f"model.{name}: is missing; expected the name of a model and the shape of one input"
            )
    values["model"] = values.pop("name")
    return TaskSpec.from_json(values)


def _order(messages: Mapping[str, Any], task: Task) -> tuple[str, ...]:
    """Return the order of the parameters in a message; empty if the model's own."""
    order = tuple(str(name) for name in messages.get("order", ()))
    if order and sorted(order) != sorted(task.layout.names):
        names = ", ".join(task.layout.names)
        raise LeakauditError(f"messages.order: expected each parameter once: {names}")
    return order


def _tags_and_kinds(messages: Mapping[str, Any]) -> tuple[frozenset[int] | None, dict[int, str]]:
    """Return the tags of the messages that count, None for all, and the kind of each tag."""
    try:
        kinds = {int(tag): str(kind) for tag, kind in messages.get("kinds", {}).items()}
        if "tags" in messages:
            return frozenset(int(tag) for tag in messages["tags"]), kinds
        return frozenset(kinds) or None, kinds
    except (TypeError, ValueError):
        raise LeakauditError(
            "messages.tags and messages.kinds: expected whole numbers as tags"
        ) from None


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a table, empty if there is none."""
    table = values.get(name, {})
    if not isinstance(table, dict):
        raise LeakauditError(f"{name}: expected a table [{name}], got {table!r}")
    return table


def _typed(values: Mapping[str, Any], types: Mapping[str, type], where: str) -> dict[str, Any]:
    """Check keys and types of a table, and return a copy."""
    _require_known(values, types, where)
    for name, value in values.items():
        kind = types[name]
        if not _is_of(value, kind):
            raise LeakauditError(f"{where}{name}: expected {kind.__name__}, got {value!r}")
    return dict(values)


def _is_of(value: object, kind: type) -> bool:
    """Return whether a value has a type; whole numbers are floats too, a bool is no number."""
    if isinstance(value, bool):
        return False
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(value, kind)


def _require_known(values: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for name in values:
        if name not in known:
            raise LeakauditError(f"{where}{name}: unknown key{suggest(name, known)}")
