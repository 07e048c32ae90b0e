"""Errors that users see; each states what was expected, what was found and what to do."""

from __future__ import annotations

import re
import reprlib
import unicodedata
from abc import ABCMeta
from collections.abc import Iterable

PROGRAM_FAILED = 4  # exit code if a program under test made no complete recording: no verdict
INTERRUPTED = 130  # exit code after Ctrl-C
LONGEST = 1000  # characters of a message, a choice: it may repeat parts of a file
# How commands of CI systems begin: ``##[error]`` (GitHub), ``##vso[`` (Azure) anywhere in a line,
# ``::error::`` (GitHub) at its start, which may be where a terminal wraps a longer text between
# words. Names such as ``aten::conv2d`` are none.
COMMAND = re.compile(r"#(?=#[A-Za-z]*\[)|(?<!\w):(?=:[A-Za-z])")
_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxlist, _BRIEF.maxdict, _BRIEF.maxtuple = 4, 20, 20, 20
_BRIEF.maxstring = _BRIEF.maxlong = _BRIEF.maxother = 200


def brief(value: object, length: int = 60) -> str:
    """Return the beginning of a value's representation, quickly also for a deep or long value."""
    if isinstance(value, str | bytes):
        return repr(value[:length])[:length]
    return _BRIEF.repr(value)[:length]


def one_line(text: object) -> str:
    """Return a value as one line of printable text, which may come from files of others.

    Control, format and direction characters are replaced by spaces, and what would begin a command
    of a CI system (`COMMAND`) is separated by one.
    """
    printable = [" " if unicodedata.category(c)[0] in "CZ" else c for c in str(text)]
    line = " ".join("".join(printable).split())
    return COMMAND.sub(lambda found: f"{found[0]} ", line)


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} … {text[-(most // 2) :]}"


class LeakauditError(Exception):
    """An error that a user can fix; the command line prints one line and exits with `code`.

    Args:
        message: What was expected, what was found and what to do; becomes one line of printable
            text, without its middle if it is very long.
        code: Exit code of the command line.
    """

    code = 2

    def __init__(self, message: object = "", *, code: int | None = None) -> None:
        # The text is shortened first as well, because it may have millions of characters.
        line = one_line(_shortened(str(message), 10 * LONGEST))
        super().__init__(_shortened(line, LONGEST))
        if code is not None:
            self.code = code


class NotUnderstood(LeakauditError):
    """Messages were recorded, but what they contain is not understood, so there is no verdict."""

    code = 3


class NotDetermined(LeakauditError):
    """The view of this adversary determines no gradient of the node by the formulas tried.

    Attributes:
        understood: Whether the messages are those that the protocol declares, and its description
            explains whatever may reveal the node's gradients; if not, nothing is known.
        explained: False if that is only because a vector is not explained. Sums of gradients that
            other messages determine are then valid.
    """

    def __init__(self, reason: str, understood: bool = True, explained: bool = True) -> None:
        super().__init__(reason)
        self.understood = understood
        self.explained = explained


class Unexplained(LeakauditError):
    """A view contains vectors that the declaration does not explain, so it has no bound.

    Args:
        owners: The nodes that hold them, or None.
        rounded: Whether only the rounding error of a message is not explained.
    """

    def __init__(self, label: str, owners: frozenset[int | None], *, rounded: bool = False) -> None:
        says = (
            f"the declaration does not say how {label} is computed, so it may contain anything "
            "that its owner knows"
        )
        if rounded:
            says = (
                f"the rounding error of {label}, which is not observed, reaches observed messages; "
                "it may contain anything that its sender knows"
            )
        super().__init__(says)
        self.label = label
        self.owners = owners


class AttackError(LeakauditError):
    """An attack cannot use a leak; the message states what it requires."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: a similar one, or all that are known.

    Case, hyphens, underscores and blanks do not count, because papers write "D-PSGD".
    """
    import difflib  # needed after a mistake only

    known = sorted(known)
    plain = {_plain(one): one for one in known}
    near = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {plain[near[0]]!r}?"
    return f" (known: {', '.join(known)})"


def _plain(name: str) -> str:
    return "".join(name.casefold().replace("-", " ").replace("_", " ").split())


def check_methods(kind: ABCMeta, role: str, needed: str) -> None:
    """Reject a class that lacks a method, before Python does so with a TypeError."""
    missing = sorted(kind.__abstractmethods__)
    if missing:
        raise LeakauditError(
            f"the {role} {kind.__name__} of {kind.__module__} does not define "
            f"{' and '.join(missing)}; every {role} needs both {needed}"
        )
