"""The options that name the adversary, shared by the verbs that read a trace as one hears it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from leakaudit.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.adversary import Adversary


def listening(sub: argparse.ArgumentParser) -> None:
    """Add the options.

    Args:
        sub: The verb's parser.
    """
    sub.add_argument(
        "--as",
        dest="adversary",
        default="eavesdropper",
        metavar="WHO",
        help="eavesdropper, node:3, nodes:3,5, edges:0-1,1-0, or several joined by '+'",
    )
    sub.add_argument("--rounds", metavar="A:B", help="rounds that are heard, B excluded")
    sub.add_argument(
        "--knows",
        metavar="NAMES",
        help="constants and public tensors that are known, e.g. rho,theta (default all)",
    )


def listener(args: argparse.Namespace) -> Adversary:
    """Return the adversary that the options name.

    Args:
        args: The parsed arguments.

    Returns:
        The adversary.

    Raises:
        LeakauditError: An option cannot be read.
    """
    from leakaudit.adversary import Adversary

    rounds = window(args.rounds)
    if args.knows:
        return Adversary.parse(args.adversary, rounds, frozenset(args.knows.split(",")))
    return Adversary.parse(args.adversary, rounds)


def window(text: str | None) -> range | None:
    """Read a window of rounds.

    Args:
        text: A:B, A: or :B for the rounds A to B - 1; None for all.

    Returns:
        The rounds, or None for all.

    Raises:
        LeakauditError: It is not of that form, or holds no round.
    """
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not colon or not all(part.isdecimal() or not part for part in (first, last)):
        raise LeakauditError(f"--rounds: expected A:B, got {text!r}")
    rounds = range(int(first or 0), int(last) if last else sys.maxsize)
    if not rounds:
        raise LeakauditError(f"--rounds: {text!r} holds no round")
    return rounds
