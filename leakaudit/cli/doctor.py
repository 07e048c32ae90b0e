"""`leakaudit doctor`: check the installation, or the error rates of the estimators."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from leakaudit.cli._commands import Options, SharedOptions, command, option
from leakaudit.cli._options import (
    INCONCLUSIVE,
    TEXT_OR_JSON,
    settings,
    show_json,
    show_table,
)
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.judging.selfcheck import ErrorRate


class _SelfcheckOptions(Options):
    """How the error rates are measured."""

    runs: int = option("number of audits per mechanism", default=1000)
    trials: int = option(
        "number of trials per audit and hypothesis, or of canaries in one run",
        default=1000,
    )
    alpha: float = option("maximum false-positive rate of an audit", default=0.05)
    seed: int = option("seed of the random numbers (default 0)", default=0)


class _Options(SharedOptions):
    settings = ("device", "threads", "lpips_weights", "data_root")

    format: str = TEXT_OR_JSON
    statistics: bool = option(
        "measure the error rates of the audit's own estimators on mechanisms with a known epsilon: "
        "their false-positive rate and their power"
    )
    measured: _SelfcheckOptions


@command(
    "doctor",
    "check that torch, torchvision, LPIPS and the device work, or that the estimators do",
    "Checks that the libraries, the LPIPS weights and the device that leakaudit needs are "
    "installed and work, or measures the error rates of its estimators. Run it first if a command "
    "fails unexpectedly.",
    "leakaudit doctor",
    "leakaudit doctor --device cuda -f json",
    "leakaudit doctor --statistics --runs 200 --alpha 0.01",
)
def run(args: _Options) -> int:
    """Print the outcome of each check."""
    if not args.statistics:
        args.measured.refuse("only with --statistics")
    chosen = settings(args)
    if args.statistics:
        return _statistics(args.measured, args.format, chosen.progress)
    rows = [*_libraries(), *_machine(chosen), _weights(chosen.lpips_weights), _faces()]
    if args.format == "json":
        show_json([{"check": check, "ok": ok, "found": text} for check, ok, text in rows])
    else:
        from leakaudit.reporting.rendering.tables import Column

        columns = (Column("outcome"), Column("check"), Column("found", text=True))
        show_table(columns, [("ok" if ok else "FAIL", check, text) for check, ok, text in rows])
    return 0 if all(ok for _, ok, _ in rows) else 2


def _libraries() -> list[tuple[str, bool, str]]:
    from importlib.metadata import version

    import torch

    from leakaudit.tasks import _torchvision

    rows = [
        ("python", sys.version_info >= (3, 11), sys.version.split()[0]),
        ("torch", True, torch.__version__),
    ]
    try:
        found = _torchvision.torchvision()
        how = "as installed"
        if _torchvision.shimmed():
            how = "its operators are replaced, because it was built for another torch"
        rows.append(("torchvision", True, f"{found.__version__}, {how}"))
    except (LeakauditError, ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        rows.append(("torchvision", False, f"{reason}; install with -c constraints.txt"))
    for name in ("scikit-image", "lpips", "numpy", "rich"):
        rows.append((name, True, version(name)))
    return rows


def _machine(chosen: argparse.Namespace) -> list[tuple[str, bool, str]]:
    import os

    import torch

    cuda = (
        f"{torch.cuda.device_count()} devices, built for {torch.version.cuda}"
        if torch.cuda.is_available()
        else "not available; everything runs on the CPU"
    )
    return [
        ("cuda", True, cuda),
        ("device", True, str(chosen.device)),
        ("threads", True, f"{chosen.threads} of {os.cpu_count()} cores"),
    ]


def _weights(option: str) -> tuple[str, bool, str]:
    from leakaudit.scoring.lpips_weights import find

    try:
        _, text = find(option, (3, 224, 224))
    except LeakauditError as error:
        return "lpips", False, str(error)
    return "lpips", True, text


def _faces() -> tuple[str, bool, str]:
    import torch

    from leakaudit.tasks import data

    faces = data.load("faces", None, False, torch.Generator().manual_seed(0))
    return (
        "faces",
        len(faces.x) == 100,
        f"{len(faces.x)} bundled faces of {tuple(faces.x.shape[1:])}",
    )


# --- error rates ----------------------------------------------------------------------------------


def _statistics(args: _SelfcheckOptions, form: str, progress: str) -> int:
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
        _show_rates(rows)
    if any(row.outcome == "outside" for row in rows):
        return 1
    return 0 if ok else INCONCLUSIVE


def _show_rates(rows: Sequence[ErrorRate]) -> None:
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
