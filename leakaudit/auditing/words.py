"""The verdicts of an audit as text, and as a page of Markdown, from the record only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from leakaudit.auditing.names import Guesser, TestName
from leakaudit.auditing.record import ORDER, words
from leakaudit.bounds.empirical import MOST
from leakaudit.rendering import markdown as md
from leakaudit.rendering.console import printed
from leakaudit.results.wording import REFUSED, clean, refused
from leakaudit.trace import Json
from leakaudit.verdict import Verdict

STYLES = {
    Verdict.REFUTED: "bold red",
    Verdict.UNSUPPORTED: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NOT_REFUTED: "green",
    Verdict.UNCLAIMED: "dim",
}
HEADINGS = ("epsilon", "adversary", "promise", "test", "verdict", "what was measured")
CURVE = (
    "epsilon",
    "adversary",
    "attack",
    "refused",
    "images",
    "PSNR best",
    "median",
    "mean",
    "SSIM best",
    "median",
    "mean",
)
DIGITS = {"psnr": 1, "ssim": 3}  # behind the point
VACUOUS = "it allows every success, or nearly: ten million trials would not be enough to exceed it"


@dataclass(frozen=True)
class _Row:
    """One row of the table of verdicts."""

    where: tuple[str, str, str]  # epsilon, adversary, promise
    test: str
    verdict: Verdict
    measured: str

    @property
    def cells(self) -> tuple[str, ...]:
        return (*self.where, self.test, self.verdict.words, self.measured)


def text(results: Mapping[str, Json], width: int = 140, color: bool = False) -> str:
    """Return the summary, the curves and the verdicts.

    Args:
        results: The record of an audit.
        width: Columns of the place where it is shown.
        color: Whether that place has colours.
    """
    shown = _table(CURVE)
    for row in curves(results):
        shown.add_row(*(Text(cell) for cell in row))
    judged = _table(HEADINGS)
    for one in _rows(results):
        epsilon, adversary, promise = one.where
        judged.add_row(
            Text(epsilon),
            Text(adversary),
            Text(promise),
            Text(one.test),
            Text(one.verdict.words, style=STYLES[one.verdict]),
            Text(one.measured),
        )
    summary = Text(clean(results["summary"]), style="bold")
    return printed([summary, shown, Text(REFUSED, style="dim"), judged], width, color)


def _table(headings: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def curves(results: Mapping[str, Json]) -> list[tuple[str, ...]]:
    """Return one row for each point of the grid, adversary and attack.

    Args:
        results: The record of an audit.
    """
    rows = []
    for c in results["audit"]["curves"]:
        images = next((f"{c[m]['images']:g}" for m in ("psnr", "relative_error") if m in c), "0")
        cells = []
        for metric, digits in DIGITS.items():
            for statistic in ("best", "median", "mean"):
                value = "-"
                if metric in c:
                    value = f"{c[metric][statistic]:.{digits}f}"
                cells.append(value)
        where = (words(c["epsilon"]), clean(c["adversary"]), clean(c["attack"]))
        rows.append((*where, refused(c), images, *cells))
    return rows


def verdicts(results: Mapping[str, Json]) -> list[tuple[str, ...]]:
    """Return one row for each verdict, the worst first.

    Points that promise nothing are left out; tests of a promise that allows everything take one
    row.

    Args:
        results: The record of an audit.
    """
    return [row.cells for row in _rows(results)]


def _rows(results: Mapping[str, Json]) -> list[_Row]:
    rows = []
    vacuous = Counter[tuple[str, str, str]]()
    for v in sorted(results["audit"]["verdicts"], key=lambda v: ORDER.index(_verdict(v))):
        verdict = _verdict(v)
        if verdict is Verdict.UNCLAIMED:
            continue
        where = (words(v["epsilon"]), clean(v["adversary"]), clean(_promised(v)))
        if verdict is Verdict.INCONCLUSIVE and _is_vacuous(v):
            vacuous[where] += 1
            continue
        test = v["test"]
        if v["attack"] not in list(Guesser):  # a registered attack
            test = f"{v['attack']}: {test}"
        rows.append(_Row(where, clean(test), verdict, clean(_measured(v))))
    for where, n in vacuous.items():
        rows.append(_Row(where, f"{n} tests", Verdict.INCONCLUSIVE, VACUOUS))
    return rows


def _verdict(v: Mapping[str, Json]) -> Verdict:
    return Verdict[v["verdict"]]


def _is_vacuous(v: Mapping[str, Json]) -> bool:
    """Return whether no affordable number of trials could refute the promise."""
    if v["p"] is None:
        return False
    return not v["needs"] or v["needs"] > MOST


def _promised(verdict: Mapping[str, Json]) -> str:
    """Return what was tested, in short."""
    promise = verdict["promise"]
    if promise is None:
        return "claim" if verdict["test"] == TestName.VIEW else "all"
    whose = "claim" if promise["mu"] is None else "exact view"
    return f"{whose}, {words(promise['epsilon'])}"


def _measured(verdict: Mapping[str, Json]) -> str:
    """Return what was counted and what it means, in short."""
    parts = [figures(verdict["figures"])]
    if verdict["p"] is None:
        parts.append(verdict["says"])
    else:
        needs = f"p = {verdict['p']:.2g}"
        if verdict["needs"]:
            needs = f"would need about {verdict['needs']} trials"
        parts += [needs, verdict["power"]]
    return "; ".join(filter(None, parts))


def figures(found: Mapping[str, Json]) -> str:
    """Say what was counted.

    Args:
        found: The entry ``figures`` of a verdict.
    """
    if "hits" in found:
        ceiling = ""
        if found["ceiling"] is not None:
            ceiling = f", at most {found['ceiling']:.3g} allowed"
        counted = f"{found['hits']} of {found['trials']}"
        return f"{counted} (blind chance {found['kappa']:.3g}{ceiling})"
    if "positives" in found:
        right = f"{found['true_positives']} of {found['positives']}"
        wrong = f"{found['false_positives']} of {found['negatives']}"
        return f"guessed to be there: {right} times with it, {wrong} without"
    if "canaries" in found:
        return f"{found['right']} of {found['guesses']} guesses right, {found['canaries']} canaries"
    exact = found.get("exact")
    if exact is None:
        return ""
    if exact == "inf":
        return "exact epsilon inf"
    return f"exact epsilon {exact:.4g}, claimed {found['claimed']:.4g}"


def markdown(results: Mapping[str, Json], attacks: str) -> str:
    """Return the page of an audit.

    Args:
        results: The record of the audit.
        attacks: The page of its attacks, which the renderer made; it comes last.
    """
    parts = ["# Audit", f"**{md.escape(results['summary'])}**"]
    figure = results["audit"]["figure"]
    if figure:
        parts.append(f"![PSNR, SSIM and success against epsilon]({figure})")
    parts += ["## Verdicts", md.table(HEADINGS, verdicts(results))]
    parts += ["## Attacks against epsilon", md.table(CURVE, curves(results)), md.escape(REFUSED)]
    return "\n\n".join([*parts, attacks])
