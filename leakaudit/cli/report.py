"""`leakaudit report`: results.json in another form, alone or compared with earlier results."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit.cli._options import say
from leakaudit.errors import LeakauditError

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD = "results.json"


def add(verbs: Any) -> None:
    """Describe the verb.

    Args:
        verbs: The subparsers of `leakaudit`.
    """
    sub = verbs.add_parser(
        "report",
        help=(
            "results.json as HTML, Markdown, JUnit, SARIF, text or annotations; compared with "
            "earlier results"
        ),
    )
    sub.add_argument(
        "results",
        type=Path,
        metavar="RESULTS",
        help="results.json, or the folder that holds it with its pictures",
    )
    sub.add_argument(
        "-f",
        "--format",
        default="html",
        help="html (default), markdown, text, json, junit, sarif, github, or a plugin's",
    )
    sub.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write, its folder included (default: stdout)",
    )
    sub.add_argument(
        "--redact",
        action="store_true",
        help="no pictures, labels, notes or paths, and nodes under other numbers",
    )
    sub.add_argument(
        "--redact-key",
        metavar="TEXT",
        help="redact, with the same node numbers wherever this secret is used",
    )
    sub.add_argument(
        "--against",
        type=Path,
        metavar="RESULTS",
        help="earlier results.json, or its folder, to compare with",
    )
    sub.add_argument(
        "--location",
        metavar="FILE",
        help="file of your repository that SARIF points at (default leakaudit.toml)",
    )
    sub.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="MODULE",
        help=(
            "module of your own with reports, of the current folder or installed; its code runs; "
            "repeatable"
        ),
    )
    sub.add_argument("-q", "--quiet", action="store_true", help="no notes on stderr")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Render, and then write all of it or nothing.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    from leakaudit import registry
    from leakaudit._util.files import replacing
    from leakaudit.rendering import gallery
    from leakaudit.results import comparison, redaction
    from leakaudit.results import record_file as results

    registry.get("reports", args.format)
    source = file_of(args.results)
    shown = results.read(source)
    render = _renderer(shown["kind"], args.format)
    if shown["kind"] == "sweep" and (
        args.against is not None or args.redact or args.redact_key is not None
    ):
        raise LeakauditError(
            "a sweep's record holds neither pictures nor labels, and is compared with none; leave "
            "--against and --redact out"
        )
    earlier = None
    if args.against is not None:
        if shown["kind"] == "check":
            raise LeakauditError(
                "a gate compares with its baseline; --against takes results of 'attack' and 'audit'"
            )
        earlier = results.read(file_of(args.against))
    if args.location is not None:
        shown = {**shown, "location": args.location}
    redacted = args.redact or args.redact_key is not None
    if not redacted:
        results.whole(shown, source.parent)
    if redacted and earlier is not None:
        shown = redaction.redact_compared(shown, earlier, args.redact_key)
    elif redacted:
        shown = redaction.redact(shown, args.redact_key)
    elif earlier is not None:
        shown = comparison.compare(shown, earlier)
    if not redacted and args.format == "html" and shown["kind"] != "sweep":
        shown = gallery.with_pictures(shown, source.parent)
    page = render(shown).encode("utf-8", "backslashreplace")
    if args.output is None:
        sys.stdout.buffer.write(page)
        return 0
    with replacing(args.output) as file:
        file.write(page)
    say(f"{args.output}: written", args)
    return 0


def _renderer(kind: str, name: str) -> Callable[[Any], str]:
    """Return the function that renders; audits, gates and sweeps have forms of their own."""
    from leakaudit import registry
    from leakaudit.results import comparison

    render: Callable[[Any], str] = registry.get("reports", name)
    if kind == "audit" and name in ("text", "markdown"):
        from leakaudit.auditing import words

        if name == "markdown":
            return lambda results: words.markdown(results, render(results))
        return lambda results: (
            words.text(results)
            + "".join(f"{line}\n" for line in comparison.lines(results.get("against") or {}))
        )
    if kind == "sweep":
        from leakaudit.sweeping import words as swept

        forms: dict[str, Callable[[Any], str]] = {
            "text": swept.text,
            "markdown": swept.markdown,
            "json": render,
        }
        if name not in forms:
            raise LeakauditError(f"a sweep is shown as {', '.join(forms)}, got -f {name}")
        return forms[name]
    if kind == "check" and name in ("text", "markdown"):
        from leakaudit.gate import text

        own: Callable[[Any], str] = getattr(text, name)
        return own
    return render


def file_of(path: Path) -> Path:
    """Return where a record is.

    Args:
        path: The file, or the folder that holds it.

    Returns:
        The file.
    """
    if path.is_dir():
        return path / RECORD
    return path
