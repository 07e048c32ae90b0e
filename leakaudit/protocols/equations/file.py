"""Reads protocol files, and makes victims of them."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import field, make_dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from leakaudit._util import config
from leakaudit._util.forms import Words
from leakaudit._util.plain import is_number
from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.protocols.equations.check import check
from leakaudit.protocols.equations.definition import RULES, Definition, Rows, Rule
from leakaudit.protocols.equations.parse import parse
from leakaudit.protocols.equations.syntax import FUNCTIONS, GROUPS
from leakaudit.protocols.equations.written import TextProtocol

LARGEST = 100_000  # characters of a file: a choice, fifty times the longest bundled example
LARGEST_CONSTANT = 1e300
MODULE = "protocol_file"  # of the classes, which do not belong to leakaudit
KEPT = 64  # files whose victims are kept: a choice
NAME = re.compile(r"(own:)?[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
WORD = re.compile(r"[^\W\d]\w*")
WHOLE = ("samples", "records", "batch")  # constants that count records
TAKEN = frozenset(
    (*dir(TextProtocol), *TextProtocol.__annotations__)
)  # what a class of a file has already

_Text = Annotated[str, Meta(description="text")]


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of a protocol file."""

    name: Annotated[str, Meta(description="a name such as my-dpsgd")]
    round: Annotated[str, Meta(description="the equations of a round, as text")]
    summary: _Text = "A protocol described by its equations."
    paper: _Text = "a protocol file"
    graph: Annotated[str, Meta(description="any or server")] = "any"
    public: Words = ("w0",)
    constants: Annotated[Mapping[str, Any], Meta(description="a table of numbers")] = {}
    matrices: Annotated[Mapping[str, Any], Meta(description="a table of matrices")] = {}
    start: Annotated[str, Meta(description="equations, as text")] = ""
    first: Annotated[str, Meta(description="equations, as text")] = ""


def load(path: str | Path) -> type[TextProtocol]:
    """Read a protocol file."""
    found = config.read(Path(path), f"protocol {path}")
    try:
        return victim(found.text)
    except LeakauditError as error:
        raise LeakauditError(f"protocol {path}: {error}") from None


@lru_cache(maxsize=KEPT)
def victim(text: str) -> type[TextProtocol]:
    """Return the victim that the text of a protocol file describes."""
    definition = read(text)
    fields: list[tuple[str, Any, Any]] = []
    for name, value in definition.constants.items():
        kind: type = float
        if name in WHOLE and value == int(value):
            kind = int
        meta = {"help": f"constant of {definition.name}", "symbol": ""}
        fields.append((name, kind, field(default=kind(value), metadata=meta)))
    made: type[TextProtocol] = make_dataclass(
        "TextProtocol",
        fields,
        bases=(TextProtocol,),
        frozen=True,
        namespace={
            "__doc__": definition.summary,
            "__module__": MODULE,
            "definition": definition,
            "paper": definition.paper,
            "centralised": definition.server,
        },
    )
    return made


def read(text: str) -> Definition:
    """Read the text of a protocol file."""
    if len(text) > LARGEST:
        raise LeakauditError(f"expected at most {LARGEST} characters, got {len(text)}")
    try:
        values = config.parsed(text)
    except ValueError as error:
        raise LeakauditError(f"not valid TOML: {error}") from None
    table = config.ConfigTable(values, text=text)
    given = table.decode(_File, _File)
    if not NAME.fullmatch(given.name):
        raise table.error(
            f"name: expected letters, digits, '-', '_' and '.', got {given.name!r:.80}", "name"
        )
    if given.graph not in ("any", "server"):
        raise table.error(f"graph: expected any or server, got {given.graph!r:.80}", "graph")
    constants: dict[str, float] = {}
    for name, value in given.constants.items():
        _check_name(table, "constants", name)
        if not is_number(value) or not abs(value) < LARGEST_CONSTANT:
            says = f"constants.{name}: expected a finite number, got {value!r:.40}"
            raise table.error(says, "constants", name)
        constants[name] = value
    for name in given.public:
        _check_name(table, "public", name)
    matrices: dict[str, Rule | Rows] = {}
    for name, rule in given.matrices.items():
        _check_name(table, "matrices", name)
        matrices[name] = _matrix(table, name, rule)
    definition = Definition(
        name=given.name,
        summary=given.summary,
        paper=given.paper,
        server=given.graph == "server",
        constants=constants,
        matrices=matrices,
        public=given.public,
        start=_equations(text, "start", given.start),
        first=_equations(text, "first", given.first),
        round=_equations(text, "round", given.round),
        text=text,
    )
    if not definition.kinds:
        raise table.error(
            "round: expected at least one message, such as m[i -> neighbours] = w[i]", "round"
        )
    check(definition)
    return definition


def _check_name(table: config.ConfigTable, key: str, name: str) -> None:
    """Reject a name that an equation could not contain, or that means something else."""
    if not WORD.fullmatch(name) or len(name) > 64:
        raise table.error(f"{key}: expected a name of letters and digits, got {name!r:.80}", key)
    if name == "t" or name in FUNCTIONS or name in GROUPS:
        raise table.error(f"{key}: {name!r} is a word of the notation; choose another name", key)
    if key == "constants" and _is_reserved(name):
        raise table.error(f"{key}: {name!r} is a word of the program; choose another name", key)


def _is_reserved(name: str) -> bool:
    """Return whether the class of a protocol cannot have a constant of this name.

    Python reads an identifier in its normal form, so that two spellings would be one constant.
    """
    normal = unicodedata.normalize("NFKC", name) == name
    return not normal or keyword.iskeyword(name) or name.startswith("__") or name in TAKEN


def _matrix(table: config.ConfigTable, name: str, rule: Any) -> Rule | Rows:
    if isinstance(rule, str):
        if rule not in RULES:
            says = f"matrices.{name}: there is no matrix {rule!r:.80}{suggest(rule, RULES)}"
            raise table.error(says, "matrices", name)
        return rule  # type: ignore[return-value]  # it is one of the words
    wrong = f"matrices.{name}: expected rows of numbers, or one of {', '.join(RULES)}"
    if not isinstance(rule, list) or not all(isinstance(row, list) for row in rule):
        raise table.error(wrong, "matrices", name)
    rows: list[tuple[Fraction, ...]] = []
    for row in rule:
        if len(row) != len(rule):
            raise table.error(f"{wrong}; the matrix is not square", "matrices", name)
        try:
            rows.append(tuple(_entry(one) for one in row))
        except (ValueError, ZeroDivisionError):
            raise table.error(wrong, "matrices", name) from None
    return tuple(rows)


def _entry(value: object) -> Fraction:
    """Return an entry: a number as its decimals say, or a text such as 1/3."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    text = str(value)
    if len(text) > 40 or "e" in text.lower():
        raise ValueError
    return Fraction(text)


def _equations(text: str, key: str, block: str) -> Any:
    opening = re.search(rf"(?m)^[ \t]*{key}[ \t]*=[ \t]*(\"\"\"|'''|\"|')(\r?\n)?", text)
    first = 1
    if opening is not None:
        first = text.count("\n", 0, opening.end()) + 1
    return parse(block, first)
