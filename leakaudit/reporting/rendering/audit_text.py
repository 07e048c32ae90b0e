"""An audit as text and as a page of Markdown, made only from its record."""

from __future__ import annotations

import math
from collections import Counter
from typing import TypeAlias

from rich.console import RenderableType
from rich.text import Text

from leakaudit._util import plural
from leakaudit.core.quantities import Data, Place, Quantity, shown
from leakaudit.core.verdict import MOST_TRIALS, Holds, Verdict
from leakaudit.reporting.findings.wording import (
    REFUSED,
    VERDICT_ORDER,
    clean,
    grid_epsilon,
    refusal,
    test_words,
)
from leakaudit.reporting.rendering import markdown as md
from leakaudit.reporting.rendering.tables import Column, table
from leakaudit.reporting.results.audit_names import GUESSERS, VIEW
from leakaudit.reporting.results.model import (
    AuditPart,
    AuditRecord,
    CurvePoint,
    VerdictEntry,
    given,
    records_at,
    statistics,
)

STYLES = {
    Verdict.REFUTED: "bold red",
    Verdict.UNSUPPORTED: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NOT_REFUTED: "green",
    Verdict.UNCLAIMED: "dim",
}
HEADINGS = ("epsilon", "adversary", "guarantee", "test", "verdict", "what was measured")
QUALITY = shown(Place.CURVE, data=Data.IMAGES)
CURVE = ["epsilon", "adversary", "attack", "refused", "images"]
for _one in QUALITY:
    CURVE += [f"{_one.words} best", "median", "mean"]
COUNTS = (  # what a test counted, by its figures
    "{hits} of {trials} (blind chance {kappa:.3g}, at most {ceiling:.3g} allowed)",
    "{hits} of {trials} (blind chance {kappa:.3g})",
    "guessed to be present: {true_positives} of {positives} times with it, "
    "{false_positives} of {negatives} without it",
    "{right} of {guesses} guesses correct, {canaries} canaries",
)
VACUOUS = "it allows almost any success rate: ten million trials would not suffice to refute it"
SHOWN = 12  # verdicts that a terminal shows; a choice: they and the curves fit on two screens
SPARE = ("refused", "median", "mean")  # columns of `CURVE` that a narrow terminal omits
SENTENCES = ("test", "what was measured")  # columns of `HEADINGS` with text


# Epsilon, adversary, guarantee, test, verdict, and what was measured
_Row: TypeAlias = tuple[str, str, str, str, Verdict, str]


def text(record: AuditRecord, width: int | None = None) -> list[RenderableType]:
    """Return the summary, the curves and the verdicts, for a terminal."""
    columns = []
    for k, heading in enumerate(CURVE):
        number = k == 0 or k > CURVE.index("attack")
        columns.append(Column(heading, right=number, spare=heading in SPARE))
    attacked = table(columns, curves(record.audit), width)
    columns = []
    for heading in HEADINGS:
        columns.append(Column(heading, right=heading == "epsilon", text=heading in SENTENCES))
    judgements = _rows(record.audit)
    shown = judgements if width is None else judgements[:SHOWN]
    rows = []
    for row in shown:
        verdict = Text(row[4].words, style=STYLES[row[4]])
        rows.append((*row[:4], verdict, row[5]))
    judged = table(columns, rows, width)
    summary = Text(clean(record.summary), style="bold")
    parts: list[RenderableType] = [summary, attacked, Text(REFUSED, style="dim"), judged]
    rest = len(judgements) - len(shown)
    if rest:
        parts.append(Text(f"{rest} further verdicts, which are no more severe, are in the report"))
    return parts


def markdown(record: AuditRecord) -> str:
    """Return the page about an audit, without the page about its attacks."""
    parts = ["# Audit", f"**{md.escape(record.summary)}**"]
    figure = record.audit.figure
    if figure:
        parts.append(f"![PSNR, SSIM and success against epsilon]({figure})")
    parts += ["## Verdicts", md.table(HEADINGS, verdicts(record.audit))]
    parts += ["## Attacks against epsilon", md.table(CURVE, curves(record.audit))]
    return "\n\n".join([*parts, md.escape(REFUSED)])


def curves(audit: AuditPart) -> list[tuple[str, ...]]:
    """Return one row for each point of the grid, adversary and attack."""
    rows: list[tuple[str, ...]] = []
    for point in audit.curves:
        where = (grid_epsilon(point.epsilon), clean(point.adversary), clean(point.attack))
        refused = refusal(given(point.attacked, None), given(point.refused, None))
        cells = [*where, refused, _images(point)]
        for one in QUALITY:
            cells += _values(point, one)
        rows.append(tuple(cells))
    return rows


def _images(point: CurvePoint) -> str:
    images = records_at(point)
    if images is not None:
        return f"{images:g}"
    return "-" if given(point.attacked, None) == 0 else "0"


def _values(point: CurvePoint, one: Quantity) -> tuple[str, str, str]:
    values = statistics(point, one)
    if values is None:
        return "-", "-", "-"
    return one.text(values.best), one.text(values.median), one.text(values.mean)


def verdicts(audit: AuditPart) -> list[tuple[str, ...]]:
    """Return one row for each verdict, the most severe first.

    Points without a guarantee are omitted; the tests of a guarantee that allows everything share
    one row.
    """
    return [(*row[:4], row[4].words, row[5]) for row in _rows(audit)]


def _rows(audit: AuditPart) -> list[_Row]:
    rows: list[_Row] = []
    vacuous = Counter[tuple[str, str, str]]()
    for one in sorted(audit.verdicts, key=_rank):
        verdict = Verdict[one.verdict]
        if verdict is Verdict.UNCLAIMED:
            continue
        where = (grid_epsilon(one.epsilon), clean(one.adversary), clean(_promised(one)))
        if verdict is Verdict.INCONCLUSIVE and _is_vacuous(one):
            vacuous[where] += 1
            continue
        test = test_words(one)
        if one.attack not in GUESSERS:  # a registered attack
            test = f"{one.attack}: {test}"
        rows.append((*where, clean(test), verdict, clean(_measured(one))))
    for where, count in vacuous.items():
        rows.append((*where, plural.counted(count, "test"), Verdict.INCONCLUSIVE, VACUOUS))
    return rows


def _rank(one: VerdictEntry) -> int:
    return VERDICT_ORDER.index(Verdict[one.verdict])


def _is_vacuous(one: VerdictEntry) -> bool:
    if one.p is None:
        return False
    return not one.needs or one.needs > MOST_TRIALS


def _promised(one: VerdictEntry) -> str:
    promise = one.promise
    if promise is None:
        if one.test == VIEW:
            return "claim"
        return "all"
    source = "claim"
    if promise.of_view:
        source = "view bound"
    return f"{source}, {grid_epsilon(promise.epsilon)}"


def _measured(one: VerdictEntry) -> str:
    parts = [counted(one)]
    if one.p is None:
        parts.append(one.says)
    else:
        needs = f"p = {one.p:.2g}"
        if one.needs:
            needs = f"would need about {one.needs} trials"
        parts += [needs, one.power]
    return "; ".join(filter(None, parts))


def counted(one: VerdictEntry) -> str:
    """Describe what a test counted."""
    numbers = {}
    for name in one.figures:
        number = one.number(name)
        if number is not None:
            numbers[name] = number
    for form in COUNTS:
        try:
            return form.format_map(numbers)
        except KeyError:
            continue
    exact = one.number("exact")
    if exact == math.inf:
        return "epsilon inf"
    if exact is None or "claimed" not in numbers:
        return ""
    epsilon = Holds.read(one.figures.get("holds")).says(f"{exact:.4g}")
    return f"epsilon {epsilon}, claimed {numbers['claimed']:.4g}"
