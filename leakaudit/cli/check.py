"""`leakaudit check`: the gate of a CI run, as configured in leakaudit.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit.cli import baseline
from leakaudit.cli._commands import Options, SharedOptions, argument, command, option
from leakaudit.cli._options import INTERRUPTED, expect_text, say, settings, show, show_json
from leakaudit.cli.baseline import BaselineOptions
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.judging.gate.config import Gate


class _GateOptions(Options):
    strict: bool = option("exit with code 3 if a measure increased, but not significantly")
    untrusted: bool = option(
        "for untrusted code, such as pull requests: run everything in a process without "
        "network, secrets and files of others, as far as the system allows"
    )
    dry_run: bool = option("run one seed of each check, and estimate the time that all seeds take")
    summary: Path | None = option(
        "append a Markdown report to this file, e.g. $GITHUB_STEP_SUMMARY", metavar="FILE"
    )


class _Options(SharedOptions):
    settings = ("seed", "threads", "output", "max_seconds")

    check: list[str] = argument(
        "name of a check in leakaudit.toml (default: all checks)", nargs="*", metavar="CHECK"
    )
    gate: _GateOptions
    baseline: BaselineOptions
    format: list[str] | None = option(
        "format of the output, see 'leakaudit list reports'; FORMAT=FILE writes a file; "
        "repeatable (default text)",
        "-f",
        metavar="FORMAT",
        names="reports",
    )
    verbose: bool = option("list the rules that are within their limits, too", "-v")


@command(
    "check",
    "gate of a CI job: fail if your program leaks more than allowed, or update the baseline",
    "Runs and attacks your training program as configured in leakaudit.toml, and fails if "
    "it leaks more than the budgets or the baseline allow. Exit code: 0 no regression, "
    "1 leak, 2 configuration error, 3 inconclusive, 4 the run failed.",
    "leakaudit check --strict",
    "leakaudit check main -f text -f junit=leakage.xml",
    'leakaudit check --update --reason "larger batches"',
)
def run(args: _Options) -> int:
    """Run the gate and print the outcome, or do what concerns the baseline."""
    asked = args.baseline
    if asked.update or asked.show or asked.diff is not None:
        return _baseline(args)
    asked.refuse("only with --update")
    if args.gate.untrusted:
        return _untrusted(args)
    _prepare()
    from leakaudit.judging.gate import files, judge
    from leakaudit.reporting.rendering import console
    from leakaudit.reporting.results import model

    chosen = settings(args)
    formats = [_format(f) for f in args.format or ["text"]]
    gate = files.configured(Path()).only(args.check)
    options = judge.GateOptions(chosen.seed, args.gate.strict)
    if args.gate.dry_run:
        with console.shown(chosen.progress):
            return _dry(gate, chosen.seed, any(name == "json" for name, _ in formats))
    base = files.compared(gate)
    output = Path(chosen.output)
    # A run that breaks leaves no verdict of an earlier one.
    (output / "results.json").unlink(missing_ok=True)
    with console.shown(chosen.progress, chosen.max_seconds, main="runs"):
        judged = judge.run(gate, options, base)
    made = files.write(judged, output)
    _report(model.plain(made), formats, output, args)
    say(f"{output / 'results.json'}: {made.gate.verdict}, {judged.seconds:.1f} s", args)
    return INTERRUPTED if judged.interrupted else judged.code


def _baseline(args: _Options) -> int:
    args.gate.refuse("not with --update, --diff or --show")
    forms = args.format or ["text"]
    if len(forms) > 1 or forms[0] not in ("text", "json"):
        raise LeakauditError("-f: expected text or json with --update, --diff or --show")
    if args.check and not args.baseline.update:
        raise LeakauditError(f"{' '.join(args.check)}: names of checks are only for --update")
    return baseline.run(args.baseline, args.check, forms[0], args)


def _untrusted(args: _Options) -> int:
    """Run the gate in isolation, and print the outcome here, without plug-ins."""
    from leakaudit.core import registry
    from leakaudit.judging.gate import untrusted
    from leakaudit.reporting.results import record_file

    chosen = settings(args)
    words = [*args.check, "--quiet"]
    for name in ("seed", "threads", "max_seconds"):
        words += [f"--{name.replace('_', '-')}", str(getattr(chosen, name))]
    for module in args.plugin:
        words += ["--plugin", module]
    for name in ("strict", "dry_run"):
        if getattr(args.gate, name):
            words.append(f"--{name.replace('_', '-')}")
    output = Path(chosen.output)
    with registry.without_plugins():
        formats = [_format(f) for f in args.format or ["text"]]
    code = untrusted.check(words, Path(), output, args.gate.dry_run)
    if not args.gate.dry_run and code in untrusted.VERDICTS:
        with registry.without_plugins():
            _report(record_file.read(output / untrusted.RESULTS), formats, output, args)
        say(f"{output / untrusted.RESULTS}: made in isolation", args)
    return code


def _report(
    shown: Mapping[str, Any],
    formats: list[tuple[str, Path | None]],
    folder: Path,
    args: _Options,
) -> None:
    from leakaudit.core import registry
    from leakaudit.reporting.rendering import attachments

    for name, file in formats:
        drawn = shown
        if name == "html":
            drawn = attachments.with_pictures(shown, folder)
        _show(name, file, drawn, args)
    if args.gate.summary:
        with args.gate.summary.open("a", encoding="utf-8") as summary:
            summary.write(registry.get("reports", "markdown")(shown))


def _prepare() -> None:
    """Start the process from which programs are forked; it imports torch meanwhile."""
    from leakaudit.judging.gate import tables

    if any(check.run for check in tables.load(Path()).checks):
        from leakaudit._util import forks

        forks.context()


def _format(text: str) -> tuple[str, Path | None]:
    """Parse FORMAT or FORMAT=FILE; an unknown format is rejected at once."""
    from leakaudit.core import registry

    name, equals, file = text.partition("=")
    if equals:
        registry.get("reports", name)
        return name, Path(file)
    expect_text(name)
    return name, None


def _show(name: str, file: Path | None, made: Mapping[str, Any], args: _Options) -> None:
    from leakaudit._util.files import replacing
    from leakaudit.core import registry
    from leakaudit.reporting.rendering import console

    render = registry.get("reports", name)
    if name == "sarif":
        made = {**made, "prefix": _prefix(Path.cwd())}
    if name == "text":
        fit: console.Form = {}
        if file is None:
            fit = console.fit()
        render = partial(render, verbose=args.verbose, **fit)
    shown = render(made)
    if isinstance(shown, str):
        shown = (shown.rstrip("\n") + "\n").encode()
    if file is None:
        show(shown.decode())
        return
    with replacing(file) as out:
        out.write(shown)


def _prefix(folder: Path) -> str:
    """The path of a folder in its git repository; "" for the root, or outside."""
    for root in (folder, *folder.parents):
        if (root / ".git").exists():
            return "" if root == folder else folder.relative_to(root).as_posix()
    return ""


def _dry(gate: Gate, seed: int, as_json: bool) -> int:
    from leakaudit.judging.gate import cost

    found = cost.estimate(gate, seed)
    if as_json:
        show_json([{**asdict(one), "total": one.total} for one in found])
        return 0
    for one in found:
        show(
            f"{one.check}: {gate.seeds} seeds, {one.recording:.1f} s to record, "
            f"{one.attacks:.1f} s to attack, {one.once:.1f} s for lint and controls\n"
        )
    show(
        f"about {sum(one.total for one in found):.0f} s in total, estimated from one seed; nothing "
        "was judged or written\n"
    )
    return 0
