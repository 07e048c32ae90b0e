"""`leakaudit doctor --statistics`: measure the error rates of the estimators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakaudit.cli._commands import Options, option
from leakaudit.cli._options import INCONCLUSIVE, show_json, show_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leakaudit.judging.selfcheck import ErrorRate


class SelfcheckOptions(Options):
    """How the error rates are measured."""

    runs: int = option("number of audits per mechanism", default=1000)
    trials: int = option(
        "number of trials per audit and hypothesis, or of canaries in one run",
        default=1000,
    )
    alpha: float = option("maximum false-positive rate of an audit", default=0.05)
    seed: int = option("seed of the random numbers (default 0)", default=0)


def run(args: SelfcheckOptions, form: str, progress: str) -> int:
    """Print a line for each estimator and mechanism.

    Returns 1 if a rate is outside its limit, 3 if there are too few runs to tell.
    """
    from leakaudit.judging.selfcheck import check
    from leakaudit.reporting.rendering import console

    with console.shown(progress):
        rows = list(check(args.runs, args.trials, args.alpha, args.seed))
    ok = all(row.ok for row in rows)
    if form == "json":
        show_json({**vars(args), "ok": ok, "rows": [row.to_json() for row in rows]})
    else:
        _write(rows)
    if any(row.outcome == "outside" for row in rows):
        return 1
    return 0 if ok else INCONCLUSIVE


def _write(rows: Sequence[ErrorRate]) -> None:
    from rich.text import Text

    from leakaudit.reporting.rendering import console
    from leakaudit.reporting.rendering.tables import Column

    styled = {
        "ok": Text("ok", style="green"),
        "outside": Text("OUTSIDE", style="bold red"),
        "too few runs": Text("too few runs", style="yellow"),
    }
    columns = (
        Column("estimator"),
        Column("claim"),
        Column("rounds", right=True, spare=True),
        Column("known", right=True, spare=True),
        Column("claimed", right=True, spare=True),
        Column("refuted", right=True),
        Column("limits", right=True),
        Column("allowed", right=True),
        Column("outcome"),
    )
    cells = []
    for row in rows:
        low, high = row.limits
        allowed = f">= {row.allowed:g}" if row.planted else f"<= {row.allowed:g}"
        numbers = (
            str(row.rounds),
            f"{row.known:.4g}",
            f"{row.claimed:.4g}",
            f"{row.rate:.3f}",
            f"{low:.3f} to {high:.3f}",
            allowed,
        )
        cells.append((row.estimator, row.planted or "true", *numbers, styled[row.outcome]))
    show_table(columns, cells)
    console.stdout().print(Text(_note(rows), style="dim"))


def _note(rows: Sequence[ErrorRate]) -> str:
    first = rows[0]
    said = (
        f"refuted: fraction of {first.runs} audits at level {first.alpha:g} that refute the claim: "
        "the false-positive rate for a true claim, the power for one that a mistake makes false. "
        "limits: Clopper-Pearson limits of the rate, each at confidence 0.95."
    )
    if all(row.ok for row in rows):
        return said
    outside = [row for row in rows if row.outcome == "outside"]
    if any(not row.planted for row in outside):
        return f"{said} A false-positive rate is above alpha: an estimator is wrong."
    if outside:
        return f"{said} A power is too small: more --trials increase it."
    return (
        f"{said} Too few runs: chance explains the rates that are not ok, and more --runs narrow "
        "their limits."
    )
