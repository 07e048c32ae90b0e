"""Which runs a list shows, and in which order: the same choices as in the query of its address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from leakaudit.reporting.findings.grading import RANK
from leakaudit.reporting.findings.wording import clean
from leakaudit.reporting.viewing.summaries import RunSummary

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


def values(run: RunSummary, name: str) -> tuple[str, ...]:
    """Return the values of one property that a filter compares."""
    if name == "adversary":
        return run.adversaries
    if name == "protocol":
        return run.protocols
    if name == "commit":
        return (run.commit or run.version,)
    return (str(getattr(run, name)),)


@dataclass(frozen=True)
class Query:
    """The choices of a reader; an empty text chooses everything."""

    q: str = ""  # words that must all occur somewhere in a run
    kind: str = ""
    protocol: str = ""
    adversary: str = ""
    verdict: str = ""
    # commit of the audited program, or version of leakaudit if that is not recorded
    commit: str = ""
    since: str = ""  # first day
    until: str = ""  # last day
    sort: str = "newest"

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Query:
        """Read the query of an address; unknown names are ignored."""
        found = {}
        for name in FIELDS:
            found[name] = clean(given.get(name, "")[:LONGEST])
        if found["sort"] not in SORTS:
            found["sort"] = "newest"
        return cls(**found)

    def address(self, **more: object) -> str:
        """Return the choices as the query of an address."""
        chosen = {}
        for name in FIELDS:
            value = getattr(self, name)
            if value and (name, value) != ("sort", "newest"):
                chosen[name] = value
        return f"?{urlencode({**chosen, **more})}"

    def matches(self, run: RunSummary) -> bool:
        """Return whether a run is shown."""
        for name in EXACT:
            wanted = getattr(self, name)
            if wanted and wanted not in values(run, name):
                return False
        if self.since and run.date < self.since:
            return False
        if self.until and run.date > self.until:
            return False
        return all(word in run.text for word in self.q.lower().split())

    def apply(self, runs: Sequence[RunSummary]) -> list[RunSummary]:
        """Choose and sort runs."""
        found = [run for run in runs if self.matches(run)]
        if self.sort == "name":
            return found
        found.sort(key=lambda run: run.started, reverse=self.sort != "oldest")
        if self.sort == "worst":
            found.sort(key=lambda run: -RANK[run.level])
        elif self.sort == "protocol":
            found.sort(key=lambda run: run.protocol)
        return found


def options(runs: Sequence[RunSummary]) -> dict[str, list[tuple[str, int]]]:
    """Return what can be chosen."""
    found = {}
    for name in EXACT:
        counts: Counter[str] = Counter()
        for run in runs:
            counts.update(values(run, name))
        counts.pop("", None)
        found[name] = sorted(counts.items())
    return found
