"""What a notebook displays for a value: a card in HTML, without scripts and external files.

All styles are inline, because notebooks that are not trusted, and sites that display them, remove
style sheets. Only marks and lines have colours of their own: a notebook is light or dark.
"""

from __future__ import annotations

import html as markup
from collections.abc import Iterable, Sequence
from functools import cache, singledispatch
from pathlib import Path

import numpy as np
from jinja2.environment import TemplateModule
from markupsafe import Markup
from torch import Tensor

from leakaudit._util.plural import counted, listed, named
from leakaudit.core.leak import GradientLeak, Leaks
from leakaudit.core.quantities import QUANTITIES, Data, Place, fallbacks_last, shown
from leakaudit.core.reconstruction import Certificate, Reconstruction, Reconstructions
from leakaudit.core.trace import Trace
from leakaudit.core.verdict import Verdict
from leakaudit.reporting.figures import pictures
from leakaudit.reporting.figures.pictures import Pair
from leakaudit.reporting.findings import findings, measured, wording
from leakaudit.reporting.rendering import audit_text, gallery, passages, sweep_text
from leakaudit.reporting.rendering.templates import environment
from leakaudit.reporting.results.model import (
    AttackRecord,
    AuditRecord,
    CheckRecord,
    RunRecord,
    Scores,
    SweepRecord,
)
from leakaudit.scoring.scoring import METRICS, Score, ScoreTable
from leakaudit.views.accounting.compare import Comparison, Comparisons

# All of these are choices: a card should fit on a screen and not bloat a notebook.
ROWS = 12  # rows of a table
COLUMNS = 16  # pictures of a card, each with its original if that is known
LETTERS = 160  # characters of a text
SEQUENCES = 8  # texts of a card
BUDGET = 55_000  # bytes of all PNG of a card; base64 adds a third
WIDTH = 88  # displayed width of a picture, in pixels

# Marks, not text: they only need to be told apart from either background.
RED = "#d1242f"
AMBER = "#c98500"
GREEN = "#2da44e"
GREY = "#8b949e"
CERTIFICATES = {
    Certificate.EXACT.name: RED,
    Certificate.INTERVAL.name: RED,
    Certificate.APPROXIMATE.name: AMBER,
    Certificate.FAILED.name: GREY,
}
VERDICTS = {
    Verdict.REFUTED: RED,
    Verdict.UNSUPPORTED: RED,
    Verdict.INCONCLUSIVE: AMBER,
    Verdict.NOT_REFUTED: GREEN,
    Verdict.UNCLAIMED: GREY,
}
_TITLES: dict[type[RunRecord], str] = {
    AttackRecord: "Attack",
    AuditRecord: "Audit",
    CheckRecord: "Privacy gate",
}


@singledispatch
def html(value: object) -> str:
    """Return the card of a value."""
    return f"<pre>{markup.escape(repr(value))}</pre>"


# ---------------------------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------------------------


@html.register
def _trace(trace: Trace) -> str:
    task = trace.task
    size = sum(table.payload.numel() * table.payload.element_size() for table in trace.messages)
    kinds = ", ".join(trace.kinds())
    start, stop = trace.columns
    recorded = f"all {stop - start}"
    if (start, stop) != (0, trace.layout.size):
        recorded = f"{start} to {stop - 1} of {trace.layout.size}"
    constants = ", ".join(f"{name} = {value}" for name, value in trace.params.items())
    network = f"{counted(trace.graph.nodes, 'node')}, {counted(len(trace.graph.edges), 'edge')}"
    shape = " x ".join(map(str, task.shape))
    facts = [
        ("protocol", trace.protocol),
        ("constants", constants),
        ("network", network),
        ("rounds", str(trace.rounds)),
        ("messages", f"{len(trace)} of {kinds}, {size / 1e6:.1f} MB"),
        ("model", f"{task.model}, parameters recorded: {recorded}"),
        ("data", f"{task.data or 'not named'}, inputs of {shape}, {task.classes} classes"),
    ]
    if not trace.complete:
        facts.append(("complete", "no, the recording was interrupted"))
    return _card("Trace", [], _facts(facts))


@html.register
def _leaks(leaks: Leaks) -> str:
    owners: set[int] = set()
    for leak in leaks:
        owners.update(leak.nodes)
    asked = len(owners) + len(leaks.undetermined)
    lead = f"Gradients of {len(owners)} of {counted(asked, 'node')} are determined."
    if leaks.items:
        lead = f"Adversary {leaks.items[0].adversary}. {lead}"
    table = _leak_table(leaks.items)
    reasons = wording.by_reason(leaks.undetermined.items())
    notes = [f"not determined: {reason}" for reason in reasons[:ROWS]]
    return _card("Leaks", [lead], table, _quiet(*notes))


@html.register
def _leak(leak: GradientLeak) -> str:
    return _card("Leak", [f"Adversary {leak.adversary}."], _leak_table([leak]), _quiet(leak.scope))


@html.register
def _score(score: Score) -> str:
    rows = []
    for name in METRICS:
        values = score.statistics(name)
        if values["median"] is not None:
            rows.append([name, *(f"{value:.4g}" for value in values.values() if value is not None)])
    lead = f"Node {score.node}, attack {score.attack}: {_matched(score)}."
    table = _table(("metric", "min", "median", "mean"), rows, ("min", "median", "mean"))
    return _card("Score", [lead], table, _quiet(score.note))


@html.register
def _scores(scores: ScoreTable) -> str:
    headings = ("node", "attack", "records", *(one.heading for one in _SCORED), "note")
    rows = []
    for one in scores:
        stored = findings.scores(one)
        cells = [str(one.node), one.attack, _matched(one)]
        cells += _measured(stored)
        rows.append([*cells, one.note])
    numbers = ("node", *(one.heading for one in shown(Place.CURVE, data=Data.IMAGES)))
    table = _table(*_without_empty(headings, rows), numbers=numbers)
    return _card("Scores", [], _beside(scores), table)


def _beside(scores: ScoreTable) -> str:
    """The originals beside their reconstructions; empty if the list was changed or has no truth."""
    truth = scores.truth
    if truth is None or len(scores.found) != len(scores):
        return ""
    if truth.task.is_text:
        return _texts(scores.found, scores)
    for one, score in zip(scores.found, scores, strict=True):
        records, _ = truth.of(*one.nodes)
        if len(records) != len(score.matched):  # scored with `own`
            return ""
    return _images(pictures.pair_up(scores.found, scores, truth))


@html.register
def _verdict(verdict: Verdict) -> str:
    mark = _filled("mark", VERDICTS[verdict])
    return f"<div>{mark}<b>{verdict.words}</b>: {_text(verdict.value)}.</div>"


@html.register
def _run(record: RunRecord) -> str:
    training = record.trace
    facts = [
        ("protocol", training.protocol),
        ("network", f"{counted(training.nodes, 'node')}, {training.rounds} rounds"),
        ("data", f"{training.data}, model {training.model}"),
    ]
    table = ""
    if isinstance(record, AuditRecord):
        table = _table(audit_text.HEADINGS, audit_text.verdicts(record.audit))
    elif isinstance(record, CheckRecord):
        facts.append(("exit code", f"{record.gate.code}, {record.gate.verdict}"))
        rules = [(wording.outcome_word(one), one.cell, one.says) for one in record.gate.rules]
        table = _table(("outcome", "cell", "details"), rows=rules)
    elif record.findings:
        worst = sorted(record.findings, key=measured.harm, reverse=True)
        headings, rows = wording.table(worst[:ROWS])
        table = _table(headings, rows, wording.NUMBERS, total=len(worst))
    title = _TITLES.get(type(record), "Results")
    return _card(title, [record.summary], _facts(facts), table)


@html.register
def _sweep(record: SweepRecord) -> str:
    headings, rows = sweep_text.table(record.sweep)
    return _card("Sweep", [record.summary], _table(headings, rows))


# ---------------------------------------------------------------------------------------------
# Parts of these cards
# ---------------------------------------------------------------------------------------------


def _leak_table(leaks: Sequence[GradientLeak]) -> str:
    headings = ("node", "kind", "rounds", "equations", "noise", "batch", "formula")
    rows = []
    for leak in leaks:
        noise = 0.0
        if len(leak.std):
            noise = float(leak.std.max())
        batch = "unknown"
        if leak.batch is not None:
            batch = str(leak.batch)
        row = (listed(leak.nodes), leak.kind, leak.span, str(len(leak.value)), f"{noise:.2g}")
        rows.append([*row, batch, leak.formula])
    return _table(headings, rows, ("equations", "noise", "batch"))


@html.register
def _reconstructed(some: Reconstruction | Reconstructions) -> str:
    found = [some] if isinstance(some, Reconstruction) else some
    headings = ("node", "attack", "inputs", "certificate", "labels", "residual", "seconds", "note")
    rows = []
    for one in found:
        row = (listed(one.nodes), one.attack, str(len(one.x)), _certified(one), _labels(one))
        rows.append([*row, f"{one.residual:.2g}", f"{one.seconds:.2f}", one.note])
    table = _table(*_without_empty(headings, rows), numbers=("inputs", "residual", "seconds"))
    unscored = [Score(one.node, one.attack) for one in found]
    drawn = _images(pictures.pair_up(found, unscored, None)) or _texts(found, [])
    counts = []
    for certificate in Certificate:
        number = sum(one.certificate is certificate for one in found)
        if number:
            counts.append(f"{number} {certificate.name}: {certificate.value}")
    lead = [f"{line}." for line in counts]
    return _card(counted(len(found), "reconstruction").capitalize(), lead, drawn, table)


def _certified(one: Reconstruction) -> str:
    if 0 < one.certified < len(one.x):
        return f"{one.certificate.name}, {one.certified} inputs EXACT"
    return one.certificate.name


def _labels(one: Reconstruction) -> str:
    if one.y is None or one.y.ndim != 1:
        return ""
    shown = [f"{label:g}" for label in one.y[: wording.LABELS_SHOWN].tolist()]
    if len(one.y) > len(shown):
        shown.append("…")
    return " ".join(shown)


_SCORED = (*fallbacks_last(shown(Place.CARD, "Number")), *shown(Place.CARD, "Flag"))


def _measured(scores: Scores | None) -> list[str]:
    if scores is None:
        return [""] * len(_SCORED)
    cells = []
    for one in _SCORED:
        column = getattr(scores, one.key)
        if one.kind == "Number":
            cells.append(wording.spread(column, one))
        else:
            known = measured.values(column)
            cells.append(f"{measured.count(column)} of {len(known)}" if known else "")
    return cells


def _matched(score: Score) -> str:
    if not score.matched:
        return "not scored"
    records = counted(len(score.matched), "record")
    return f"{len(score.matched) - score.not_recovered} of {records} recovered"


@html.register
def _compared(some: Comparison | Comparisons) -> str:
    found = [some] if isinstance(some, Comparison) else some
    headings = ("node", "adversary", "mu", "epsilon", "claimed", "verdict", "reason")
    rows = []
    for one in sorted(found, key=_excess, reverse=True):
        claimed = None
        if one.claim is not None:
            claimed = one.claim.epsilon
        reason = f"{one.holds}; {one.why or one.bound.refused}"
        rows.append(
            [
                str(one.bound.node),
                str(one.bound.adversary),
                one.mu_in_words,
                one.epsilon_in_words,
                wording.significant(claimed),
                one.verdict.words,
                reason,
            ]
        )
    worst = next((v for v in VERDICTS if any(one.verdict is v for one in found)), None)
    lead = []
    if worst is not None:
        lead.append(f"{counted(len(found), 'view')}, the worst verdict: {worst.words}.")
    return _card("Privacy of one record", lead, _table(headings, rows, ("mu", "epsilon")))


def _excess(one: Comparison) -> tuple[float, float]:
    rank = -list(VERDICTS).index(one.verdict)
    return float(rank), one.bound.rank


# ---------------------------------------------------------------------------------------------
# Pictures and texts
# ---------------------------------------------------------------------------------------------


def _images(pairs: Sequence[Pair]) -> str:
    if not pairs:
        return ""
    shown = [(_pixels(pair.original), _pixels(pair.found)) for pair in pairs[:COLUMNS]]
    pixels = [image for both in shown for image in both if image is not None]
    encode = gallery.fitting(pixels, BUDGET)
    tiles = []
    for pair, (original, found) in zip(pairs, shown, strict=False):
        words = [pair.owner]
        if pair.psnr is not None:
            words.append(QUANTITIES["psnr"].caption(pair.psnr))
        tiles.append((encode(original), encode(found), words, pair.certificate))
    note = ""
    if len(pairs) > COLUMNS:
        note = f"{COLUMNS} of {len(pairs)} pictures are shown"
    elif any(original is not None for original, _ in shown):
        note = "left: the original; right: its reconstruction"
    return _filled("tiles", tiles, WIDTH, note)


def _pixels(x: Tensor | None) -> np.ndarray | None:
    return None if x is None else gallery.pixels(x.detach().cpu().double().numpy())


def _texts(found: Sequence[Reconstruction], scores: Sequence[Score]) -> str:
    rows = []
    for k, one in enumerate(found):
        if one.x.ndim != 2 or one.x.is_floating_point():
            continue
        shares = None
        if k < len(scores):
            shares = scores[k].tokens_correct
        for row, tokens in enumerate(one.x.detach().cpu().numpy()):
            share = ""
            if shares is not None and row in scores[k].matched:
                value = shares[scores[k].matched.index(row)]
                share = "" if value is None else f"{value:.0%}"
            rows.append(
                [named(one.nodes), one.certificates[row].name, passages.text_of(tokens), share]
            )
    if not rows:
        return ""
    headings = ("owner", "certificate", "text", "tokens correct")
    return _table(*_without_empty(headings, rows[:SEQUENCES]), total=len(rows))


# ---------------------------------------------------------------------------------------------
# HTML
# ---------------------------------------------------------------------------------------------


def card(
    title: str, lead: Sequence[str], headings: Sequence[str], rows: Iterable[Sequence[str]]
) -> str:
    """Return a card with one table, for values of packages above this one."""
    return _card(title, lead, _table(headings, list(rows)))


def _card(title: str, lead: Sequence[str], *parts: str) -> str:
    return _filled("card", title, lead, map(Markup, parts))


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    return _filled("facts", facts)


def _quiet(*notes: str) -> str:
    return _filled("quiet", notes)


def _table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[str] = (),
    total: int | None = None,
) -> str:
    """A table of at most `ROWS` rows; columns of numbers are aligned on the right."""
    if not rows:
        return ""
    return _filled("table", headings, rows, numbers, total or len(rows), ROWS)


def _filled(macro: str, *values: object) -> str:
    return str(getattr(_macros(), macro)(*values))


@cache
def _macros() -> TemplateModule:
    made = environment(Path(__file__).parent / "html")
    made.filters |= {"text": _text, "colour": _colour}
    return made.get_template("cards.html.j2").module


def _colour(cell: str) -> str:
    word = cell.partition(",")[0]
    for verdict, colour in VERDICTS.items():
        if word == verdict.words:
            return colour
    return CERTIFICATES.get(word.upper(), GREY)


def _without_empty(
    headings: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    kept = []
    for k in range(len(headings)):
        if any(row[k] not in ("", "-") for row in rows):
            kept.append(k)
    return [headings[k] for k in kept], [[row[k] for k in kept] for row in rows]


def _text(text: object, lines: int = 1) -> Markup:
    """Any value as escaped text of at most some lines of `LETTERS` characters."""
    line = wording.clean(text)
    most = lines * LETTERS
    if len(line) > most:
        line = f"{line[: most - 1]}…"
    return Markup(markup.escape(line))
