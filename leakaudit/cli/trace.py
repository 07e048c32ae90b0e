"""`leakaudit trace`: look at trace files, check them, change their form."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from leakaudit.cli import curves, lint
from leakaudit.cli._options import say, settings, shared, trust


def add(verbs: Any) -> None:
    """Describe the verb and its actions.

    Args:
        verbs: The subparsers of `leakaudit`.
    """
    actions = verbs.add_parser(
        "trace", help="info, verify, lint or convert a trace; curves of a run"
    ).add_subparsers(dest="action", metavar="ACTION", required=True)
    info = actions.add_parser("info", help="what a trace holds")
    verify = actions.add_parser(
        "verify", help="check sha256, structure and that every number is finite"
    )
    for sub in (info, verify):
        sub.add_argument("trace", type=Path, help="trace file or folder")
        sub.add_argument(
            "-f", "--format", choices=("text", "json"), default="text", help="default text"
        )
    verify.add_argument(
        "--write", action="store_true", help="write the sha256 file where the trace has none"
    )
    verify.add_argument(
        "--relations",
        action="store_true",
        help=(
            "check the protocol's declared relations on the run's private states (record --states)"
        ),
    )
    verify.add_argument(
        "--truth",
        type=Path,
        metavar="FILE",
        help="truth with the states (default: the one beside the trace)",
    )
    verify.add_argument(
        "--trust-model",
        action="store_true",
        help="allow a trace's package.module:factory to run that code",
    )
    convert = actions.add_parser(
        "convert", help="between .pt, a folder of shards, .npz and .safetensors"
    )
    convert.add_argument("source", type=Path)
    convert.add_argument(
        "target", help="a name that ends in .pt, .npz, .safetensors, or in / for a folder"
    )
    for sub in (info, verify, convert):
        shared(sub, "threads")
        sub.set_defaults(run=run)
    curves.add(actions)
    lint.add(actions)


def run(args: argparse.Namespace) -> int:
    """Do one action.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    from leakaudit.rendering import console
    from leakaudit.traces import convert, trace_file, trace_info

    chosen = settings(args)
    if args.action == "convert":
        with console.shown(chosen.progress):
            convert.convert(
                args.source, args.target if args.target.endswith("/") else Path(args.target)
            )
        say(f"{args.target}: written", args)
        return 0
    if args.action == "info":
        facts = trace_info.info(args.trace)
    else:
        with console.shown(chosen.progress):
            facts = trace_info.verify(args.trace)
            if args.write and facts["sha256"] is None:
                facts["sha256"] = trace_file.write_sidecar(args.trace)
            if args.relations:
                facts["relations"] = _relations(args.trace, args.truth, args.trust_model)
    if args.format == "json":
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
    else:
        width = max(len(k) for k in facts)
        for key, value in facts.items():
            sys.stdout.write(
                f"{key:{width}}  {value if isinstance(value, str) else json.dumps(value)}\n"
            )
    return 0


def _relations(path: Path, truth: Path | None, trusted: bool) -> dict[str, Any]:
    """Check the declaration on the run.

    The worst residual is relative to the terms of its relation; ``scope`` says what gaps leave out.
    """
    from dataclasses import asdict

    from leakaudit.protocols import declared
    from leakaudit.tasks.task import Task
    from leakaudit.traces import gaps, trace_file

    trace = trace_file.load(path)
    known = trace_file.load_truth(trace_file.truth_path(path) if truth is None else truth)
    found = asdict(
        declared.check(
            trace, known, Task.build(trace.task, dtype=trace.dtype, trusted=trust(trusted))
        )
    )
    return found | ({"scope": limit} if (limit := gaps.limit(trace)) else {})
