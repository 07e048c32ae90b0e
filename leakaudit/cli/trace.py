"""`leakaudit trace`: inspect, verify, lint, convert and import traces."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakaudit._util.settings import resolve
from leakaudit.cli import curves, equations, imported, lint
from leakaudit.cli._options import INCONCLUSIVE, described, formats, say, settings, shared, trusting


def add(verbs: Any) -> None:
    """Add the parsers of the verb and its actions."""
    actions = verbs.add_parser(
        "trace",
        help="inspect, verify, lint, convert or import a trace; show the curves of a run",
        **described(
            "Inspects, verifies, checks, converts or imports a trace, or shows the training curves "
            "of a run.",
            "leakaudit trace info trace.pt",
            "leakaudit trace lint trace.pt",
        ),
    ).add_subparsers(dest="action", metavar="ACTION", required=True)
    info = actions.add_parser(
        "info",
        help="show what a trace contains",
        **described(
            "Shows what a trace contains: protocol, graph, kinds of messages, public constants "
            "and claims.",
            "leakaudit trace info trace.pt",
            "leakaudit trace info trace.pt -f json",
        ),
    )
    verify = actions.add_parser(
        "verify",
        help="check the integrity of a trace",
        **described(
            "Checks the sha256, the structure and the numbers of a trace; --relations checks that "
            "the recorded run satisfies the declared relations.",
            "leakaudit trace verify trace.pt",
            "leakaudit trace verify trace.pt --relations --truth trace.truth.pt",
        ),
    )
    for sub in (info, verify):
        sub.add_argument("trace", type=Path, help="trace file, or folder of shards")
        formats(sub)
    verify.add_argument(
        "--write", action="store_true", help="write the sha256 file if the trace has none"
    )
    verify.add_argument(
        "--relations",
        action="store_true",
        help=(
            "check the declared relations of the protocol on the private states of the run "
            "(requires 'record --states')"
        ),
    )
    verify.add_argument(
        "--truth",
        type=Path,
        metavar="FILE",
        help="truth file with the states (default: the one beside the trace)",
    )
    trusting(verify, "trace")
    convert = actions.add_parser(
        "convert",
        help="convert a trace between .pt, a folder of shards, .npz and .safetensors",
        **described(
            "Converts a trace between a .pt file, a folder of shards, .npz and .safetensors.",
            "leakaudit trace convert trace.pt trace.npz",
            "leakaudit trace convert trace.pt shards/",
        ),
    )
    convert.add_argument("source", type=Path, help="trace to read")
    convert.add_argument(
        "target",
        help="file to write, ending in .pt, .npz or .safetensors; or a folder, ending in /",
    )
    for sub in (info, verify, convert):
        shared(sub, "threads")
        sub.set_defaults(run=run)
    imported.add(actions)
    curves.add(actions)
    lint.add(actions)
    equations.add(actions)


def run(args: argparse.Namespace) -> int:
    """Perform one action."""
    from leakaudit.rendering import console
    from leakaudit.traces import trace_file, trace_info

    if args.action == "info":
        resolve(vars(args))  # rejects an invalid setting
        _show(trace_info.info(args.trace), args.format)
        return 0
    chosen = settings(args)
    if args.action == "convert":
        from leakaudit.traces import convert

        with console.shown(chosen.progress):
            convert.convert(
                args.source, args.target if args.target.endswith("/") else Path(args.target)
            )
        say(f"{args.target}: written", args)
        return 0
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


def _show(facts: Mapping[str, Any], form: str) -> None:
    """Print the facts as JSON, or one row for each."""
    if form == "json":
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
        return
    from leakaudit import registry
    from leakaudit.rendering import console
    from leakaudit.rendering.tables import Column, table
    from leakaudit.results import wording

    rows = []
    for key, value in facts.items():
        if key == "provenance" and registry.TEXT in value:
            value = dict(value)
            size = len(value.pop(registry.TEXT))
            rows.append(("protocol file", f"{size} characters (shown by -f json)"))
        said = value if isinstance(value, str) else json.dumps(value)
        rows.append((key, wording.clean(said)))
    columns = (Column("field"), Column("value", text=True))
    console.stdout().print(table(columns, rows, console.width()))


def _relations(path: Path, truth: Path | None, trusted: bool | str) -> dict[str, Any]:
    """Check the declared relations on the run.

    The worst residual is relative to the terms of its relation; ``scope`` names what gaps in the
    trace exclude.
    """
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
