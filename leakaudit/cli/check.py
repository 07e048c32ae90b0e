"""`leakaudit check`: the gate of a CI run, as configured in leakaudit.toml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit.cli._commands import Options, SharedOptions, argument, command, option
from leakaudit.cli._options import (
    INTERRUPTED,
    expect_text,
    say,
    settings,
    show,
    show_json,
    show_table,
)
from leakaudit.core.errors import LeakauditError, one_line

if TYPE_CHECKING:
    from leakaudit.judging.gate.baseline import Baseline, Change
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


class _BaselineOptions(Options):
    """What is done with the baseline, in place of a check."""

    update: bool = option(
        "run the checks and accept the leakage that they measure as the new baseline"
    )
    reason: str | None = option(
        "with --update: why the new values are acceptable; stored in the baseline", metavar="TEXT"
    )
    diff: str | None = option(
        "print which measures of a later run differ from the baseline: of the results.json of a "
        "check, or of another baseline (default: results.json in --output)",
        nargs="?",
        const="",
        metavar="RESULTS",
    )
    show: bool = option("print the mean of every measure in the baseline")


class _Options(SharedOptions):
    settings = ("seed", "threads", "output", "max_seconds")

    check: list[str] = argument(
        "name of a check in leakaudit.toml (default: all checks)", nargs="*", metavar="CHECK"
    )
    gate: _GateOptions
    baseline: _BaselineOptions
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
    if args.gate.dry_run:
        with console.shown(chosen.progress):
            return _dry(gate, chosen.seed, any(name == "json" for name, _ in formats))
    base = files.compared(gate)
    output = Path(chosen.output)
    # A run that breaks leaves no verdict of an earlier one.
    (output / "results.json").unlink(missing_ok=True)
    with console.shown(chosen.progress, chosen.max_seconds, main="runs"):
        judged = judge.run(gate, base, chosen.seed, strict=args.gate.strict)
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
    return _of_baseline(args, forms[0])


def _of_baseline(args: _Options, form: str) -> int:
    """Update, compare or show the baseline."""
    from leakaudit.judging.gate import baseline, files
    from leakaudit.reporting.rendering import console

    asked = args.baseline
    chosen = settings(args)
    gate, path = _configured()
    if asked.update:
        if not asked.reason:
            raise LeakauditError(
                "--update: expected --reason TEXT, why the new values are acceptable"
            )
        with console.shown(chosen.progress, chosen.max_seconds, main="runs"):
            _, before, after = files.update(gate.only(args.check), chosen.seed, asked.reason)
        _write(baseline.changes(before, after), form, "no sample changed")
        say(f"{path}: written", args)
    elif asked.diff is not None:
        other = files.from_results(Path(asked.diff or Path(chosen.output) / "results.json"))
        _write(baseline.changes(baseline.read(path), other), form, "no difference")
    elif form == "json":
        show_json(baseline.means(baseline.read(path)))
    else:
        _table(baseline.read(path))
    return 0


def _configured() -> tuple[Gate, Path]:
    from leakaudit.judging.gate import files

    gate = files.configured(Path())
    if gate.baseline_path is None:
        raise LeakauditError(f"{gate.source}: gate.baseline is empty; set it to the name of a file")
    return gate, gate.baseline_path


def _table(base: Baseline) -> None:
    from leakaudit._util import averages
    from leakaudit.reporting.findings import wording
    from leakaudit.reporting.rendering.tables import Column

    show(f"{wording.clean(f'updated {base.updated}: {base.reason}')}\n")
    rows = []
    for name, cell in sorted(base.cells.items()):
        means = []
        for measure, samples in sorted(cell.samples.items()):
            means.append(f"{measure} {wording.figure(measure, averages.mean(samples))}")
        rows.append((name, str(len(cell.seeds)), ", ".join(means)))
    columns = (Column("cell"), Column("seeds", right=True), Column("means", text=True))
    show_table(columns, rows)


def _write(found: Sequence[Change], form: str, nothing: str) -> None:
    if form == "json":
        show_json([values for _, values in found])
        return
    for said, _ in found:
        show(f"{one_line(said)}\n")
    if not found:
        show(f"{nothing}\n")


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

    if any(check.run or check.tap for check in tables.load(Path()).checks):
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
        fit: dict[str, Any] = {}
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
        show_json([{"check": name, **seconds} for name, seconds in found])
        return 0
    for name, one in found:
        show(
            f"{name}: {gate.seeds} seeds, {one['recording']:.1f} s to record, "
            f"{one['attacks']:.1f} s to attack, {one['once']:.1f} s for lint and controls\n"
        )
    total = sum(one["total"] for _, one in found)
    show(f"about {total:.0f} s in total, estimated from one seed; nothing was judged or written\n")
    return 0
