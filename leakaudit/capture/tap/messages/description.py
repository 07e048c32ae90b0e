"""The description of a program's messages, in a TOML file that the user checks (docs/tap.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from leakaudit._util import config, files, own_code
from leakaudit._util.forms import Number, Numbers, Words, present
from leakaudit._util.own_code import Trust
from leakaudit.capture.tap.messages import layouts
from leakaudit.capture.tap.messages.layouts import ParameterPlace
from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.core.trace import TaskSpec
from leakaudit.tasks.task import Task
from leakaudit.traces import vocabulary

if TYPE_CHECKING:
    from leakaudit.protocols.victim import Victim

ASK = "NOT KNOWN"  # in place of a value that the user must fill in; no description is read with it
Payload: TypeAlias = Literal["weights", "gradients", "duals"]
USUAL: Mapping[Payload, str] = {  # payload -> the default protocol
    "weights": "dpsgd",
    "gradients": "fedsgd",
    "duals": "pdmm",
}
TOP = ("payload", "protocol", "first", "params", "model", "messages")


class _Head(Struct, frozen=True, kw_only=True):
    payload: Annotated[Payload, Meta(description="weights, gradients or duals")]
    protocol: (
        Annotated[str, Meta(description="the name of a victim or of a protocol file")] | None
    ) = None
    first: Annotated[Literal["start", "update"], Meta(description="start or update")] | None = None
    params: Annotated[Mapping[str, Any], Meta(description="a table [params]")] = {}


class _Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table [model]; the defaults are those of `TaskSpec`."""

    name: Annotated[str, Meta(description="the name of a model")]
    shape: Annotated[tuple[int, ...], Meta(description="list of whole numbers (one input)")]
    args: dict[str, Any] | UnsetType = UNSET
    classes: Annotated[int, Meta(description="integer")] | UnsetType = UNSET
    loss: str | UnsetType = UNSET
    mean: Numbers | UnsetType = UNSET
    std: Numbers | UnsetType = UNSET
    levels: Annotated[int, Meta(description="integer")] | UnsetType = UNSET
    data: str | UnsetType = UNSET


class _Messages(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table [messages]; the attributes are those of `MessageDescription`."""

    scale: Number = 1.0
    scales: dict[str, float] = {}
    server: int | None = None
    tags: Annotated[tuple[int, ...], Meta(description="whole numbers as tags")] | None = None
    kinds: dict[str, str] = {}
    order: Words = ()
    stream: str | None = None


class _Body(Struct, frozen=True, kw_only=True):
    """The keys that are read once the protocol is known."""

    model: _Model
    messages: _Messages = _Messages()


@dataclass(frozen=True)
class MessageDescription:
    """The content of the messages, their protocol and their model."""

    payload: Payload
    protocol: str  # name of a victim, path of a protocol file, or `own:NAME` for an unknown one
    params: Mapping[str, Any]  # the protocol's constants in the program
    task: Task
    # `start` if the first message of a channel is the initial model, `update` if it is the first
    # update
    first: str = "start"
    # factor of what nodes send: the sent value times it is the protocol's value. The models of a
    # server, and those that hooks record, are never scaled.
    scale: float = 1.0
    # rank of the server; None if there is none, or if it is the average that all ranks compute
    server: int | None = None
    tags: frozenset[int] | None = None  # tags of the messages to use; None for all
    # tag -> kind, if the protocol has several kinds
    kinds: Mapping[int, str] = field(default_factory=dict)
    # parameters in the order of a message, with a suffix for other axes (`layouts`); empty for the
    # model's order
    order: tuple[str, ...] = ()
    # process group or model of the messages to use; None for that with most messages
    stream: str | None = None
    # round -> the factor from it on, if it changes
    scales: Mapping[int, float] = field(default_factory=dict)

    def scale_in(self, round_: int) -> float:
        """Return the factor of what nodes send in a round."""
        begun = [t for t in self.scales if t <= round_]
        return self.scales[max(begun)] if begun else self.scale

    @property
    def victim(self) -> Victim:
        """The protocol with its constants; for an undeclared one, that which sends alike."""
        if not self.undeclared:
            return _configured(self.protocol, self.params)
        if self.payload == "weights" and self.server is not None:
            return _configured("fedavg", {})
        if self.payload == "gradients" and self.server is None:
            return _configured("dpsgd", {})
        return _configured(USUAL[self.payload], {})

    @property
    def constants(self) -> dict[str, Any]:
        """The protocol's constants, with the defaults of those that are not described."""
        return {**registry.values(self.victim), **self.params}

    @property
    def undeclared(self) -> bool:
        """Whether the protocol has a name only, ``own:NAME``."""
        return self.protocol.startswith(registry.OWN)

    @property
    def start(self) -> int:
        """Round of the first message of a channel."""
        return 0 if self.first == "start" else 1

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters in the order of a message, without suffixes of axes."""
        return tuple(layouts.names_of(self.order, self.task.layout))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of the parameters in the order of a message, followed by the model's length."""
        sizes = [place.stop - place.start for place in self.places]
        return (*sizes, self.task.layout.size)

    @property
    def listening(self) -> dict[str, Any]:
        """What the processes of the program have to know of it, as in `CaptureSettings`."""
        return {"sizes": self.sizes, "start": self.start, "names": self.names}

    @property
    def places(self) -> list[ParameterPlace]:
        """The place of each parameter of a message in the model's vector."""
        return layouts.places(self.order, self.task.layout)


def read(path: Path, trusted: Trust = False) -> MessageDescription:
    """Read a description.

    trusted: the ``package.module:factory`` that may be imported and run, also from its folder.
    """
    try:
        file = config.read(path, f"description {path}")
    except LeakauditError as error:
        raise LeakauditError(
            f"{error}; 'leakaudit tap describe' writes a file to start from"
        ) from None
    beside = str(files.resolved(path).parent)
    try:
        with own_code.importable(beside):
            values = file.values
            protocol = values.get("protocol")
            if isinstance(protocol, str) and protocol.endswith(registry.FILE):  # in its own folder
                values = {**values, "protocol": str(Path(beside) / protocol)}
            return of(values, trusted, file.text, beside)
    except LeakauditError as error:
        raise LeakauditError(f"description {path}: {error}") from None


def of(
    values: Mapping[str, Any], trusted: Trust = False, text: str = "", beside: str = ""
) -> MessageDescription:
    """Return the description given by the values of a TOML file.

    trusted: the ``package.module:factory`` that may be imported and run, True for any; beside:
    folder of the file, in which a model ``file.pt2`` is searched for.
    """
    file = config.ConfigTable(values, text=text)
    _require_known(file, TOP, "")
    _require_filled_in(file)
    # A missing payload is reported like an invalid one.
    needed = replace(file, values={"payload": None, **values})
    head = needed.only("payload", "protocol", "first", "params").decode(_Head, _Head)
    protocol = USUAL[head.payload]
    if head.protocol is not None:
        protocol = head.protocol
    _check_protocol(protocol, file)
    # The same applies to the model: the required keys are named.
    needed = replace(file, values={**values, "model": values.get("model", {})})
    body = needed.only("model", "messages").decode(_Body, _Body)
    model = present(body.model)
    spec = TaskSpec(model=model.pop("name"), **model, beside=beside)
    task = Task.build(spec, trusted=trusted)
    messages = body.messages
    layouts.places(messages.order, task.layout)  # rejects unknown names
    tags, kinds = _tags_and_kinds(messages)
    scale = float(messages.scale)
    if not 0 < abs(scale) < float("inf"):
        says = f"messages.scale: expected a finite number other than 0, got {scale}"
        raise file.error(says, "messages", "scale")
    scales = _scales(messages, head.payload, file)
    default = "start" if head.payload == "weights" else "update"
    return MessageDescription(
        payload=head.payload,
        protocol=protocol,
        params=head.params,
        task=task,
        first=head.first or default,
        scale=scale,
        server=messages.server,
        tags=tags,
        kinds=kinds,
        order=messages.order,
        stream=messages.stream,
        scales=scales,
    )


def _scales(messages: _Messages, payload: str, file: config.ConfigTable) -> dict[int, float]:
    found: dict[int, float] = {}
    for text, factor in messages.scales.items():
        number = int(text) if text.isdecimal() else 0
        if payload != "gradients" or number < 1 or not 0 < abs(factor) < float("inf"):
            says = (
                "messages.scales: expected, for gradients, rounds with finite factors other than "
                f'0, such as {{"4" = 0.5}}; got {text!r:.40} = {factor}'
            )
            raise file.error(says, "messages", "scales")
        found[number] = factor
    return found


def _check_protocol(protocol: str, file: config.ConfigTable) -> None:
    if protocol.startswith(registry.OWN):
        return
    known = registry.parameters(registry.get("victims", protocol))
    params = file.table("params")
    _require_known(params, (*known, *vocabulary.SAID), "params.")
    _configured(protocol, params.values)


def _configured(protocol: str, params: Mapping[str, Any]) -> Victim:
    kind = registry.get("victims", protocol)
    known = registry.parameters(kind)
    taken = {name: value for name, value in params.items() if name in known}
    victim: Victim = registry.configure(kind, taken)
    return victim


def _tags_and_kinds(messages: _Messages) -> tuple[frozenset[int] | None, dict[int, str]]:
    """Return the tags of the messages to use, None for all, and the kind of each tag."""
    try:
        kinds = {int(tag): kind for tag, kind in messages.kinds.items()}
    except ValueError:
        raise LeakauditError(
            f"messages.kinds: expected whole numbers as tags, got {list(messages.kinds)!r:.60}"
        ) from None
    if messages.tags is not None:
        return frozenset(messages.tags), kinds
    return frozenset(kinds) or None, kinds


def _require_filled_in(file: config.ConfigTable) -> None:
    for name in TOP:
        value = file.values.get(name)
        inner = value if isinstance(value, Mapping) else {}
        if value == ASK:
            raise file.error(f"{name}: still {ASK}; enter the value of the program", name)
        for key, held in inner.items():
            if held == ASK:
                says = f"{name}.{key}: still {ASK}; enter the value of the program"
                raise file.error(says, name, key)


def _require_known(table: config.ConfigTable, known: Collection[str], where: str) -> None:
    for name in table.values:
        if name not in known:
            raise table.error(f"{where}{name}: unknown key{suggest(name, known)}", name)
