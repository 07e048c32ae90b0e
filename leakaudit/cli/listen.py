"""The options that say who listens, shared by the verbs that read a trace as an adversary hears it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from leakaudit.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.adversary import Adversary


def listening(sub: argparse.ArgumentParser) -> None:
    """Add them."""
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
    """Return who listens."""
    from leakaudit.adversary import Adversary

    return Adversary.parse(
        args.adversary,
        window(args.rounds),
        frozenset(args.knows.split(",")) if args.knows else "all",
    )


def window(text: str | None) -> range | None:
    """Read A:B, A: or :B as rounds A to B - 1."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not colon or not all(part.isdecimal() or not part for part in (first, last)):
        raise LeakauditError(f"--rounds: expected A:B, got {text!r}")
    rounds = range(int(first or 0), int(last) if last else sys.maxsize)
    if not rounds:
        raise LeakauditError(f"--rounds: {text!r} holds no round")
    return rounds
