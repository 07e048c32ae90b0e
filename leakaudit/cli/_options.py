"""What the commands share: options, settings, plug-ins and output."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from leakaudit._util.settings import resolve, size
from leakaudit.cli._commands import Options, SharedOptions, option
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.runs.workers.executor import Executor

BINARY = ("pdf", "png")  # report formats that are not text
INCONCLUSIVE = 3  # exit code of a result about a recording that is not what it declares
LOADING = "leakaudit: loading PyTorch ..."


def text_or_json() -> Any:
    """Declare the option that chooses between text and JSON."""
    return option("format of the output", "-f", default="text", choices=("text", "json"))


def trusting(what: str) -> Any:
    """Declare the option that allows one model to execute its code."""
    return option(
        f"allow this model to execute its code if the {what} names it",
        default=False,
        metavar="MODULE:FACTORY",
    )


class PageOptions(Options):
    """The options of a command whose result can also be one HTML page."""

    format: str | None = option(
        "format of the output (default: html with -o, otherwise text)",
        "-f",
        choices=("text", "json", "html"),
    )
    output: Path | None = option(
        "file to write; missing folders are created (default: stdout)", "-o", metavar="FILE"
    )

    def form(self) -> str:
        """Return the requested format."""
        if self.format is None:
            return "text" if self.output is None else "html"
        if self.format == "text" and self.output is not None:
            raise LeakauditError("-o: expected -f html or -f json; text is written to stdout only")
        return self.format

    def write(self, text: str, args: SharedOptions) -> None:
        """Write the output of a command, completely or not at all."""
        page = text.encode("utf-8", "backslashreplace")
        if self.output is None:
            sys.stdout.buffer.write(page)
            return
        from leakaudit._util.files import expect_page, replacing

        expect_page(self.output)
        with replacing(self.output) as file:
            file.write(page)
        say(f"{self.output}: written", args)


WORKERS = (
    "number of processes, with one thread each; 0 runs in this process (default: {}). On a "
    "cluster: most jobs at a time (default: twice its cores)"
)


class ComputeOptions(Options):
    """The options that choose where jobs are computed."""

    workers: int | None = option(WORKERS.format("0, this process"), metavar="N")
    backend: str = option(
        "process, loky, dask, ray, joblib, or joblib:NAME; results do not depend on it",
        default="process",
        metavar="NAME",
    )
    address: str | None = option(
        "address of the running cluster of dask or ray", metavar="HOST:PORT"
    )

    def executor(self) -> Executor:
        """Return the executor that the options choose; its workers begin to start."""
        from leakaudit._util import forks
        from leakaudit._util.jobs import PROCESS
        from leakaudit.runs.workers.executor import Executor

        executor = Executor.of(self.workers, self.backend, self.address)
        if executor.backend == PROCESS and executor.workers:
            forks.context()  # it imports torch for the workers while this process reads its input
        return executor


def text_renderer(name: str) -> Callable[..., str]:
    """Return a report format whose output may go to stdout."""
    from leakaudit.core import registry

    render: Callable[..., str] = registry.get("reports", name)
    if name in BINARY:
        raise LeakauditError(
            f"-f: {name} is not text; write it with 'leakaudit report FOLDER -o FILE.{name}'"
        )
    return render


def plugins(args: argparse.Namespace) -> None:
    """Import the modules that ``--plugin`` names."""
    if getattr(args, "plugin", None) and not getattr(args, "untrusted", False):
        from leakaudit.core.registry import add_plugins

        add_plugins(args.plugin)


@contextmanager
def loading(args: argparse.Namespace) -> Iterator[None]:
    """Say on a terminal that PyTorch is being imported, which takes seconds.

    A verb that shows its progress has more to import; its line stays until `settings`.
    """
    from leakaudit.reporting.rendering import status

    if not getattr(args, "quiet", False) and getattr(args, "progress", None) != "none":
        status.put(LOADING)
    yield
    if not hasattr(args, "progress"):
        status.clear()


def load_torch() -> None:
    """Import torch without collecting garbage: its objects stay, and are never searched again."""
    if "torch" in sys.modules:
        return
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        gc.enable()
    gc.freeze()


def settings(args: SharedOptions) -> argparse.Namespace:
    """Return the effective settings of a call, and apply those that concern torch.

    Plug-ins are imported first.
    """
    from leakaudit.reporting.rendering import status

    plugins(args.given)
    status.clear()
    values = {name: value for name, (value, _) in resolve(vars(args.given)).items()}
    if args.quiet:
        values["progress"] = "none"
    import torch

    torch.set_num_threads(max(1, values["threads"]))
    device = str(values["device"])
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise LeakauditError(f"device {device!r} cannot be used: {reason}") from None
    return argparse.Namespace(**values)


def memory(text: str) -> int:
    """Read a number of bytes on the command line, such as 1GB."""
    try:
        found = size(text)
    except (ValueError, OverflowError):
        found = 0
    if found <= 0:
        raise argparse.ArgumentTypeError(f"expected a size such as 1GB, got {text!r:.40}")
    return found


def half_of_free() -> int | None:
    """Return half of the memory that is free, in bytes; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 // 2
    return None


class _Addressee(Protocol):
    quiet: bool


def say(text: str, args: _Addressee) -> None:
    """Write a note to stderr, unless the user asked for quiet."""
    if not args.quiet:
        sys.stderr.write(text.rstrip("\n") + "\n")


def concluded(reasons: Sequence[str], form: str) -> int:
    """Write why a result is inconclusive, also if the user asked for quiet.

    The sentences follow a text; JSON contains them itself, so they are written to stderr.
    """
    out = sys.stderr if form == "json" else sys.stdout
    for reason in reasons:
        out.write(f"INCONCLUSIVE: {reason}\n")
    return INCONCLUSIVE if reasons else 0


def show(text: str) -> None:
    """Write to stdout and flush; if the reader has closed the pipe, the exit code is unaffected."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        mute()


def mute() -> None:
    """Discard further output to stdout, so that flushing it at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
