"""The verdicts of an audit as text, and as a page of Markdown, from the record alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rich import box
from rich.table import Table
from rich.text import Text

from leakaudit.auditing.record import words
from leakaudit.bounds.empirical import MOST
from leakaudit.rendering import markdown as md
from leakaudit.rendering.console import printed
from leakaudit.results.wording import REFUSED, clean, refused
from leakaudit.trace import Json
from leakaudit.verdict import Verdict

STYLES = {
    "REFUTED": "bold red",
    "UNSUPPORTED": "red",
    "INCONCLUSIVE": "yellow",
    "NOT_REFUTED": "green",
    "UNCLAIMED": "dim",
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


def text(results: Mapping[str, Json], width: int = 140, color: bool = False) -> str:
    """Return the summary, the curves and the verdicts."""
    parts: list[Text | Table] = [Text(clean(results["summary"]), style="bold")]
    for headings, rows in ((CURVE, curves(results)), (HEADINGS, verdicts(results))):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in headings:
            table.add_column(heading, overflow="fold")
        for row in rows:
            table.add_row(
                *(Text(cell, style=STYLES.get(cell.replace(" ", "_"), "")) for cell in row)
            )
        parts.append(table)
        if headings is CURVE:
            parts.append(Text(REFUSED, style="dim"))
    return printed(parts, width, color)


def curves(results: Mapping[str, Json]) -> list[tuple[str, ...]]:
    """Return one row a point of the grid, adversary and attack."""
    rows = []
    for c in results["audit"]["curves"]:
        images = next((f"{c[m]['images']:g}" for m in ("psnr", "relative_error") if m in c), "0")
        cells = [
            f"{c[m][s]:.{digits}f}" if m in c else "-"
            for m, digits in (("psnr", 1), ("ssim", 3))
            for s in ("best", "median", "mean")
        ]
        rows.append(
            (
                words(c["epsilon"]),
                clean(c["adversary"]),
                clean(c["attack"]),
                refused(c),
                images,
                *cells,
            )
        )
    return rows


def verdicts(results: Mapping[str, Json]) -> list[tuple[str, ...]]:
    """Return one row a verdict, the worst first; points that promise nothing are left out, promises that allow all take one row."""
    rows, order, vacuous = [], list(STYLES), Counter[tuple[str, ...]]()
    for v in sorted(results["audit"]["verdicts"], key=lambda v: order.index(v["verdict"])):
        if v["verdict"] == "UNCLAIMED":
            continue
        where = words(v["epsilon"]), clean(v["adversary"]), clean(_promised(v))
        if (
            v["verdict"] == "INCONCLUSIVE"
            and v["p"] is not None
            and (v["needs"] or 2 * MOST) > MOST
        ):
            vacuous[where] += 1
            continue
        test = (
            v["test"]
            if v["attack"] in ("none", "likelihood", "likelihood ratio")
            else f"{v['attack']}: {v['test']}"
        )
        rows.append((*where, clean(test), Verdict[v["verdict"]].words, clean(_measured(v))))
    many = "it allows every success, or nearly: ten million trials would not be enough to exceed it"
    return rows + [
        (*where, f"{n} tests", Verdict.INCONCLUSIVE.words, many) for where, n in vacuous.items()
    ]


def _promised(verdict: Mapping[str, Json]) -> str:
    """What was tested, in short."""
    promise = verdict["promise"]
    if promise is None:
        return "claim" if verdict["test"].startswith("exact view") else "all"
    return f"{'claim' if promise['mu'] is None else 'exact view'}, {words(promise['epsilon'])}"


def _measured(verdict: Mapping[str, Json]) -> str:
    """What was counted and what it means, in short."""
    counted = figures(verdict["figures"])
    if verdict["p"] is None:
        return "; ".join(filter(None, (counted, verdict["says"])))
    needs = (
        f"would need about {verdict['needs']} trials"
        if verdict["needs"]
        else f"p = {verdict['p']:.2g}"
    )
    return "; ".join(filter(None, (counted, needs, verdict["power"])))


def figures(found: Mapping[str, Json]) -> str:
    """Say what was counted."""
    if "hits" in found:
        ceiling = "" if found["ceiling"] is None else f", at most {found['ceiling']:.3g} allowed"
        return f"{found['hits']} of {found['trials']} (blind chance {found['kappa']:.3g}{ceiling})"
    if "positives" in found:
        right, wrong = (
            f"{found['true_positives']} of {found['positives']}",
            f"{found['false_positives']} of {found['negatives']}",
        )
        return f"guessed to be there: {right} times with it, {wrong} without"
    if "canaries" in found:
        return f"{found['right']} of {found['guesses']} guesses right, {found['canaries']} canaries"
    if "exact" in found and found["exact"] is not None:
        return (
            f"exact epsilon {found['exact']:.4g}, claimed {found['claimed']:.4g}"
            if found["exact"] != "inf"
            else "exact epsilon inf"
        )
    return ""


def markdown(results: Mapping[str, Json], attacks: str) -> str:
    """Return the audit's part of the page above that of its attacks, which the renderer made."""
    parts = ["# Audit", f"**{md.escape(results['summary'])}**"]
    if results["audit"]["figure"]:
        parts.append(f"![PSNR, SSIM and success against epsilon]({results['audit']['figure']})")
    parts += ["## Verdicts", md.table(HEADINGS, verdicts(results))]
    parts += ["## Attacks against epsilon", md.table(CURVE, curves(results)), md.escape(REFUSED)]
    return "\n\n".join([*parts, attacks])
