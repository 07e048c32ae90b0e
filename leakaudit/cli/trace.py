"""`leakaudit trace`: inspect, verify, lint, convert and import traces."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakaudit._util.settings import resolve
from leakaudit.cli import curves, equations, imported, lint
from leakaudit.cli._commands import Command, SharedOptions, argument, command, option
from leakaudit.cli._options import (
    INCONCLUSIVE,
    TEXT_OR_JSON,
    TRACE,
    say,
    settings,
    show_json,
    show_table,
    trusting,
)
from leakaudit.cli._parser import described


class _InfoOptions(SharedOptions):
    settings = ("threads",)

    trace: Path = TRACE
    format: str = TEXT_OR_JSON


@command(
    "trace info",
    "show what a trace contains",
    "Shows what a trace contains: protocol, graph, kinds of messages, public constants and claims.",
    "leakaudit trace info trace.pt",
    "leakaudit trace info trace.pt -f json",
)
def info(args: _InfoOptions) -> int:
    """Print the header of a trace."""
    from leakaudit.traces import trace_info

    resolve(vars(args.given))  # rejects an invalid setting
    _show(trace_info.info(args.trace), args.format)
    return 0


class _VerifyOptions(SharedOptions):
    settings = ("threads",)

    trace: Path = TRACE
    format: str = TEXT_OR_JSON
    write: bool = option("write the sha256 file if the trace has none")
    relations: bool = option(
        "check the declared relations of the protocol on the private states of the run "
        "(requires 'record --states')"
    )
    truth: Path | None = option(
        "truth file with the states (default: the one beside the trace)", metavar="FILE"
    )
    trust_model: bool | str = trusting("trace")


@command(
    "trace verify",
    "check the integrity of a trace",
    "Checks the sha256, the structure and the numbers of a trace; --relations checks that the "
    "recorded run satisfies the declared relations.",
    "leakaudit trace verify trace.pt",
    "leakaudit trace verify trace.pt --relations --truth trace.truth.pt",
)
def verify(args: _VerifyOptions) -> int:
    """Print what was checked."""
    from leakaudit.reporting.rendering import console
    from leakaudit.traces import trace_file, trace_info

    chosen = settings(args)
    checked = True
    with console.shown(chosen.progress):
        facts = trace_info.verify(args.trace)
        if args.write and facts["sha256"] is None:
            facts["sha256"] = trace_file.write_sidecar(args.trace)
        if args.relations:
            relations = _relations(args.trace, args.truth, args.trust_model)
            checked = bool(relations["checked"])
            facts["relations"] = relations
    _show(facts, args.format)
    return 0 if checked else INCONCLUSIVE


class _ConvertOptions(SharedOptions):
    settings = ("threads",)

    source: Path = argument("trace to read")
    target: str = argument(
        "file to write, ending in .pt, .npz or .safetensors; or a folder, ending in /"
    )


@command(
    "trace convert",
    "convert a trace between .pt, a folder of shards, .npz and .safetensors",
    "Converts a trace between a .pt file, a folder of shards, .npz and .safetensors.",
    "leakaudit trace convert trace.pt trace.npz",
    "leakaudit trace convert trace.pt shards/",
)
def convert(args: _ConvertOptions) -> int:
    """Write the trace in the format that the name of the target says."""
    from leakaudit.reporting.rendering import console
    from leakaudit.traces import convert

    chosen = settings(args)
    with console.shown(chosen.progress):
        convert.convert(
            args.source, args.target if args.target.endswith("/") else Path(args.target)
        )
    say(f"{args.target}: written", args)
    return 0


run = Command(
    "trace",
    "inspect, verify, lint, convert or import a trace; show the curves of a run",
    described(
        "Inspects, verifies, checks, converts or imports a trace, or shows the training curves of "
        "a run.",
        "leakaudit trace info trace.pt",
        "leakaudit trace lint trace.pt",
    ),
    actions=(info, verify, convert, imported.run, curves.run, lint.run, equations.run),
)


def _show(facts: Mapping[str, Any], form: str) -> None:
    if form == "json":
        show_json(facts)
        return
    from leakaudit.core import registry
    from leakaudit.reporting.findings import wording
    from leakaudit.reporting.rendering.tables import Column

    rows = []
    for key, value in facts.items():
        if key == "provenance" and registry.TEXT in value:
            value = dict(value)
            size = len(value.pop(registry.TEXT))
            rows.append(("protocol file", f"{size} characters (shown by -f json)"))
        said = value if isinstance(value, str) else json.dumps(value)
        rows.append((key, wording.clean(said)))
    show_table((Column("field"), Column("value", text=True)), rows)


def _relations(path: Path, truth: Path | None, trusted: bool | str) -> dict[str, Any]:
    """Check the declared relations; residuals are relative, ``scope`` is what gaps exclude."""
    from dataclasses import asdict

    from leakaudit.protocols import declared
    from leakaudit.tasks.task import Task
    from leakaudit.traces import gaps, trace_file

    trace = trace_file.load(path)
    known = trace_file.load_truth(trace_file.truth_path(path) if truth is None else truth)
    found = asdict(
        declared.check(trace, known, Task.build(trace.task, dtype=trace.dtype, trusted=trusted))
    )
    return found | ({"scope": limit} if (limit := gaps.limit(trace)) else {})
