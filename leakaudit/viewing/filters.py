"""Which runs a list shows, and in which order: the same choices as in the query of its address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from leakaudit.results.grading import RANK
from leakaudit.results.wording import clean
from leakaudit.viewing.summaries import Run

LONGEST = 200  # characters of a value in an address
FIELDS = ("q", "kind", "protocol", "adversary", "verdict", "commit", "since", "until", "sort")
EXACT = ("kind", "protocol", "adversary", "verdict", "commit")  # chosen from the values that occur
# Orders by their names in an address, with the words that a reader sees.
SORTS = {
    "newest": "newest first",
    "oldest": "oldest first",
    "worst": "most severe first",
    "name": "by folder",
    "protocol": "by protocol",
}


def values(run: Run, name: str) -> tuple[str, ...]:
    """Return the values of one property that a filter compares.

    Args:
        run: A run.
        name: One of `EXACT`.

    Returns:
        The values; a sweep may have several protocols.
    """
    if name == "adversary":
        return run.adversaries
    if name == "protocol":
        return run.protocols
    if name == "commit":
        return (run.commit or run.version,)
    return (str(getattr(run, name)),)


@dataclass(frozen=True)
class Query:
    """The choices of a reader; an empty text chooses everything.

    Attributes:
        q: Words that must all occur somewhere in a run.
        kind: Kind of the record.
        protocol: Name of the protocol.
        adversary: An adversary.
        verdict: The outcome.
        commit: Commit of the audited program, or version of leakaudit if that is not recorded.
        since: First day.
        until: Last day.
        sort: One of `SORTS`.
    """

    q: str = ""
    kind: str = ""
    protocol: str = ""
    adversary: str = ""
    verdict: str = ""
    commit: str = ""
    since: str = ""
    until: str = ""
    sort: str = "newest"

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Query:
        """Read the query of an address; unknown names are ignored.

        Args:
            given: Values by name.

        Returns:
            The choices, cleaned and of bounded length.
        """
        found = {}
        for name in FIELDS:
            found[name] = clean(given.get(name, "")[:LONGEST])
        if found["sort"] not in SORTS:
            found["sort"] = "newest"
        return cls(**found)

    @property
    def filtering(self) -> bool:
        """Whether some runs may be left out."""
        return any(getattr(self, name) for name in FIELDS if name != "sort")

    def address(self, **more: object) -> str:
        """Return the choices as the query of an address.

        Args:
            **more: Further values.

        Returns:
            The query with its question mark.
        """
        chosen = {}
        for name in FIELDS:
            value = getattr(self, name)
            if value and (name, value) != ("sort", "newest"):
                chosen[name] = value
        return f"?{urlencode({**chosen, **more})}"

    def matches(self, run: Run) -> bool:
        """Return whether a run is shown.

        Args:
            run: The run.

        Returns:
            Whether it fits every choice.
        """
        for name in EXACT:
            wanted = getattr(self, name)
            if wanted and wanted not in values(run, name):
                return False
        if self.since and run.date < self.since:
            return False
        if self.until and run.date > self.until:
            return False
        return all(word in run.text for word in self.q.lower().split())

    def apply(self, runs: Sequence[Run]) -> list[Run]:
        """Choose and sort runs.

        Args:
            runs: All runs, in the order of their folders.

        Returns:
            Those that match, in the chosen order.
        """
        found = [run for run in runs if self.matches(run)]
        if self.sort == "name":
            return found
        found.sort(key=_started, reverse=self.sort != "oldest")
        key = _KEYS.get(self.sort)
        if key is not None:
            found.sort(key=key)
        return found


def _started(run: Run) -> str:
    return run.started


def _severity(run: Run) -> tuple[object, ...]:
    return (-RANK[run.level],)


def _protocol(run: Run) -> tuple[object, ...]:
    return (run.protocol,)


_KEYS: dict[str, Callable[[Run], tuple[object, ...]]] = {"worst": _severity, "protocol": _protocol}


def options(runs: Sequence[Run]) -> dict[str, list[tuple[str, int]]]:
    """Return what can be chosen.

    Args:
        runs: All runs.

    Returns:
        For each of `EXACT`, the values that occur and their numbers of runs.
    """
    found = {}
    for name in EXACT:
        counts: Counter[str] = Counter()
        for run in runs:
            counts.update(values(run, name))
        counts.pop("", None)
        found[name] = sorted(counts.items())
    return found
