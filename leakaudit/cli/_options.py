"""What the verbs share: parsers, options, settings, plug-ins and output."""

from __future__ import annotations

import argparse
import difflib
import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from leakaudit._util.settings import SETTINGS, resolve, size
from leakaudit.errors import LeakauditError, suggest

if TYPE_CHECKING:
    from leakaudit._util.executor import Executor

BINARY = ("pdf", "png")  # report formats that are not text
INCONCLUSIVE = 3  # exit code of a result about a recording that is not what it declares
LOADING = "leakaudit: loading PyTorch ..."
EXAMPLES = "examples:"  # heading of the examples below the options


class Told(SystemExit):
    """A parser has printed help, a version or an error.

    Any other SystemExit comes from code that was loaded.
    """


class _Help(argparse.HelpFormatter):
    """Wraps descriptions, and leaves each example on its own line."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(EXAMPLES):
            return text
        return super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """A parser whose help begins with the description, and whose errors are one line."""

    def __init__(self, **given: Any) -> None:
        """Accept whole option names only: ``--node`` must not be taken for ``--nodes``."""
        super().__init__(**{"allow_abbrev": False, **given})

    def format_help(self) -> str:
        """Return the description, the usage, the options and the examples."""
        formatter = self._get_formatter()
        formatter.add_text(self.description)
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def parse_known_args(  # type: ignore[override]  # typeshed has overloads for other namespaces
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Report unknown options first: a missing argument may follow from a mistyped option."""
        given = sys.argv[1:] if args is None else args
        self._reject_unknown(self._own_words(given))
        found, rest = super().parse_known_args(args, namespace)
        if self._subparsers is None:
            self._reject_unknown(rest)
        return found, rest

    def _own_words(self, args: Sequence[str]) -> Iterator[str]:
        """Yield the words that this parser reads: neither those of a verb nor of a program."""
        program = any(action.nargs == argparse.REMAINDER for action in self._actions)
        if program and "--" not in args:
            return
        for word in args:
            if word == "--" or (self._subparsers is not None and not word.startswith("-")):
                return
            yield word

    def _reject_unknown(self, words: Iterable[str]) -> None:
        """End with the name of the first unknown option and of a similar one."""
        for word in words:
            name = word.partition("=")[0]
            if word.startswith("--") and name not in self._option_string_actions:
                near = difflib.get_close_matches(name, self._option_string_actions, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                self.error(f"there is no option {name}{hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Suggest a similar name in place of one that is not among the choices."""
        if action.choices is not None and value not in action.choices:
            what = "/".join(action.option_strings) or action.metavar or action.dest
            near = suggest(str(value), map(str, action.choices))
            raise argparse.ArgumentError(None, f"{what}: there is no {value!r}{near}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Print the message to stderr and end with `Told`."""
        if message:
            sys.stderr.write(message)
        raise Told(status)

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"{self.prog}: {message}; see '{self.prog} --help'\n")


def described(about: str, *examples: str) -> dict[str, Any]:
    """Return what the help of a verb shows around its options."""
    lines = [EXAMPLES, *(f"  {example}" for example in examples)]
    return {"description": about, "epilog": "\n".join(lines), "formatter_class": _Help}


def formats(sub: argparse.ArgumentParser) -> None:
    """Add the option that chooses between text and JSON."""
    sub.add_argument(
        "-f",
        "--format",
        choices=("text", "json"),
        default="text",
        help="format of the output (default text)",
    )


def page_formats(sub: argparse.ArgumentParser) -> None:
    """Add the options of a verb whose result can also be one HTML page."""
    sub.add_argument(
        "-f",
        "--format",
        choices=("text", "json", "html"),
        help="format of the output (default: html with -o, otherwise text)",
    )
    sub.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write; missing folders are created (default: stdout)",
    )


def page_format(args: argparse.Namespace) -> str:
    """Return the requested format of a verb with `page_formats`."""
    if args.format is None:
        return "text" if args.output is None else "html"
    if args.format == "text" and args.output is not None:
        raise LeakauditError("-o: expected -f html or -f json; text is written to stdout only")
    return str(args.format)


def write(text: str, args: argparse.Namespace) -> None:
    """Write the output of a verb with `page_formats`, completely or not at all."""
    page = text.encode("utf-8", "backslashreplace")
    if args.output is None:
        sys.stdout.buffer.write(page)
        return
    from leakaudit._util.files import replacing

    with replacing(args.output) as file:
        file.write(page)
    say(f"{args.output}: written", args)


def computing(sub: argparse.ArgumentParser, default: str = "0, this process") -> None:
    """Add the options that choose where jobs are computed."""
    sub.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="number of processes, with one thread each; 0 runs in this process (default: "
        f"{default}). On a cluster: most jobs at a time (default: twice its cores)",
    )
    sub.add_argument(
        "--backend",
        default="process",
        metavar="NAME",
        help="process, loky, dask, ray, joblib, or joblib:NAME; results do not depend on it "
        "(default process)",
    )
    sub.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="address of the running cluster of dask or ray",
    )


def executor_of(args: argparse.Namespace) -> Executor:
    """Return the executor that the options of `computing` choose; its workers begin to start."""
    from leakaudit._util import forks
    from leakaudit._util.executor import PROCESS, Executor

    executor = Executor.of(args.workers, args.backend, args.address)
    if executor.backend == PROCESS and executor.workers:
        forks.context()  # it imports torch for the workers while this process reads its input
    return executor


def text_renderer(name: str) -> Callable[..., str]:
    """Return a report format whose output may go to stdout."""
    from leakaudit import registry

    render: Callable[..., str] = registry.get("reports", name)
    if name in BINARY:
        raise LeakauditError(
            f"-f: {name} is not text; write it with 'leakaudit report FOLDER -o FILE.{name}'"
        )
    return render


def shared(sub: argparse.ArgumentParser, *names: str) -> None:
    """Add options that several verbs share.

    Args:
        names: Settings of `leakaudit._util.settings`, which environment variables and files can
            set as well. The options for progress, plug-ins and quiet are always added.
    """
    group = sub.add_argument_group(
        "shared options",
        "LEAKAUDIT_* variables, leakaudit.toml and pyproject.toml can set most of these as well.",
    )
    for name in (*names, "progress"):
        _add_setting(group, name)
    sub.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="MODULE",
        help=(
            "import a module with your own victims, attacks or reports, from the current folder or "
            "installed; this executes its code. A protocol file (.toml) is read without executing "
            "code; repeatable"
        ),
    )
    sub.add_argument(
        "-q", "--quiet", action="store_true", help="write no progress and no notes to stderr"
    )


def _add_setting(group: argparse._ArgumentGroup, name: str) -> None:
    setting = SETTINGS[name]
    flag = f"--{name.replace('_', '-')}"
    if name == "download":
        group.add_argument(flag, action="store_const", const=True, default=None, help=setting.help)
        return
    flags = ["-o", flag] if name == "output" else [flag]
    group.add_argument(
        *flags,
        dest=name,
        default=None,
        metavar=name.split("_")[-1].upper(),
        help=f"{setting.help} (default {setting.default})",
    )


def plugins(args: argparse.Namespace) -> None:
    """Import the modules that ``--plugin`` names."""
    if getattr(args, "plugin", None) and not getattr(args, "untrusted", False):
        from leakaudit.registry import add_plugins

        add_plugins(args.plugin)


@contextmanager
def loading(args: argparse.Namespace) -> Iterator[None]:
    """Say on a terminal that PyTorch is being imported, which takes seconds.

    A verb that shows its progress has more to import; its line stays until `settings`.
    """
    from leakaudit.rendering import status

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


def settings(args: argparse.Namespace) -> argparse.Namespace:
    """Return the effective settings of a call, and apply those that concern torch.

    Plug-ins are imported first.
    """
    from leakaudit.rendering import status

    plugins(args)
    status.clear()
    values = {name: value for name, (value, _) in resolve(vars(args)).items()}
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


def trusting(sub: argparse.ArgumentParser, what: str) -> None:
    """Add the option that allows one model to execute its code."""
    sub.add_argument(
        "--trust-model",
        default=False,
        metavar="MODULE:FACTORY",
        help=f"allow this model to execute its code if the {what} names it",
    )


def say(text: str, args: argparse.Namespace) -> None:
    """Write a note to stderr, unless the user asked for quiet."""
    if not args.quiet:
        sys.stderr.write(text.rstrip("\n") + "\n")


def concluded(reasons: Sequence[str], args: argparse.Namespace) -> int:
    """Write why a result is inconclusive, also if the user asked for quiet.

    The sentences follow a text; JSON contains them itself, so they are written to stderr.

    Args:
        args: The parsed arguments of a call, with ``format``.
    """
    out = sys.stderr if args.format == "json" else sys.stdout
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
