"""Types of configuration keys, with the words that messages use for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

import msgspec
from msgspec import Meta, Struct

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# A plan is stored as written, so an integer remains an integer.
Number: TypeAlias = Annotated[int | float, Meta(description="a number")]
Real: TypeAlias = Annotated[float, Meta(description="a number")]
Words: TypeAlias = Annotated[tuple[str, ...], Meta(description="a list of words")]
Numbers: TypeAlias = Annotated[tuple[int | float, ...], Meta(description="a list of numbers")]
Nodes: TypeAlias = Annotated[tuple[int, ...], Meta(description="a list of node numbers")]
Growth: TypeAlias = Annotated[Mapping[str, int | float], Meta(description="a table of numbers")]
Settings: TypeAlias = Annotated[
    Mapping[str, Mapping[str, object]], Meta(description="a table of tables")
]
Day: TypeAlias = Annotated[date, Meta(description="a date like 2030-01-31, without quotes")]


def form(of: type[DataclassInstance], *without: str, **instead: object) -> type[Struct]:
    """Return the type of a TOML table for a dataclass."""
    hints = get_type_hints(of, include_extras=True)
    made: list[tuple[str, Any, Any]] = []
    for field in fields(of):
        if field.name in without:
            continue
        kind = instead.get(field.name, hints[field.name])
        default: Any = msgspec.NODEFAULT
        if field.default is not MISSING:
            default = field.default
        elif field.default_factory is not MISSING:
            default = msgspec.field(default_factory=field.default_factory)
        made.append((field.name, kind, default))
    return msgspec.defstruct(of.__name__, made, kw_only=True, forbid_unknown_fields=True)


def present(values: Struct) -> dict[str, Any]:
    """Return the fields of a value that are set, and not `msgspec.UNSET`."""
    fields = msgspec.structs.asdict(values)
    return {name: held for name, held in fields.items() if held is not msgspec.UNSET}
