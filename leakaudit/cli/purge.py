"""`leakaudit purge`: delete images and truths, and keep the figures."""

from __future__ import annotations

import sys
from pathlib import Path

from leakaudit.cli._commands import Options, argument, command, option


class _Options(Options):
    folder: Path = argument("folder with results or recordings")
    yes: bool = option("delete; this cannot be undone")
    quiet: bool = option("do not list the files", "-q")


@command(
    "purge",
    "delete images and truths from a folder, and keep the figures",
    "Lists the truth files, images, pages and labels that leakaudit wrote to a folder, and "
    "deletes them with --yes, whatever the names of the files. Scores, charts, traces and "
    "all files of other programs are kept.",
    "leakaudit purge leakaudit-out",
    "leakaudit purge leakaudit-out --yes",
)
def run(args: _Options) -> int:
    """List the files, and delete them if the user confirmed it."""
    from leakaudit.reporting.findings.wording import clean
    from leakaudit.runs.pipeline import purge

    found = purge.planned(args.folder)
    for one in found:
        if args.yes:
            one.do()
        verb = "delete" if one.record is None else "remove"
        if not args.quiet:
            sys.stdout.write(f"{verb} {clean(one.path)}: {one.what}\n")
    last = "nothing was deleted; add --yes to delete" if not args.yes else "done"
    if not found:
        last = "no images, truths or labels of leakaudit found"
    if not args.quiet:
        sys.stderr.write(f"leakaudit purge: {clean(args.folder)}: {last}\n")
    return 0
