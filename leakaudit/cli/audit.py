"""`leakaudit audit`: test the claims of a protocol at several values of epsilon."""

from __future__ import annotations

from pathlib import Path

from leakaudit.cli._commands import SharedOptions, argument, command, option
from leakaudit.cli._options import (
    FIGURE,
    INCONCLUSIVE,
    INTERRUPTED,
    PRINTED,
    ComputeOptions,
    draw_figure,
    expect_figure,
    say,
    settings,
    show_json,
    show_record,
)

REFUTED = 1  # exit code


class _Options(SharedOptions):
    settings = ("seed", "device", "threads", "output", "data_root", "download", "max_seconds")

    scenario: Path = argument(
        "TOML file with a scenario and a table [audit], which lists the values of epsilon and "
        "the tests"
    )
    format: list[str] | None = PRINTED
    dry_run: bool = option(
        "print the settings, the epsilon of each point (exact, or at most) and the cost, "
        "without running"
    )
    strict: bool = option(
        "exit with code 3 if a claim is INCONCLUSIVE or UNSUPPORTED, or the time did not "
        "suffice to test it"
    )
    figure: Path | None = FIGURE
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
    from leakaudit.judging.auditing.environment import RunEnvironment
    from leakaudit.judging.auditing.plan import AuditPlan
    from leakaudit.judging.auditing.run import audit
    from leakaudit.reporting.rendering import console
    from leakaudit.reporting.results import model

    expect_figure(args.figure)
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
        show_json(planned)
        return 0
    folder = Path(chosen.output)
    executor = args.computing.executor()
    with console.shown(chosen.progress, main="stages"):
        found = audit(plan, folder, where, executor)
    for name in args.format or ["text"]:
        show_record(model.plain(found), name)
    files = ["results.json", "report.md", found.audit.figure, found.picture]
    say(f"{folder}: {', '.join(filter(None, files))}", args)
    draw_figure(args.figure, found, args)
    if not found.complete and not chosen.max_seconds:
        return INTERRUPTED
    verdicts = {one.verdict for one in found.audit.verdicts}
    if "REFUTED" in verdicts:
        return REFUTED
    unsettled = not found.complete or bool(verdicts & {"INCONCLUSIVE", "UNSUPPORTED"})
    return INCONCLUSIVE if not verdicts or (args.strict and unsettled) else 0
