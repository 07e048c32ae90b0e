"""The options that define the adversary whose view of a trace is analysed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from leakaudit.cli._commands import Options, option
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.core.adversary import Adversary


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
        "constants and public tensors that the adversary knows, e.g. rho,theta (default: all)",
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
