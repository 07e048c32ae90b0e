"""The one family of errors that users see: a sentence that says what was expected, what came and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LeakauditError(Exception):
    """Something a user can mend; the command line prints it on one line and exits with `code`."""

    code = 2


class ProgramError(LeakauditError):
    """The program under test did not end with a finished recording; whatever it measured, the gate has seen nothing of it."""

    code = 4


class NotDetermined(LeakauditError):
    """What this adversary hears does not determine any gradient of the node, by the formulas that were tried."""


class AttackError(LeakauditError):
    """This attack cannot use this leak; the message says what it needs."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``'; did you mean X?'`` or ``' (known: …)'`` for an unknown `name`."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else f" (known: {', '.join(known)})"
