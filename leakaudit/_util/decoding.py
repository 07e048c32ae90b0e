"""Conversion of JSON or TOML values to types, and the first location at which a value does not fit.

msgspec's message has neither the given value nor a free name of a mapping, so both are traversed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache
from types import UnionType
from typing import Annotated, Literal, NoReturn, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, inspect

from leakaudit._util.plain import is_number
from leakaudit._util.uncollected import read_json
from leakaudit.core.errors import brief

T = TypeVar("T")
Step = str | int  # a key, or an index in a list

# "(?!\n)$": in Python, "$" also matches before a final line break. In JSON schema the look-ahead
# changes nothing.
Sha256: TypeAlias = Annotated[
    str, Meta(pattern=r"^[0-9a-f]{64}(?!\n)$", description="a sha256 in hexadecimal")
]

WHOLE = "the record"  # name of the outermost location


@dataclass(eq=False)
class TypeMismatch(Exception):
    """The first location at which a value does not fit its type."""

    # keys and indices in lists, from the outermost; for `missing`, `unknown` and `key`, those of
    # the mapping
    path: tuple[Step, ...]
    # `value`: wrong type. `missing`: a key is missing. `unknown`: a key is not known. `key`: a key
    # is not text. `other`: what msgspec says.
    fault: Literal["value", "missing", "unknown", "key", "other"]
    value: object  # the given value; for `missing`, the key; for `other`, the reason
    kinds: tuple[inspect.Type, ...] = ()  # the expected types, for `value` and `missing`
    known: tuple[str, ...] = ()  # keys of the mapping, for `unknown`

    def __str__(self) -> str:
        place = dotted(self.path) or WHOLE
        if self.fault == "other":
            return str(self.value)
        if self.fault == "missing":
            return f"{place}: {self.value!r} is missing"
        if self.fault == "unknown":
            return f"{place}: unknown entry {brief(self.value)}"
        if self.fault == "key":
            return f"a key of {place}: expected text, got {brief(self.value)}"
        return f"{place}: expected {words(self.kinds)}, got {brief(self.value)}"


def decoded(value: object, kind: type[T]) -> T:
    """Convert JSON values to a type; raises `TypeMismatch`, for NaN and infinity, too."""
    try:
        found = msgspec.convert(value, kind)
        # Parts without a declared type must be JSON too; `json.loads` accepts NaN and infinity.
        json.dumps(value, allow_nan=False)
        return found
    except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
        raise first(value, kind) or TypeMismatch((), "other", str(error)) from None


def from_json(raw: bytes, kind: type[T] | UnionType) -> T:
    """Convert JSON text to a type; raises ValueError, for NaN and numbers beyond all floats, too.

    `msgspec.json` would accept whole numbers of hundreds of digits.
    """
    values = read_json(raw, parse_constant=refuse_constant, parse_float=_finite)
    found: T = msgspec.convert(values, kind)
    return found


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text:.20}… is beyond all floats")
    return value


def refuse_constant(constant: str) -> NoReturn:
    """Reject NaN, Infinity or -Infinity, which Python reads although JSON lacks them."""
    raise ValueError(f"{constant} is not a JSON number")


def departure(value: object, kind: type) -> str | None:
    """Describe the first location at which a JSON value does not fit; None if every value fits."""
    found = first(value, kind)
    if found is None:
        return None
    return str(found)


def first(value: object, kind: object) -> TypeMismatch | None:
    """Find the first location at which a value does not fit its type; None if every value fits."""
    return _departure(value, _described(kind), ())


def dotted(path: Sequence[Step]) -> str:
    """Format a location for people, such as ``findings[0].scores.psnr``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif text:
            text += f".{step:.60}"
        else:
            text = f"{step:.60}"
    return text


def words(kinds: Sequence[inspect.Type], toml: bool = False) -> str:
    """Describe the expected types in words, such as ``a whole number or null``."""
    # A number is a union of integers and floats, described by one word.
    has_float = any(isinstance(kind, inspect.FloatType) for kind in kinds)
    names = []
    for kind in kinds:
        if has_float and isinstance(kind, inspect.IntType):
            continue
        if toml and isinstance(kind, inspect.NoneType):
            continue
        if toml and isinstance(kind, inspect.DictType | inspect.StructType):
            names.append("a table")
        else:
            names.append(_name(kind))
    return " or ".join(names)


@cache
def _described(kind: object) -> inspect.Type:
    return inspect.type_info(kind)


def _departure(value: object, kind: inspect.Type, at: tuple[Step, ...]) -> TypeMismatch | None:
    if isinstance(kind, inspect.UnionType):
        return _alternatives(value, kind.types, at)
    if isinstance(kind, inspect.Metadata):
        found = _departure(value, kind.type, at)
        if found is None or _description(kind) is None:
            return found
        # The words of a described type cover everything in it.
        return TypeMismatch(at, "value", value, (kind,))
    if isinstance(kind, inspect.VarTupleType) and isinstance(value, list | tuple):
        return _items(value, kind.item_type, at)
    if isinstance(kind, inspect.DictType) and isinstance(value, Mapping):
        return _named(value, kind.value_type, at)
    if isinstance(kind, inspect.StructType) and isinstance(value, Mapping):
        return _fields(value, kind, at)
    if _fits(value, kind):
        return None
    return TypeMismatch(at, "value", value, (kind,))


def _alternatives(
    value: object, kinds: Sequence[inspect.Type], at: tuple[Step, ...]
) -> TypeMismatch | None:
    """Return the mismatch in the only alternative of the same shape, otherwise in all of them."""
    inside = None
    for kind in kinds:
        found = _departure(value, kind, at)
        if found is None:
            return None
        if inside is None and _same_shape(value, kind):
            inside = found
    if inside is not None:
        return inside
    return TypeMismatch(at, "value", value, tuple(kinds))


def _same_shape(value: object, kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.VarTupleType):
        return isinstance(value, list | tuple)
    if isinstance(kind, inspect.DictType | inspect.StructType):
        return isinstance(value, Mapping)
    return False


def _items(
    value: Sequence[object], kind: inspect.Type, at: tuple[Step, ...]
) -> TypeMismatch | None:
    for place, item in enumerate(value):
        found = _departure(item, kind, (*at, place))
        if found is not None:
            return found
    return None


def _named(
    value: Mapping[object, object], kind: inspect.Type, at: tuple[Step, ...]
) -> TypeMismatch | None:
    for key in value:
        if not isinstance(key, str):
            return TypeMismatch(at, "key", key)
    for key, item in value.items():
        found = _departure(item, kind, (*at, str(key)))
        if found is not None:
            return found
    return None


def _fields(
    value: Mapping[object, object], kind: inspect.StructType, at: tuple[Step, ...]
) -> TypeMismatch | None:
    known = {field.encode_name: field for field in kind.fields}
    tag = kind.tag_field
    for key in value:
        if not isinstance(key, str):
            return TypeMismatch(at, "key", key)
    for name, field in known.items():
        if field.required and name not in value:
            return TypeMismatch(at, "missing", name, (field.type,))
    if kind.forbid_unknown_fields:
        for key in value:
            if key not in known and key != tag:
                return TypeMismatch(at, "unknown", key, known=tuple(known))
    for key, item in value.items():
        if isinstance(key, str) and key in known:
            found = _departure(item, known[key].type, (*at, key))
            if found is not None:
                return found
    return None


def _fits(value: object, kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.AnyType):
        return True
    if isinstance(kind, inspect.CustomType):
        return _is_json(value)
    if isinstance(kind, inspect.LiteralType | inspect.EnumType):
        if isinstance(value, bool) or not isinstance(value, str | int):
            return False
        return value in _allowed(kind)
    if isinstance(value, bool):
        return isinstance(kind, inspect.BoolType)
    if isinstance(kind, inspect.StrType):
        return isinstance(value, str) and (
            kind.pattern is None or re.search(kind.pattern, value) is not None
        )
    if isinstance(kind, inspect.IntType):
        least, beyond = kind.ge, kind.lt
        return (
            isinstance(value, int)
            and (least is None or value >= least)
            and (beyond is None or value < beyond)
        )
    if isinstance(kind, inspect.FloatType):
        return is_number(value)
    if isinstance(kind, inspect.DateType):
        return isinstance(value, date) and not isinstance(value, datetime)
    return isinstance(kind, inspect.NoneType) and value is None


def _allowed(kind: inspect.LiteralType | inspect.EnumType) -> list[object]:
    if isinstance(kind, inspect.LiteralType):
        return list(kind.values)
    return [member.value for member in kind.cls]


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _description(kind: inspect.Metadata) -> str | None:
    described = (kind.extra_json_schema or {}).get("description")
    if described is None:
        return None
    return str(described)


def _name(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.Metadata):
        return _description(kind) or _name(kind.type)
    if isinstance(kind, inspect.LiteralType | inspect.EnumType):
        return " or ".join(sorted(map(repr, _allowed(kind))))
    if isinstance(kind, inspect.VarTupleType):
        return "a list"
    if isinstance(kind, inspect.DictType | inspect.StructType):
        return "a mapping"
    if isinstance(kind, inspect.FloatType):
        return "a finite number"
    if isinstance(kind, inspect.IntType):
        return "a whole number"
    if isinstance(kind, inspect.StrType):
        return "text"
    if isinstance(kind, inspect.BoolType):
        return "true or false"
    if isinstance(kind, inspect.NoneType):
        return "null"
    return "a JSON value"
