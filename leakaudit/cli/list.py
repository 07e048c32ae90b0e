"""`leakaudit list`: victims, attacks, reports, models, data sets and graphs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from leakaudit.cli._commands import SharedOptions, argument, command, option
from leakaudit.cli._options import TEXT_OR_JSON, show, show_json, show_table
from leakaudit.core.errors import LeakauditError, suggest

if TYPE_CHECKING:
    from leakaudit._util.declarations import Parameter

GROUPS = ("victims", "attacks", "reports", "models", "data", "graphs")
# Keys of a JSON entry, and the class variables with their values.
COLUMNS = {
    "victims": {
        "leaks": "leaks_what",
        "claims": "claims_what",
        "server": "centralised",
        "paper": "paper",
    },
    "attacks": {"exact": "exact", "reads": "reads", "cost": "cost", "paper": "paper"},
    "reports": {},
}
GRAPHS = {
    "ring": "every node has two neighbours",
    "star": "node 0 is connected to all others",
    "complete": "all nodes are connected with each other",
    "rgg": "random geometric graph: random points, connected if they are near",
    "er": "Erdos-Renyi graph: every edge exists with the same probability",
    "grid": "rectangular grid",
    "rgg:R": "the same with another radius: points of a unit square, connected if closer than R",
    "file:PATH": "edges from a text file with a line 'i j' for each edge",
}


class _Options(SharedOptions):
    what: str = argument("kind of thing to list", choices=GROUPS)
    name: str | None = argument(
        "describe only this one, with its parameters", nargs="?", metavar="NAME", names="all"
    )
    long: bool = option("describe all of them in detail")
    format: str = TEXT_OR_JSON


@command(
    "list",
    "list victims, attacks, reports, models, data sets or graphs",
    "Lists the victims, attacks, report formats, models, data sets or graphs that the "
    "other commands accept, or describes one of them in detail.",
    "leakaudit list victims",
    "leakaudit list victims pdmm",
)
def run(args: _Options) -> int:
    """Print a table, or details."""
    rows = entries(args.what)
    if args.name is not None:
        rows = [_named(rows, args.what, args.name)]
    if args.format == "json":
        show_json(rows)
        return 0
    from leakaudit.reporting.rendering import console

    if args.long or args.name is not None:
        details = [_details(args.what, row, console.width()) for row in rows]
        show("\n".join(details))
    else:
        _write(args.what, rows)
    return 0


def _named(rows: Sequence[dict[str, Any]], what: str, name: str) -> dict[str, Any]:
    for row in rows:
        if row["name"] == name:
            return row
    near = suggest(name, [row["name"] for row in rows])
    raise LeakauditError(f"expected a name that 'leakaudit list {what}' prints, got {name!r}{near}")


def _write(what: str, rows: Sequence[Mapping[str, Any]]) -> None:
    from leakaudit.reporting.rendering.tables import Column

    columns = [Column("name"), Column("description", text=True)]
    if what in ("victims", "attacks"):
        columns.append(Column("paper", spare=True))
    lines = []
    for row in rows:
        cells = [row["name"], _plain(row["note"])]
        if what in ("victims", "attacks"):
            cells.append(short(row["paper"]))
        lines.append(cells)
    show_table(columns, lines)


def _details(what: str, row: Mapping[str, Any], width: int | None) -> str:
    """Return a line for each property and parameter of one entry."""
    lines = [row["name"]]
    for key, value in row.items():
        if key not in ("name", "parameters") and value != "":
            word = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
            lines += wrapped(f"{key}: {_plain(word)}", width, "  ")
    if row.get("parameters"):
        from leakaudit._util import declarations

        lines.append("  parameters (--set NAME=VALUE):")
        for text in parameters(declarations.of(what, row["name"]).parameters):
            lines += wrapped(text, width, "    ")
    return "\n".join(lines) + "\n"


def wrapped(text: str, width: int | None, indent: str) -> list[str]:
    """Return lines that fit the terminal, the first one indented less; None does not wrap."""
    if width is None:
        return [indent + text]
    more = indent + "    "
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=more)


def parameters(known: Mapping[str, Parameter]) -> list[str]:
    """Return a line per parameter: default, meaning, choices and symbol."""
    from leakaudit.core.registry import written

    lines = []
    for name, one in known.items():
        default = "" if one.default is MISSING else written(one.default)
        symbol = f" [{one.symbol}]" if one.symbol else ""
        choices = f" ({', '.join(one.choices)})" if one.choices else ""
        lines.append(f"{f'{name}={default}':22} {one.help}{choices}{symbol}")
    return lines


def short(source: str) -> str:
    """Return authors and year of a source such as "Lian et al. 2017, Algorithm 1 (D-PSGD)".

    Without a year, return what is before a comma, colon or bracket.
    """
    dated = re.match(r"(.*?\b(?:19|20)\d\d)\b", source)
    if dated is None:
        return re.split("[,:(]", source)[0].strip()
    authors = dated[1].removeprefix("extends ")
    names = re.split(r", | and ", authors)
    if len(names) > 2:
        return f"{names[0]} et al. {authors[-4:]}"
    return authors.split("(")[-1]


def _plain(text: str) -> str:
    return text.replace("``", "").removesuffix(".")


def entries(what: str) -> list[dict[str, Any]]:
    """Return what there is of one kind, without importing it."""
    if what == "models":
        return _models()
    from leakaudit._util import declarations
    from leakaudit.core.registry import written

    if what == "data":
        names = declarations.table("leakaudit.tasks.data", "NAMES")
        return [{"name": name, "note": note} for name, note in names.items()]
    if what == "graphs":
        kinds = declarations.table("leakaudit.protocols.topology", "KINDS")
        return [{"name": name, "note": GRAPHS[name]} for name in [*kinds, "rgg:R", "file:PATH"]]
    rows = []
    columns = COLUMNS[what]
    for name, declared in declarations.everything(what, tuple(columns.values())):
        row: dict[str, Any] = {"name": name, "note": declared.note}
        for column, attribute in columns.items():
            row[column] = declared.attributes[attribute]
        defaults = {key: p.default for key, p in declared.parameters.items()}
        row["parameters"] = {key: written(default) for key, default in defaults.items()}
        rows.append(row)
    return rows


def _models() -> list[dict[str, Any]]:
    from leakaudit._util import declarations
    from leakaudit.core.registry import written

    rows = []
    models = declarations.classes("leakaudit.tasks.models", "MODELS", ("note",))
    for name, declared in models.items():
        args = []
        for key, parameter in declared.parameters.items():
            default = "" if parameter.default is MISSING else written(parameter.default)
            args.append(f"{key}={default}")
        rows.append({"name": name, "args": ", ".join(args), "note": declared.attributes["note"]})
    return rows
