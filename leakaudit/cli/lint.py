"""`leakaudit trace lint`: check what a trace declares and claims."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from leakaudit.cli._commands import SharedOptions, command, option
from leakaudit.cli._options import INCONCLUSIVE, TEXT_OR_JSON, TRACE, settings, show_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leakaudit.views.conformance.pitfall import Pitfall

NOTE = "A trace cannot show every pitfall: an empty report is not evidence of privacy."


class _Options(SharedOptions):
    settings = ("threads",)

    trace: Path = TRACE
    truth: Path | None = option(
        "truth file, to also check the norms of records, the noise and its seed (default none)",
        metavar="FILE",
    )
    strict: bool = option(
        "exit with code 1 if a finding is REFUTED or UNSUPPORTED, and with 3 if one is "
        "INCONCLUSIVE or nothing was examined"
    )
    format: str = TEXT_OR_JSON


@command(
    "trace lint",
    "check what a trace declares and claims against its messages",
    "Checks what a trace declares and claims against the recorded messages, and reports "
    "known pitfalls such as a guessable noise seed. An empty report is not evidence of "
    "privacy.",
    "leakaudit trace lint trace.pt",
    "leakaudit trace lint trace.pt --truth trace.truth.pt --strict",
)
def run(args: _Options) -> int:
    """Print the findings; with --strict, return 1 for a bad one, and 3 if a question is open."""
    from leakaudit.core.verdict import Verdict
    from leakaudit.judging.lint.checks import Lint
    from leakaudit.reporting.rendering import console
    from leakaudit.traces import trace_file

    chosen = settings(args)
    with console.shown(chosen.progress):
        truth = None if args.truth in (None, Path("none")) else trace_file.load_truth(args.truth)
        trace = trace_file.load(args.trace)
        lint = Lint(trace, truth)
        found = lint.findings
        examined = bool(found) or lint.examined
    if args.format == "json":
        show_json([p.to_json() for p in found])
    else:
        _write(found, lint.unexamined, examined)
    if not args.strict:
        return 0
    if any(p.bad for p in found):
        return 1
    unclear = any(p.verdict is Verdict.INCONCLUSIVE for p in found)
    return INCONCLUSIVE if unclear or not examined else 0


def _write(found: Sequence[Pitfall], unexamined: Sequence[str], examined: bool) -> None:
    from rich.text import Text

    from leakaudit._util.plural import counted
    from leakaudit.cli.reproduce import STYLES
    from leakaudit.reporting.rendering import console
    from leakaudit.reporting.rendering.tables import indented

    out = console.stdout()
    for p in found:
        style = STYLES.get(p.verdict.name, "bold red" if p.bad else "yellow")
        out.print(Text.assemble((p.verdict.words, style), f"  {p.code} {p.name}: {p.says}"))
        out.print(indented(Text(p.fix, style="dim"), console.width()))
    for one in unexamined:
        out.print(Text(f"Not examined: {one}."))
    count = counted(len(found), "finding")
    if not examined:
        count += ", nothing examined"
    out.print(Text(f"{count}. {NOTE}", style="dim"))
