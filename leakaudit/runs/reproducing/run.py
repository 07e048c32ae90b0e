"""Items are run: cells that have no result yet, functions that draw, rows of the scoreboard."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct, to_builtins

from leakaudit._util.decoding import TypeMismatch, decoded
from leakaudit._util.plain import encoded
from leakaudit._util.uncollected import read_json
from leakaudit.core.errors import LeakauditError
from leakaudit.core.progress import expired, step
from leakaudit.core.trace import Json
from leakaudit.core.verdict import Verdict
from leakaudit.judging import papers
from leakaudit.judging.papers import drawing, rules
from leakaudit.judging.papers.items import Item
from leakaudit.judging.papers.measured import MeasuredPanel
from leakaudit.judging.papers.rules import Judged, Reproduction
from leakaudit.protocols import recording
from leakaudit.reporting.findings import grading
from leakaudit.reporting.findings.wording import VERDICT_ORDER
from leakaudit.reporting.results import provenance
from leakaudit.reporting.results.cell_files import CellResult
from leakaudit.runs.reproducing import gather
from leakaudit.runs.reproducing.plan import ReproductionPlan, data_root
from leakaudit.runs.sweeping.run import SweepOptions, compute, remaining
from leakaudit.runs.sweeping.store import Store
from leakaudit.tasks.shared import SharedData

RECORD = "result.json"  # of an item's folder
LINES = "lines"  # folder of the files of the lines
ALIKE = (Reproduction.REPRODUCED, Reproduction.SAME_SHAPE)


class ClaimFinding(Struct, frozen=True, kw_only=True):
    """One statement about a claim."""

    about: str
    verdict: str  # name of a verdict
    says: str


class ClaimRow(Struct, frozen=True, kw_only=True):
    """A row of the scoreboard with its findings, as the record of an item keeps it."""

    row: int
    source: str
    claim: str
    verdict: str  # that on the claim as published
    findings: tuple[ClaimFinding, ...]
    command: str
    seconds: float


class StoredOutcome(Struct, frozen=True, kw_only=True):
    """What is read of the record of an item; it has further entries."""

    word: str
    why: str
    deviation: str  # the printed number that ours is farthest from
    scale: str
    seeds: int
    complete: bool
    level: grading.Level  # how serious the verdict is
    seconds: float
    claims: tuple[ClaimRow, ...]
    versions: dict[str, str | None]


@dataclass(frozen=True)
class Reproduced:
    """An item after its run."""

    plan: ReproductionPlan
    judged: Judged | None  # the verdict on its numbers; None if there are none to compute
    panels: tuple[MeasuredPanel, ...]
    claims: tuple[ClaimRow, ...]
    seconds: float  # processor time of its cells, and the time of functions and claims
    troubles: tuple[str, ...] = ()  # why cells have no result
    left: int = 0  # number of cells and claims without a result
    blocked: str = ""  # why it cannot be run here, such as data that are missing
    versions: Mapping[str, str | None] = field(default_factory=provenance.decisive_versions)

    def __repr__(self) -> str:
        """The item and its verdict."""
        return f"Reproduced({self.item.full_name!r}, {self.sentence!r:.200})"

    def _repr_html_(self) -> str:
        """The verdict above the printed numbers and ours, for notebooks."""
        from leakaudit.reporting.rendering import cards  # only needed if a notebook asks for it

        rows = []
        if self.judged is not None:
            rows += [(str(one.outcome), one.says) for one in self.judged.numbers]
            for shape in self.judged.shapes:
                rows.append((str(shape.outcome), f"{shape.expected.says}: {shape.found}"))
        for row in self.claims:
            rows += [(words(one.verdict), f"{one.about}: {one.says}") for one in row.findings]
        lead = [self.item.title]
        return cards.card(f"{self.item.full_name}: {self.sentence}", lead, ("", "evidence"), rows)

    @property
    def item(self) -> Item:
        """What was published."""
        return self.plan.item

    @property
    def word(self) -> str:
        """The verdict: that on its numbers, or else the worst on its claims."""
        if self.judged is not None:
            return str(self.judged.word)
        if not self.item.claims:
            return str(Reproduction.LOST)
        found = {row.verdict for row in self.claims}
        worst = [verdict for verdict in VERDICT_ORDER if verdict.name in found]
        if not worst or (self._not_evaluated and grading.VERDICTS[worst[0].name] != "error"):
            return str(Reproduction.UNDECIDED)
        return worst[0].words

    @property
    def why(self) -> str:
        """What the verdict rests on, or what is missing."""
        if self.judged is not None:
            return "; ".join((self.judged.why, *self._claims_in_words("error", "warning")))
        return "; ".join(self._claims_in_words("error", "warning", "note")) or self.item.missing

    @property
    def deviation(self) -> str:
        """The printed number from which ours is farthest, in units of its tolerance; in words."""
        numbers = () if self.judged is None else self.judged.numbers
        known = [one for one in numbers if one.deviation is not None]
        if not known:
            return ""
        worst = max(known, key=lambda one: abs(one.deviation or 0.0) / (one.printed.tolerance or 1))
        return worst.says

    @property
    def sentence(self) -> str:
        """The verdict with its reason."""
        return f"{self.word} ({self.why})" if self.why else self.word

    @property
    def _not_evaluated(self) -> list[int]:
        known = {row.row for row in self.claims}
        return [row for row in self.item.claims if row not in known]

    def _claims_in_words(self, *levels: grading.Level) -> list[str]:
        """Return the rows with verdicts of some levels, and those without a verdict."""
        said = {}
        for verdict in VERDICT_ORDER:
            if grading.VERDICTS[verdict.name] in levels:
                said[verdict.words] = [
                    row.row for row in self.claims if row.verdict == verdict.name
                ]
        said["not evaluated"] = self._not_evaluated
        return [
            f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows))} of the scoreboard: {words}"
            for words, rows in said.items()
            if rows
        ]

    @property
    def level(self) -> grading.Level:
        """How the verdict is coloured: no better than that of any claim."""
        levels = [grading.VERDICTS[row.verdict] for row in self.claims]
        differs = self.word == Reproduction.DIFFERS
        if differs and self.judged is not None and self.judged.firm:
            levels.append("error")
        elif self._not_evaluated or self.word in {*Reproduction} - {*ALIKE}:
            levels.append("warning")
        return grading.most_severe(levels)

    @property
    def command(self) -> str:
        """The command that repeats it."""
        return self.command_with(len(self.plan.seeds))

    def command_with(self, seeds: int) -> str:
        """Return the command that runs it with another number of seeds."""
        words = ["leakaudit reproduce", self.item.argument]
        if self.plan.scale != "small":
            words.append(f"--scale {self.plan.scale}")
        if self.plan.lines or seeds > 1:
            words.append(f"--seeds {seeds}")
        return " ".join(words) + data_root(self.item, self.plan.lines)

    def to_json(self) -> dict[str, Json]:
        """Return plain values; `StoredOutcome` reads a part of them."""
        item = self.item
        numbers: list[Json] = []
        shapes: list[Json] = []
        if self.judged is not None:
            numbers += [_number(one) for one in self.judged.numbers]
            for shape in self.judged.shapes:
                says = shape.expected.says
                shapes.append({"says": says, "outcome": str(shape.outcome), "found": shape.found})
        return {
            "item": item.full_name,
            **{name: getattr(item, name) for name in ("kind", "title", "place")},
            **{name: getattr(self, name) for name in ("word", "why", "deviation")},
            "scale": self.plan.scale,
            "own_size": self.plan.own_size,
            "seeds": len(self.plan.seeds),
            "complete": not self.left,
            "level": self.level,
            "seconds": round(self.seconds, 2),
            "numbers": numbers,
            "expectations": shapes,
            "claims": to_builtins(list(self.claims)),
            "troubles": list(self.troubles),
            **{name: to_builtins(getattr(item, name)) for name in ("undetermined", "chosen")},
            **{name: getattr(item, name) for name in ("lost", "note")},
            "command": self.command,
            "versions": dict(self.versions),
        }


def _number(one: rules.ComparedNumber) -> dict[str, Json]:
    printed = one.printed
    interval: Json = None
    ours: Json = None
    deviation: Json = None
    if one.ours is not None:
        ours = _plain(one.ours.mean)
        deviation = _plain(one.deviation)
        if one.ours.interval is not None:
            interval = [_plain(end) for end in one.ours.interval]
    return {
        "line": printed.line,
        "stand_in": one.stand_in,
        "quantity": printed.y,
        "x": printed.x,
        "place": printed.place,
        "read_off_a_picture": printed.figure,
        "printed": _plain(printed.value),
        "tolerance": printed.tolerance,
        "ours": ours,
        "interval": interval,
        "deviation": deviation,
        "outcome": str(one.outcome),
        "why": one.why,
    }


def _plain(value: float | None) -> Json:
    """Return a number as JSON, None for what is not above minus infinity, such as NaN."""
    return encoded(value) if value is not None and value > -math.inf else None


@dataclass
class ReproductionRun:
    """The items of one command, and where their results are."""

    folder: Path
    plans: Sequence[ReproductionPlan]
    options: SweepOptions
    found: list[Reproduced] = field(default_factory=list)  # those that are finished
    interrupted: bool = False  # whether Ctrl-C ended the work
    # items that cannot be run here -> the reason, such as data that are missing
    blocked: dict[str, str] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Number of results that the same command would still compute."""
        return sum(one.left for one in self.found if not one.blocked)

    @property
    def total(self) -> int:
        """Number of all results: cells, functions that draw, and claims."""
        run = [one for one in self.found if not one.blocked]
        return sum(len(one.plan.cells) + one.item.drawn + len(one.item.claims) for one in run)

    def place(self, item: Item) -> Path:
        """Return the folder of an item."""
        return self.folder / item.paper / item.name

    def compute(self) -> None:
        """Run the cells of all items that have no result yet; Ctrl-C and deadlines end it."""
        todo = []
        total = 0
        for plan in self.plans:
            self._refuse_links(plan.item)
        shared = SharedData()
        for plan in self.plans:
            store = Store(self.place(plan.item))
            store.refuse_links()
            left = remaining(plan.cells, store.statuses(plan.cells), self.options)
            if left:
                self._block(plan, shared)
            if plan.item.full_name in self.blocked:
                continue
            store.clean(plan.cells)
            todo += [(store, *one) for one in left]
            total += len(plan.cells)
        try:
            compute(todo, total, self.options)
        except KeyboardInterrupt:
            self.interrupted = True

    def _refuse_links(self, item: Item) -> None:
        """Refuse an item whose files would be written elsewhere."""
        place = self.place(item)
        for folder in (place.parent, place, place / LINES):
            if folder.is_symlink():
                raise LeakauditError(
                    f"{folder}: expected a folder of results, found a link, through which other "
                    "files could be changed; choose another folder with --output"
                )

    def _block(self, plan: ReproductionPlan, shared: SharedData) -> None:
        """Note an item whose data cannot be loaded here: its cells would all fail."""
        tried = set()
        for cell in plan.cells.values():
            needed = (cell.scenario.data, cell.scenario.weights)
            if needed in tried:
                continue
            tried.add(needed)
            try:
                recording.plan(
                    cell.scenario.without_epsilon(),
                    data_root=self.options.data_root,
                    download=self.options.download,
                    trusted=self.options.trusted,
                    shared=shared,
                )
            except LeakauditError as error:
                self.blocked[plan.item.full_name] = str(error)
                return

    def finished(self) -> Iterator[Reproduced]:
        """Yield every item with its verdict, and keep it in `found`."""
        for k, plan in enumerate(self.plans):
            step("items", k, len(self.plans))
            self.found.append(self._finish(plan))
            yield self.found[-1]
        step("items", len(self.plans), len(self.plans))

    def _finish(self, plan: ReproductionPlan) -> Reproduced:
        item = plan.item
        start = time.perf_counter()
        claims = self._claims(item)
        judged: Judged | None = None
        panels: list[MeasuredPanel] = []
        troubles: list[str] = []
        left = len(item.claims) - len(claims)
        seconds = 0.0
        blocked = self.blocked.get(item.full_name, "")
        if blocked:
            judged = Judged(Reproduction.UNDECIDED, f"it cannot be run here: {blocked}")
            left += len(plan.cells)
        elif item.drawn and (self.interrupted or expired()):
            judged = Judged(Reproduction.UNDECIDED, "it was not run to its end")
            left += 1
        elif item.drawn:
            try:
                panels = list(drawing.function_of(item)(plan.scale, plan.seeds))
            except LeakauditError as error:
                troubles.append(str(error))
        elif item.plan is not None:
            store = Store(self.place(item))
            results = _results(store, plan)
            panels = gather.panels(plan, results)
            troubles = gather.troubles(plan, results)
            left += len(plan.cells) - len(results)
            seconds = _seconds(store, plan)
        if judged is None and item.state == "runs":
            judged = rules.judge(item, panels, plan.scale, troubles)
        seconds += time.perf_counter() - start
        return Reproduced(
            plan,
            judged,
            tuple(panels),
            claims,
            seconds,
            troubles=tuple(troubles),
            left=left,
            blocked=blocked,
        )

    def _claims(self, item: Item) -> tuple[ClaimRow, ...]:
        """Return the rows of an item, evaluated now unless these versions have done it here."""
        if not item.claims:
            return ()
        before = stored(self.place(item))
        known: dict[int, ClaimRow] = {}
        if before is not None and before.versions == provenance.decisive_versions():
            known = {row.row: row for row in before.claims}
        wanted = [row for row in item.claims if row not in known]
        if wanted and not (self.interrupted or expired()):
            for one in papers.judge(papers.select((), wanted), self.options.executor):
                known[one.row.number] = _row(one)
        return tuple(known[row] for row in item.claims if row in known)


def _row(one: papers.JudgedClaim) -> ClaimRow:
    findings = []
    for each in one.findings:
        findings.append(ClaimFinding(about=each.about, verdict=each.verdict.name, says=each.says))
    return ClaimRow(
        row=one.row.number,
        source=one.row.source,
        claim=one.row.claim,
        verdict=one.verdict.name,
        findings=tuple(findings),
        command=one.row.command,
        seconds=round(one.seconds, 2),
    )


def words(verdict: str) -> str:
    """Return the words of a verdict's name."""
    return Verdict[verdict].words


def _results(store: Store, plan: ReproductionPlan) -> dict[str, CellResult]:
    found = {}
    for key in plan.cells:
        try:
            result = store.load(key)
        except LeakauditError:  # a damaged file is no result; the cell is run again
            continue
        if result is not None:
            found[key] = result
    return found


def _seconds(store: Store, plan: ReproductionPlan) -> float:
    """Return the processor time of the cells, each as it was last computed."""
    last = {timing.cell: timing.cpu for timing in store.times()}
    return sum(last.get(key, 0.0) for key in plan.cells)


def stored(folder: Path) -> StoredOutcome | None:
    """Return the outcome that an item's folder holds, None if there is none that can be read."""
    try:
        found = decoded(read_json((folder / RECORD).read_bytes()), StoredOutcome)
    except (OSError, ValueError, RecursionError, TypeMismatch):
        return None
    known = {*Reproduction, *(verdict.words for verdict in Verdict)}
    names = {row.verdict for row in found.claims}
    names.update(one.verdict for row in found.claims for one in row.findings)
    if found.word not in known or not names <= {*Verdict.__members__}:
        return None
    return found
