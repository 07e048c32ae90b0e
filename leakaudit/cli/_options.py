"""What the commands share: options, settings, plug-ins and output."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from leakaudit._util.settings import resolve, size
from leakaudit.cli._commands import Options, SharedOptions, argument, option
from leakaudit.core.errors import INTERRUPTED as INTERRUPTED
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from rich.text import Text

    from leakaudit.core.adversary import Adversary
    from leakaudit.core.trace import TaskSpec, Trace
    from leakaudit.reporting.rendering.tables import Column
    from leakaudit.reporting.results.model import Record
    from leakaudit.runs.workers.executor import Executor

Number = TypeVar("Number", int, float)
INCONCLUSIVE = 3  # exit code of a result that proves nothing
LOADING = "leakaudit: loading PyTorch ..."
BINARY = ("pdf", "png")  # report formats that are not text
SUFFIXES = {  # suffix of a file -> the formats that it may have, first the one that it stands for
    ".html": ("html",),
    ".htm": ("html",),
    ".md": ("markdown",),
    ".txt": ("text", "markdown", "json", "junit", "sarif", "github", "csv", "latex"),
    ".json": ("json", "sarif"),
    ".xml": ("junit", "svg"),
    ".sarif": ("sarif",),
    ".csv": ("csv",),
    ".tex": ("latex",),
    ".pdf": ("pdf",),
    ".svg": ("svg",),
    ".png": ("png",),
}
KNOWN = {name for names in SUFFIXES.values() for name in names}

TRACE = argument("trace file, or folder of shards")
# The formats of a record that a command prints, besides those of `leakaudit report`.
PRINTED = option(
    "format of the output; repeatable (default text)",
    "-f",
    choices=("text", "json", "markdown"),
)
TEXT_OR_JSON = option("format of the output", "-f", default="text", choices=("text", "json"))


def trusting(what: str) -> Any:
    """Declare the option that trusts one model."""
    return option(
        f"allow this model to execute its code if the {what} names it",
        default=False,
        metavar="MODULE:FACTORY",
    )


def expect_format(name: str, output: Path | None) -> None:
    """Refuse a file whose suffix stands for another format; plug-ins may use any."""
    if output is None or name not in KNOWN:
        return
    fitting = SUFFIXES.get(output.suffix.lower())
    if fitting is not None and name not in fitting:
        raise LeakauditError(
            f"-f {name} does not fit {output}, whose suffix stands for {fitting[0]}; omit -f, or "
            "change the suffix"
        )


class PageOptions(Options):
    """The options of a command whose result can be an HTML page."""

    format: str | None = option(
        "format of the output (default: that of the suffix of -o, html or json; otherwise text)",
        "-f",
        choices=("text", "json", "html"),
    )
    output: Path | None = option(
        "file to write; missing folders are created (default: stdout)", "-o", metavar="FILE"
    )

    def form(self) -> str:
        """Return the requested format."""
        if self.output is None:
            return self.format or "text"
        if self.format == "text":
            raise LeakauditError("-o: expected -f html or -f json; text is written to stdout only")
        if self.format is None:
            return "json" if self.output.suffix.lower() == ".json" else "html"
        expect_format(self.format, self.output)
        return self.format

    def write(self, text: str, args: SharedOptions) -> None:
        """Write the output of a command, completely or not at all."""
        write_page(text, self.output, args)

    def write_json(self, values: Any, args: SharedOptions) -> None:
        """Write the output of a command as JSON."""
        self.write(json.dumps(values, indent=2) + "\n", args)


class ModelOptions(Options):
    """The options that describe a model and its inputs."""

    model: str | None = option(
        "trained model, see 'leakaudit list models', package.module:factory, or a "
        "torch.export program file.pt2",
        metavar="NAME",
    )
    shape: str | None = option("shape of one input, e.g. 1,25,25")
    classes: int | None = option("number of classes", metavar="C")
    loss: str = option(
        "loss: cross_entropy, binary, squared or next_token",
        default="cross_entropy",
    )

    def spec(
        self, args: Mapping[str, Any], classes: int | None = None, **more: Any
    ) -> TaskSpec | None:
        """Return the task with some arguments of the model; None if no model is named."""
        from leakaudit.core.trace import TaskSpec

        if self.model is None:
            return None
        shape = numbers(self.shape, "--shape")
        if self.classes is not None:
            classes = self.classes
        if shape is None:
            raise LeakauditError("--model also needs --shape, that of one input")
        if classes is None:
            raise LeakauditError("--model also needs --classes, their number")
        return TaskSpec(
            self.model, dict(args), loss=self.loss, shape=shape, classes=classes, **more
        )


def numbers(
    text: str | None, flag: str, kind: Callable[[str], Number] = int
) -> tuple[Number, ...] | None:
    """Parse numbers separated by commas; None if not given."""
    if text is None:
        return None
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        whole = "whole " if kind is int else ""
        raise LeakauditError(
            f"{flag}: expected {whole}numbers separated by commas, got {text!r}"
        ) from None


def write_page(page: str | bytes, output: Path | None, args: _Addressee, *read: Path) -> None:
    """Write a page to stdout or a file, which must not be one that was read."""
    if isinstance(page, str):
        page = page.encode("utf-8", "backslashreplace")
    if output is None:
        sys.stdout.buffer.write(page)
        return
    from leakaudit._util.files import expect_page, replacing

    expect_page(output, *read)
    with replacing(output) as file:
        file.write(page)
    say(f"{output}: written", args)


FIGURE = option(
    "write the figure for a paper, 174 mm wide, to this .pdf, .svg or .png file", metavar="FILE"
)


def expect_figure(figure: Path | None) -> None:
    """Refuse a file of another kind than a figure before any work."""
    if figure is not None:
        from leakaudit.reporting.figures import plots

        plots.expect_suffix(figure, "--figure")


def draw_figure(figure: Path | None, record: Record, args: _Addressee) -> None:
    """Draw the figure of a record for a paper, if it was asked for."""
    if figure is None:
        return
    from leakaudit.reporting.figures import paper, record_figure
    from leakaudit.reporting.results import model

    drawn, title = record_figure.of(model.plain(record))
    paper.save(drawn, figure, paper.WIDTHS["page"], title)
    say(f"{figure}: written", args)


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


class ListenerOptions(Options):
    """The adversary on the command line."""

    adversary: str = option(
        "adversary: eavesdropper, node:3, nodes:3,5 (a coalition), edges:0-1,1-0 (some "
        "channels), or several joined by '+'",
        "--as",
        default="eavesdropper",
        metavar="WHO",
        names="adversaries",
    )
    rounds: str | None = option(
        "rounds that the adversary observes, A to B - 1 (default: all)", metavar="A:B"
    )
    knows: str | None = option(
        "constants and public tensors that the adversary knows, e.g. rho,theta, or none; it "
        "computes others from the messages if they determine them (default: all)",
        metavar="NAMES",
    )

    def parse(self) -> Adversary:
        """Return the adversary that the options define."""
        from leakaudit.core.adversary import Adversary

        rounds = window(self.rounds)
        if self.knows:
            return Adversary.parse(self.adversary, rounds, frozenset(self.knows.split(",")))
        return Adversary.parse(self.adversary, rounds)


def window(text: str | None) -> range | None:
    """Parse A:B, A: or :B, the rounds A to B - 1; None for all."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not colon or not all(part.isdecimal() or not part for part in (first, last)):
        raise LeakauditError(f"--rounds: expected A:B, such as 0:11, got {text!r}")
    rounds = range(int(first or 0), int(last) if last else sys.maxsize)
    if not rounds:
        raise LeakauditError(
            f"--rounds: expected A:B with A < B, got {text!r}, which contains no round"
        )
    return rounds


def expect_text(name: str) -> None:
    """Refuse a format that does not exist, or may not go to stdout."""
    from leakaudit.core import registry

    registry.get("reports", name)
    if name in BINARY:
        raise LeakauditError(
            f"-f: {name} is not text; write it with 'leakaudit report FOLDER -o FILE.{name}'"
        )


def show_record(results: Mapping[str, Any], name: str) -> None:
    """Print a record in one format; text fits the terminal."""
    from leakaudit.core import registry
    from leakaudit.reporting.rendering import console

    fit: dict[str, Any] = {}
    if name == "text":
        fit = console.fit()
    show(registry.get("reports", name)(results, **fit).rstrip("\n") + "\n")


def show_json(value: Any) -> None:
    """Print values as indented JSON."""
    show(json.dumps(value, indent=2) + "\n")


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> None:
    """Print a table that fits the terminal."""
    from leakaudit.reporting.rendering import console, tables

    console.stdout().print(tables.table(columns, rows, console.width()))


def size_of(trace: Trace) -> str:
    """Return the size of a recording in words."""
    return (
        f"{trace.graph.nodes} nodes, {len(trace.graph.edges)} edges, {trace.rounds} rounds, "
        f"{len(trace)} messages"
    )


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
    """Import torch without collecting garbage: its objects stay."""
    if "torch" in sys.modules:
        return
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        gc.enable()
    gc.freeze()


def settings(args: SharedOptions) -> argparse.Namespace:
    """Import plug-ins, and return the effective settings, after applying those of torch."""
    from leakaudit.reporting.rendering import status

    plugins(args.given)
    status.clear()
    values = {name: value for name, (value, _) in resolve(vars(args.given)).items()}
    if args.quiet:
        values["progress"] = "none"
    if values["seed"] < 0:
        raise LeakauditError(f"seed: expected a whole number >= 0, got {values['seed']}")
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
    """Return half of the free memory in bytes; None where the system does not tell."""
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

    JSON contains the reasons itself, so they go to stderr.
    """
    out = sys.stderr if form == "json" else sys.stdout
    for reason in reasons:
        out.write(f"INCONCLUSIVE: {reason}\n")
    return INCONCLUSIVE if reasons else 0


def show(text: str) -> None:
    """Write to stdout and flush; a reader that closed the pipe changes no exit code."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        mute()


def mute() -> None:
    """Discard further output to stdout, so that flushing it at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
