"""What verbs share: options, settings, plugins, and how to speak to the user."""

from __future__ import annotations

import argparse
import os
import sys
from typing import NoReturn

from leakaudit._util.settings import SETTINGS, resolve
from leakaudit.errors import LeakauditError


class Told(SystemExit):
    """A parser has printed help, a version or an error.

    Any other SystemExit comes from code that was loaded.
    """


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Print the message to stderr and end with `Told`."""
        if message:
            sys.stderr.write(message)
        raise Told(status)

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"{self.prog}: {message}; see '{self.prog} --help'\n")


def shared(sub: argparse.ArgumentParser, *names: str) -> None:
    """Add options that several verbs have.

    Args:
        sub: The verb's parser.
        names: Settings of `leakaudit._util.settings`, whose values also come from the environment
            and from files. Those of the terminal and of plug-ins are always added.
    """
    group = sub.add_argument_group(
        "options from flag, LEAKAUDIT_*, leakaudit.toml or pyproject.toml"
    )
    for name in (*names, "progress"):
        _add_setting(group, name)
    sub.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="MODULE",
        help=(
            "module of your own with victims, attacks or reports, of the current folder or "
            "installed; its code runs; repeatable"
        ),
    )
    sub.add_argument("-q", "--quiet", action="store_true", help="no progress, no notes on stderr")


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
    """Import the modules that ``--plugin`` names.

    Args:
        args: The parsed arguments of a call.
    """
    if getattr(args, "plugin", None):
        from leakaudit.registry import add_plugins

        add_plugins(args.plugin)


def settings(args: argparse.Namespace) -> argparse.Namespace:
    """Return the effective settings of a call, and apply those of the tensor library.

    Plug-ins are imported first.

    Args:
        args: The parsed arguments of a call.

    Returns:
        A value for every setting.

    Raises:
        LeakauditError: A setting or the device cannot be used.
    """
    plugins(args)
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


def trust(given: bool) -> bool:
    """Make modules of the current folder importable if a model's own code may run.

    Args:
        given: Whether the user allowed it.

    Returns:
        `given`.
    """
    if given and "" not in sys.path:
        sys.path.insert(0, "")
    return given


def say(text: str, args: argparse.Namespace) -> None:
    """Write a note to stderr, unless the user asked for quiet.

    Args:
        text: One or more lines.
        args: The parsed arguments of a call.
    """
    if not args.quiet:
        sys.stderr.write(text.rstrip("\n") + "\n")


def show(text: str) -> None:
    """Write to stdout, at once; a reader that left does not change the verb's code.

    Args:
        text: What to write, its last line break included.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        mute()


def mute() -> None:
    """Drop what nobody reads any more, so that the end of the process does not try to write it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
