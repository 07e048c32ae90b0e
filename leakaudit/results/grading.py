"""A record as the checks that other programs count: a level, one line, and a name that stays the same from run to run.

Every finding is a check, and so are the verdicts of an audit and the rules of a gate.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from leakaudit.results.wording import clean, harm, outcome, said_of
from leakaudit.trace import Json
from leakaudit.verdict import Verdict

Level = Literal["error", "warning", "note"]
RANK: dict[Level, int] = {"error": 2, "warning": 1, "note": 0}
VERDICTS: dict[str, Level] = {  # the gravest first
    **dict.fromkeys(("REFUTED", "UNSUPPORTED"), "error"),
    "INCONCLUSIVE": "warning",
    **dict.fromkeys(("NOT_REFUTED", "UNCLAIMED"), "note"),
}
RULES: dict[str, Level] = {
    **dict.fromkeys(("OVER", "REGRESSION", "CONTRADICTED", "VOID", "NOT_COMPARABLE"), "error"),
    **dict.fromkeys(("WARNING", "INCONCLUSIVE"), "warning"),
}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. name: without any figure; message: with them; both cleaned, not escaped.

    id: a digest of what was looked at, without what came out. rule: attack, test or pitfall. adversary: "" where none is needed.
    open: whether nothing was decided. cell: of a gate, "" elsewhere. harm: sorts checks of one kind by what they give away.
    """

    id: str
    name: str
    rule: str
    node: int
    adversary: str
    level: Level
    message: str
    word: str
    detail: str = ""
    seconds: float = 0.0
    open: bool = False
    cell: str = ""
    harm: tuple[float, ...] = ()

    @property
    def rank(self) -> tuple[float, ...]:
        """The larger, the worse."""
        return (RANK[self.level], *self.harm)


def checks(results: Mapping[str, Json]) -> list[Check]:
    """Return all checks, the worst first; equal names are told apart by their order."""
    verdicts = (results.get("audit") or {}).get("verdicts", ())
    gate = results.get("gate") or {"cells": (), "rules": ()}
    cells = {cell["name"]: cell for cell in gate["cells"]}
    found = [
        *(_verdict(results, v) for v in verdicts),
        *(_finding(results, f) for f in results["findings"]),
    ]
    found += [_gated(rule, cells.get(rule["cell"])) for rule in gate["rules"]]
    return sorted(_unique(found), key=lambda c: c.rank, reverse=True)


def counts(found: Iterable[Check]) -> dict[Level, int]:
    """Return how many checks have each level."""
    counted = Counter(c.level for c in found)
    return {level: counted[level] for level in RANK}


def level(finding: Mapping[str, Json]) -> Level:
    """``error`` for a record given away, ``warning`` for one that fits or is identified, else ``note``.

    A record is given away if it is identical to the truth, certified exact, or known to within narrow intervals.

    In an audit the verdicts judge, and a finding is a warning at most.
    """
    scores, word = finding["scores"], finding["certificate"]["name"]
    recovered = scores is None or scores["not_recovered"] < len(scores["matched"])
    same = scores is not None and any(scores.get("exact", {}).get("per_image", ()))
    if same or (word in ("EXACT", "INTERVAL") and recovered):
        return "warning" if "cell" in finding else "error"
    named = scores is not None and any(scores.get("identified", {}).get("per_image", ()))
    return "warning" if named or (word == "APPROXIMATE" and recovered) else "note"


def _finding(results: Mapping[str, Json], finding: Mapping[str, Json]) -> Check:
    leak, rounds = finding["leak"], finding["leak"]["rounds"]
    cell = f", {said_of(finding['cell'])}" if "cell" in finding else ""
    return Check(
        id=_mark(
            results,
            finding,
            leak["kind"],
            rounds["first"],
            rounds["last"],
            repr(finding.get("cell")),
        ),
        name=clean(
            f"node {finding['node']}: {finding['attack']} from a {leak['kind']} heard by {finding['adversary']}{cell}"
        ),
        rule=clean(finding["attack"]),
        node=finding["node"],
        adversary=clean(finding["adversary"]),
        level=level(finding),
        message=clean(
            f"node {finding['node']}, {outcome(finding)}, by {finding['attack']} from a {leak['kind']}{cell}"
        ),
        word=finding["certificate"]["name"],
        detail=clean(finding["note"]),
        seconds=finding["seconds"],
        harm=harm(finding),
    )


def _verdict(results: Mapping[str, Json], one: Mapping[str, Json]) -> Check:
    verdict, promise = Verdict[one["verdict"]], one["promise"] or {"name": "no promise"}
    where = f"{promise['name']}, node {one['node']} heard by {one['adversary']}, {said_of(one)}"
    return Check(
        id=_mark(results, one, one["test"], promise["name"], repr(one["epsilon"])),
        name=clean(f"{one['test']} ({one['attack']}) against {where}"),
        rule=clean(one["test"]),
        node=one["node"],
        adversary=clean(one["adversary"]),
        level=VERDICTS[verdict.name],
        message=clean(f"{verdict.words}: {one['says']} ({one['test']} against {where})"),
        word=verdict.words,
        detail=clean(one["power"]),
        open=verdict is Verdict.INCONCLUSIVE,
        harm=(math.inf,),
    )


def _gated(rule: Mapping[str, Json], cell: Mapping[str, Json] | None) -> Check:
    """cell: None for what needs no adversary, the lint of a recording."""
    what = f"{rule['kind']} {rule['measure']}".strip()
    control = rule["kind"] in ("recording", "attacked", "positive", "negative")
    return Check(
        id=hashlib.sha256(
            repr((rule["cell"], what)).encode("utf-8", "backslashreplace")
        ).hexdigest(),
        name=clean(f"{rule['cell']}: {what}{' control' if control else ''}"),
        rule=clean(cell["attack"] if cell else rule["measure"] or rule["kind"]),
        node=((cell and cell["worst"]) or {}).get("node", 0),
        adversary=clean(cell["adversary"]) if cell else "",
        level=RULES.get(rule["status"], "note"),
        message=clean(f"{rule['cell']}: {rule['says']}"),
        word=rule["status"].replace("_", " "),
        open=rule["status"] in ("INCONCLUSIVE", "UNTESTED"),
        cell=clean(rule["cell"]),
        harm=(float(rule["status"] in ("OVER", "REGRESSION", "CONTRADICTED")),),
    )


def _mark(results: Mapping[str, Json], one: Mapping[str, Json], *more: object) -> str:
    trace = results["trace"]
    what = (
        trace["protocol"],
        trace["model"],
        trace["data"],
        one["adversary"],
        one["attack"],
        one["node"],
        *more,
    )
    return hashlib.sha256(repr(what).encode("utf-8", "backslashreplace")).hexdigest()


def _unique(found: Sequence[Check]) -> Iterator[Check]:
    seen = Counter[str]()
    for one in found:
        seen[one.id] += 1
        yield (
            one
            if seen[one.id] == 1
            else replace(one, id=hashlib.sha256(f"{one.id} {seen[one.id]}".encode()).hexdigest())
        )
