"""`leakaudit view`: a list of runs in the browser, with their reports and comparisons."""

from __future__ import annotations

import html
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from leakaudit._util.files import replacing
from leakaudit._util.plural import counted
from leakaudit.cli._commands import Options, argument, command, option
from leakaudit.cli._options import say, show
from leakaudit.core.errors import LeakauditError

NEEDED = ("starlette", "uvicorn")  # packages of the extra `view`
UNSHOWN = 3  # exit code of an export in which a report is missing
TOLD = 10  # largest number of missing reports that are listed
# The page that leads a browser to an address; some browsers do not follow it by themselves.
LEADING = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>leakaudit</title>
<p><a href="{address}">Open the list of runs</a></p>
</html>
"""


class _Options(Options):
    folder: Path = argument(
        "folder with runs, in any depth (default: the current folder)",
        nargs="?",
        default=Path(),
        metavar="FOLDER",
    )
    port: int = option("port of the loopback interface (default: any free port)", default=0)
    open: bool = option("open the address in the default browser")
    export: Path | None = option(
        "write the list and the reports to this folder, for any web server, and exit",
        metavar="SITE",
    )
    quiet: bool = option("write no notes to stderr", "-q")


@command(
    "view",
    "browse a folder of runs: filter, compare, open reports, watch sweeps",
    "Serves a list of all runs in a folder to your own browser, with filters, comparisons, "
    "reports and the progress of runs. It can also write these pages as files.",
    "leakaudit view results/",
    "leakaudit view results/ --export site/",
)
def run(args: _Options) -> int:
    """Serve a folder until Ctrl-C, or export it."""
    if args.export is not None:
        return _export(args, args.export)
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise LeakauditError(
            f"the viewer needs {' and '.join(missing)}; install the extra: pip install "
            "'leakaudit[view]'"
        )
    return _serve(args)


def _serve(args: _Options) -> int:
    from leakaudit.reporting.viewing import server

    token = secrets.token_urlsafe(32)
    listener = server.listen(args.port)
    with listener, ExitStack() as until_the_end:
        port = listener.getsockname()[1]
        app = server.application(args.folder, token, port)
        address = f"http://{server.LOOPBACK}:{port}/{token}/"
        show(f"{address}\n")
        say("anyone with this address can read the folder; end with Ctrl-C", args)
        if args.open:
            until_the_end.enter_context(_opened(address))
        try:
            server.server(app).run(sockets=[listener])
        except KeyboardInterrupt:
            say("\nended", args)
    return 0


@contextmanager
def _opened(address: str) -> Iterator[None]:
    """Open an address in the default browser, and clean up at the end.

    All users can read its command line, so it names a page that only its owner can read.
    """
    import webbrowser

    with tempfile.TemporaryDirectory(prefix="leakaudit-") as folder:
        page = Path(folder) / "open.html"
        with replacing(page, durable=False) as file:
            file.write(LEADING.format(address=html.escape(address)).encode())
        webbrowser.open(page.as_uri())
        yield


def _export(args: _Options, site: Path) -> int:
    """Write the pages; a run without a report has one that states why."""
    from leakaudit.reporting.rendering import console
    from leakaudit.reporting.viewing.export import export

    progress = "none" if args.quiet or not sys.stderr.isatty() else "auto"
    with console.shown(progress):
        from leakaudit.core.progress import step

        made = export(args.folder, site, step)
    for place, why in made.failed[:TOLD]:
        say(f"{place}: {why}", args)
    if len(made.failed) > TOLD:
        say(f"{len(made.failed) - TOLD} more runs have no report", args)
    written = counted(made.pages, "report")
    say(
        f"{site}: the list and {written}, which contain personal data if the training data does",
        args,
    )
    return UNSHOWN if made.failed else 0
