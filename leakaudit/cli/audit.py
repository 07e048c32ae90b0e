"""`leakaudit audit`: test the claims of a protocol at several values of epsilon."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from leakaudit.cli._commands import SharedOptions, argument, command, option
from leakaudit.cli._options import ComputeOptions, say, settings, show

REFUTED, UNSETTLED, INTERRUPTED = 1, 3, 130


class _Options(SharedOptions):
    settings = ("seed", "device", "threads", "output", "data_root", "download", "max_seconds")

    scenario: Path = argument(
        "TOML file with a scenario and a table [audit], which lists the values of epsilon and "
        "the tests"
    )
    format: list[str] | None = option(
        "format of the output; repeatable (default text)",
        "-f",
        choices=("text", "json", "markdown"),
    )
    dry_run: bool = option(
        "print the settings, the epsilon of each point (exact, or at most) and the cost, "
        "without running"
    )
    strict: bool = option(
        "exit with code 3 if a claim is INCONCLUSIVE or UNSUPPORTED, or the time did not "
        "suffice to test it"
    )
    figure: Path | None = option(
        "write the figure for a paper, 174 mm wide, to this .pdf, .svg or .png file", metavar="FILE"
    )
    computing: ComputeOptions


@command(
    "audit",
    "test the privacy claims of a protocol at several values of epsilon",
    "Runs a protocol at several values of epsilon, attacks each run, and tests the "
    "protocol's claims. Writes the verdicts and a figure of PSNR and SSIM against epsilon.",
    "leakaudit audit plan.toml -o audit/",
    "leakaudit audit plan.toml --dry-run",
)
def run(args: _Options) -> int:
    """Audit, write the results and print them."""
    from dataclasses import replace

    from leakaudit.judging.auditing.dry_run import dry
    from leakaudit.judging.auditing.plan import AuditPlan
    from leakaudit.judging.auditing.run import audit
    from leakaudit.judging.auditing.where import RunEnvironment
    from leakaudit.reporting.figures import paper, plots, record_figure
    from leakaudit.reporting.rendering import console
    from leakaudit.reporting.results import model

    if args.figure is not None:
        plots.expect_suffix(args.figure, "--figure")
    chosen = settings(args)
    plan = AuditPlan.from_toml(args.scenario)
    if args.given.seed is not None:
        plan = replace(plan, scenario=replace(plan.scenario, seed=chosen.seed))
    where = RunEnvironment(
        Path(chosen.data_root), chosen.download, chosen.device, chosen.max_seconds
    )
    if args.dry_run:
        with console.shown(chosen.progress):
            planned = dry(plan, where)
        sys.stdout.write(json.dumps(model.plain(planned), indent=2) + "\n")
        return 0
    folder = Path(chosen.output)
    executor = args.computing.executor()
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
    from leakaudit.core import registry
    from leakaudit.reporting.rendering import console
    from leakaudit.reporting.results import record_file

    text: str = registry.get("reports", name)(
        record_file.read(folder / "results.json"), **console.fit()
    )
    return text
