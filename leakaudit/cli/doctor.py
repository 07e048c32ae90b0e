"""`leakaudit doctor`: check the installation."""

from __future__ import annotations

import argparse
import sys

from leakaudit.cli import selfcheck
from leakaudit.cli._commands import SharedOptions, command, option
from leakaudit.cli._options import TEXT_OR_JSON, settings, show_json, show_table
from leakaudit.cli.selfcheck import SelfcheckOptions
from leakaudit.core.errors import LeakauditError


class _Options(SharedOptions):
    settings = ("device", "threads", "lpips_weights", "data_root")

    format: str = TEXT_OR_JSON
    statistics: bool = option(
        "measure the error rates of the audit's own estimators on mechanisms with a known epsilon: "
        "their false-positive rate and their power"
    )
    measured: SelfcheckOptions


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
        return selfcheck.run(args.measured, args.format, chosen.progress)
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
