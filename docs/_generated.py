"""Pages that cannot go stale: the command line from its parsers, victims and attacks from the registry, as Markdown."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from leakaudit.cli import main, parser
from leakaudit.core import registry

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))
import _history

APART = (
    ("tap", "describe"),
    ("tap", "merge"),
)  # parsers that are no subparsers, since the verb takes a program


def command_line() -> str:
    """Every verb with its usage and options."""
    sections = [line for name, verb in _verbs(parser()) for line in _section(name, verb)]
    return "\n".join([*sections, *(line for words in APART for line in _help(words))])


def leaves(group: str) -> str:
    """Every victim or every attack: its source, what it leaks or reads, and its parameters."""
    return "\n".join(
        line for name, kind in registry.everything(group) for line in _leaf(name, kind)
    )


def history() -> str:
    """The runs of bench/history.json, and their plots."""
    sections = ["| run | measured | machine | load at the start |", "|---|---|---|---|"]
    for run in _history.read():
        cells = (run["commit"][:7], run["started"][:10], run["machine"], run["load"])
        sections.append("| " + " | ".join(map(str, cells)) + " |")
    sections.append("")
    for name, image in _history.pictures(_history.read()):
        sections += [f"## {name}", "", "```{raw} html", image, "```", ""]
    return "\n".join(sections)


REPRODUCED = Path(__file__).resolve().parent.parent / "leakaudit-out/reproduce"


def coverage() -> str:
    """Every item of the papers, with the verdicts of `make reproduce` if that was run."""
    from leakaudit.judging.papers import items
    from leakaudit.runs.reproducing import site

    return site.markdown(site.entries(items.every(), REPRODUCED))


PROGRAMS = Path(__file__).resolve().parent.parent / "tests/programs/programs.toml"
COLUMNS = {  # key of an entry in PROGRAMS -> heading of its column
    "program": {
        "name": "program",
        "lines": "lines changed",
        "recorded": "recorded",
        "verdict": "verdict",
        "leaked": "what leaked",
        "test": "test",
    },
    "stranger": {
        "repository": "repository",
        "licence": "licence",
        "program": "program",
        "changes": "changes",
        "verdict": "verdict",
        "judged": "compared with the program",
    },
}


def programs() -> str:
    """What happens to programs under the tap, in one table per group, and to those of strangers."""
    found = tomllib.loads(PROGRAMS.read_text(encoding="utf-8"))
    groups = dict.fromkeys(entry["group"] for entry in found["program"])
    lines: list[str] = []
    for group in groups:
        entries = [entry for entry in found["program"] if entry["group"] == group]
        lines += [f"## {group}", "", *_table(entries, COLUMNS["program"]), ""]
    lines += ["## Programs of others", "", found["strangers"], ""]
    lines += _table(found["stranger"], COLUMNS["stranger"])
    return "\n".join(lines)


def _table(entries: list[dict[str, Any]], columns: dict[str, str]) -> Iterator[str]:
    """A Markdown table; the path of a test is left out, since its name is unique."""
    yield "| " + " | ".join(columns.values()) + " |"
    yield "|" + "---|" * len(columns)
    for entry in entries:
        cells = {**entry, "test": f"`{entry.get('test', '').rpartition('::')[2]}`"}
        yield "| " + " | ".join(str(cells[key]) for key in columns) + " |"


def _verbs(of: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Parsers that do something, those of verbs with a part of their own in full."""
    inner = [a for a in of._actions if isinstance(a, argparse._SubParsersAction)]
    if not inner:
        yield of.prog, of
    for action in inner:
        for verb in action.choices.values():
            yield from _verbs(verb)


def _section(name: str, verb: argparse.ArgumentParser) -> Iterator[str]:
    usage = _usage(verb)
    yield from (
        f"## {name}",
        "",
        *([verb.description, ""] if verb.description else []),
        "```text",
        *usage,
        "```",
        "",
    )
    yield from ("| | |", "|---|---|")
    for action in verb._actions:
        if action.help != argparse.SUPPRESS:
            yield f"| {_words(action)} | {_cell((action.help or '') % {**vars(action), 'prog': verb.prog})} |"
    if verb.epilog:
        yield from ("", "```text", verb.epilog, "```")
    yield ""


def _usage(verb: argparse.ArgumentParser) -> list[str]:
    text = verb.format_usage().removeprefix("usage: ").strip()
    if verb.usage:  # written by hand
        return text.split("\n")
    whole = re.sub(
        r"\[[^]]*\]", lambda option: option[0].replace(" ", "\0"), re.sub(r"\s+", " ", text)
    )  # no line ends inside an option
    return [
        line.replace("\0", " ")
        for line in textwrap.wrap(whole, 92, subsequent_indent="    ", break_on_hyphens=False)
    ]


def _help(words: tuple[str, ...]) -> Iterator[str]:
    """What `--help` prints."""
    text = io.StringIO()
    with patch.dict(os.environ, {"COLUMNS": "92"}), redirect_stdout(text), suppress(SystemExit):
        main([*words, "--help"])
    yield from (
        f"## leakaudit {' '.join(words)}",
        "",
        "```text",
        text.getvalue().rstrip(),
        "```",
        "",
    )


def _words(action: argparse.Action) -> str:
    metavar = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    value = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else str(metavar)
    if not action.option_strings:
        return f"`{value}`"
    return _cell(
        ", ".join(
            f"`{flag}{'' if action.nargs == 0 else ' ' + value}`" for flag in action.option_strings
        )
    )


def _leaf(name: str, kind: type) -> Iterator[str]:
    said = (kind.__doc__ or "").split("\n")[0]
    yield from (f"## {name}", "", f"{said} Source: {kind.paper}.", "")
    if hasattr(kind, "reads"):
        yield from (f"Reads {kind.reads}. Cost: {kind.cost}.", "")
    else:
        yield from (f"Leaks {kind.leaks_what}. Promises {kind.claims_what}.", "")
        yield from _kinds(kind.sends)
    if parameters := registry.parameters(kind):
        yield from ("| parameter | default | |", "|---|---|---|")
    for key, field in parameters.items():
        options = registry.choices(kind, key)
        words = field.metadata.get("help", "") + (f" ({', '.join(options)})" if options else "")
        default = registry.written(field.default)
        yield f"| `{key}` | {_cell(str(default))} | {_cell(words)} |"
    yield ""


def _kinds(sends: Mapping[str, str]) -> Iterator[str]:
    """The messages of a victim."""
    if not sends:
        yield from ("Sends nothing.", "")
        return
    yield from ("| kind of message | content |", "|---|---|")
    for name, words in sends.items():
        yield f"| `{name}` | {_cell(words)} |"
    yield ""


def _cell(text: str) -> str:
    """One line of a table; what Markdown would read as markup stays text."""
    return re.sub(r"([|*_<\[])", r"\\\1", text) if "`" not in text else text.replace("|", r"\|")
