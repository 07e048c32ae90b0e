"""What a program's messages are, in the user's words: a small TOML file (docs/tap.md)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
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

USUAL = {
    "weights": "dpsgd",
    "gradients": "fedsgd",
    "duals": "pdmm",
}  # payload -> the protocol where none is named
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
    "receive": bool,
}


@dataclass(frozen=True)
class Description:
    """What travels, in which protocol, of which model.

    payload: weights, gradients or duals. protocol: a victim's name. params: its constants that the program uses. task: what is trained.
    first: whether the first message of a wire is the initial model (``start``) or the first update (``update``). scale: of the payload,
    what is sent times it is what the protocol names. server: its rank, None where there is none, or where it is every rank's average.
    tags: of the messages that count, None for all. kinds: tag -> kind, where the protocol has several. order: parameters as they stand
    in a message, empty for the model's order.
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
        kind = registry.get("victims", self.protocol)
        victim: Victim = registry.configure(
            kind, {k: v for k, v in self.params.items() if k in registry.parameters(kind)}
        )
        return victim

    @property
    def start(self) -> int:
        """Round of the first message of a wire."""
        return 0 if self.first == "start" else 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of the parameters as they stand in a message, then the model's."""
        slices = self.task.layout.slices
        return (
            *(slices[n].stop - slices[n].start for n in self.order or slices),
            self.task.layout.size,
        )


def read(path: Path, trusted: bool = True) -> Description:
    """Read a description; a ``package.module:factory`` is looked for beside the file too, and run.

    Raises LeakauditError that names the key, for whatever is missing, unknown or does not fit.
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
    """Return the description that these values give."""
    _known(values, TOP, "")
    payload = values.get("payload")
    if not isinstance(payload, str) or payload not in USUAL:
        raise LeakauditError(f"payload: expected weights, gradients or duals, got {payload!r}")
    first = values.get("first", "start" if payload == "weights" else "update")
    if first not in FIRST:
        raise LeakauditError(f"first: expected start or update, got {first!r}")
    protocol, params = values.get("protocol", USUAL[payload]), _table(values, "params")
    if not isinstance(protocol, str):
        raise LeakauditError(f"protocol: expected the name of a victim, got {protocol!r}")
    kind = registry.get("victims", protocol)
    known = registry.parameters(kind)
    _known(params, (*known, "samples"), "params.")
    registry.configure(kind, {k: v for k, v in params.items() if k in known})
    messages = _typed(_table(values, "messages"), MESSAGES, "messages.")
    task = Task.build(_spec(_table(values, "model")), trusted=trusted)
    order = tuple(str(n) for n in messages.get("order", ()))
    if order and sorted(order) != sorted(task.layout.names):
        raise LeakauditError(
            f"messages.order: expected each parameter once: {', '.join(task.layout.names)}"
        )
    try:
        kinds = {int(tag): str(kind) for tag, kind in messages.get("kinds", {}).items()}
        tags = (
            frozenset(int(t) for t in messages["tags"])
            if "tags" in messages
            else frozenset(kinds) or None
        )
    except (TypeError, ValueError):
        raise LeakauditError(
            "messages.tags and messages.kinds: expected whole numbers as tags"
        ) from None
    scale = float(messages.get("scale", 1.0))
    if not 0 < abs(scale) < float("inf"):
        raise LeakauditError(f"messages.scale: expected a finite number other than 0, got {scale}")
    return Description(
        payload, protocol, params, task, first, scale, messages.get("server"), tags, kinds, order
    )


def _spec(model: Mapping[str, Any]) -> TaskSpec:
    values = _typed(model, MODEL, "model.")
    if missing := [name for name in ("name", "shape") if name not in values]:
        raise LeakauditError(
            f"model.{missing[0]}: is missing; expected the name of a model and the shape of one input"
        )
    values["model"] = values.pop("name")
    return TaskSpec.from_json(values)


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name, {})
    if not isinstance(table, dict):
        raise LeakauditError(f"{name}: expected a table [{name}], got {table!r}")
    return table


def _typed(values: Mapping[str, Any], types: Mapping[str, type], where: str) -> dict[str, Any]:
    _known(values, types, where)
    for name, value in values.items():
        kind = types[name]
        if isinstance(value, bool) is not (kind is bool) or not isinstance(
            value, (int, float) if kind is float else kind
        ):
            raise LeakauditError(f"{where}{name}: expected {kind.__name__}, got {value!r}")
    return dict(values)


def _known(values: Mapping[str, Any], known: Any, where: str) -> None:
    for name in values:
        if name not in known:
            raise LeakauditError(f"{where}{name}: unknown key{suggest(name, known)}")
