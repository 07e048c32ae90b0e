"""`leakaudit audit`: test the claims of a protocol at several values of epsilon."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from leakaudit.cli._options import computing, described, executor_of, say, settings, shared, show

REFUTED, UNSETTLED, INTERRUPTED = 1, 3, 130


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    sub = verbs.add_parser(
        "audit",
        help="test the privacy claims of a protocol at several values of epsilon",
        **described(
            "Runs a protocol at several values of epsilon, attacks each run, and tests the "
            "protocol's claims. Writes the verdicts and a figure of PSNR and SSIM against epsilon.",
            "leakaudit audit plan.toml -o audit/",
            "leakaudit audit plan.toml --dry-run",
        ),
    )
    sub.add_argument(
        "scenario",
        type=Path,
        help="TOML file with a scenario and a table [audit], which lists the values of epsilon and "
        "the tests",
    )
    sub.add_argument(
        "-f",
        "--format",
        action="append",
        choices=("text", "json", "markdown"),
        help="format of the output; repeatable (default text)",
    )
    sub.add_argument(
        "--dry-run",
        action="store_true",
        help="print the settings, the epsilon of each point (exact, or at most) and the cost, "
        "without running",
    )
    sub.add_argument(
        "--strict",
        action="store_true",
        help="exit with code 3 if a claim is INCONCLUSIVE or UNSUPPORTED, or the time did not "
        "suffice to test it",
    )
    sub.add_argument(
        "--figure",
        type=Path,
        metavar="FILE",
        help="write the figure for a paper, 174 mm wide, to this .pdf, .svg or .png file",
    )
    computing(sub)
    shared(sub, "seed", "device", "threads", "output", "data_root", "download", "max_seconds")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Audit, write the results and print them."""
    from dataclasses import replace

    from leakaudit.auditing.dry_run import dry
    from leakaudit.auditing.plan import AuditPlan
    from leakaudit.auditing.run import audit
    from leakaudit.auditing.where import Where
    from leakaudit.rendering import console, paper, plots, record_figure
    from leakaudit.results import model

    if args.figure is not None:
        plots.expect_suffix(args.figure, "--figure")
    chosen = settings(args)
    plan = AuditPlan.from_toml(args.scenario)
    if args.seed is not None:
        plan = replace(plan, scenario=replace(plan.scenario, seed=chosen.seed))
    where = Where(Path(chosen.data_root), chosen.download, chosen.device, chosen.max_seconds)
    if args.dry_run:
        with console.shown(chosen.progress):
            planned = dry(plan, where)
        sys.stdout.write(json.dumps(model.plain(planned), indent=2) + "\n")
        return 0
    folder = Path(chosen.output)
    executor = executor_of(args)
    with console.shown(chosen.progress, main="stages"):
        found = audit(plan, folder, where, executor)
    for name in args.format or ["text"]:
        show(_rendered(name, folder))
    files = ["results.json", "report.md", found.audit.figure, found.picture]
    say(f"{folder}: {', '.join(filter(None, files))}", args)
    if args.figure is not None:
        width = paper.WIDTHS["page"]
        paper.save(record_figure.of_audit(found), args.figure, width, found.summary)
        say(f"{args.figure}: written", args)
    if not found.complete and not chosen.max_seconds:
        return INTERRUPTED
    verdicts = {one.verdict for one in found.audit.verdicts}
    if "REFUTED" in verdicts:
        return REFUTED
    unsettled = not found.complete or bool(verdicts & {"INCONCLUSIVE", "UNSUPPORTED"})
    return UNSETTLED if not verdicts or (args.strict and unsettled) else 0


def _rendered(name: str, folder: Path) -> str:
    """Return the results of an audit in one format, read from its folder."""
    if name == "markdown":
        return (folder / "report.md").read_text(encoding="utf-8")
    if name == "json":
        return (folder / "results.json").read_text(encoding="utf-8")
    from leakaudit import registry
    from leakaudit.rendering import console
    from leakaudit.results import record_file

    text: str = registry.get("reports", name)(
        record_file.read(folder / "results.json"), **console.fit()
    )
    return text
