"""`leakaudit audit`: a grid of epsilons, attacked and tested, with verdicts and a figure."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from leakaudit.cli._options import say, settings, shared, show

REFUTED, UNSETTLED, INTERRUPTED = 1, 3, 130


def add(verbs: Any) -> None:
    """Describe the verb.

    Args:
        verbs: The subparsers of `leakaudit`.
    """
    sub = verbs.add_parser(
        "audit",
        help=(
            "attack and test a scenario over a grid of epsilons: verdicts, PSNR and SSIM against "
            "epsilon"
        ),
    )
    sub.add_argument(
        "scenario",
        type=Path,
        help="TOML file: a scenario, and a table [audit] with the grid and its tests",
    )
    sub.add_argument(
        "-f",
        "--format",
        action="append",
        choices=("text", "json", "markdown"),
        help="what goes to stdout; repeatable (default text)",
    )
    sub.add_argument(
        "--dry-run",
        action="store_true",
        help="print the grid, its constants and exact epsilons, and the cost; run nothing",
    )
    sub.add_argument(
        "--strict",
        action="store_true",
        help="exit code 3 where a promise is INCONCLUSIVE or UNSUPPORTED",
    )
    sub.add_argument(
        "--figure",
        type=Path,
        metavar="FILE",
        help="also draw the figure to FILE: .png, .svg or .pdf (besides audit.png)",
    )
    shared(sub, "seed", "device", "threads", "output", "data_root", "download", "max_seconds")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Audit, write the results and print them.

    1 if a promise was refuted; with --strict, 3 if one is not settled.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    from dataclasses import replace

    from leakaudit.auditing.plan import AuditPlan
    from leakaudit.auditing.run import Where, audit, dry
    from leakaudit.rendering import console, plots

    if args.figure is not None:
        plots.expect_suffix(args.figure, "--figure")
    chosen = settings(args)
    plan = AuditPlan.from_toml(args.scenario)
    if args.seed is not None:
        plan = replace(plan, scenario=replace(plan.scenario, seed=chosen.seed))
    where = Where(Path(chosen.data_root), chosen.download, chosen.device, chosen.max_seconds)
    if args.dry_run:
        sys.stdout.write(json.dumps(dry(plan, where), indent=2) + "\n")
        return 0
    folder = Path(chosen.output)
    with console.shown(chosen.progress):
        found, complete = audit(plan, folder, where, args.figure)
    for name in args.format or ["text"]:
        show(_rendered(name, found, folder))
    files = ["results.json", "report.md", found["audit"]["figure"], found["picture"]]
    say(f"{folder}: {', '.join(filter(None, files))}", args)
    if args.figure is not None:
        say(f"{args.figure}: written", args)
    if not complete and not chosen.max_seconds:
        return INTERRUPTED
    verdicts = {v["verdict"] for v in found["audit"]["verdicts"]}
    if "REFUTED" in verdicts:
        return REFUTED
    return UNSETTLED if args.strict and verdicts & {"INCONCLUSIVE", "UNSUPPORTED"} else 0


def _rendered(name: str, found: dict[str, Any], folder: Path) -> str:
    if name == "markdown":
        return (folder / "report.md").read_text(encoding="utf-8")
    if name == "json":
        return json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    from leakaudit.auditing.words import text
    from leakaudit.rendering import console

    return text(found, **console.fit())
