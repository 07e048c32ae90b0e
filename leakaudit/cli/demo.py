"""`leakaudit demo`: record differential PDMM on real faces, eavesdrop, and show the faces."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from leakaudit.cli import main
from leakaudit.cli._options import say, settings, shared
from leakaudit.errors import LeakauditError


def add(verbs: Any) -> None:
    """Describe the verb.

    Args:
        verbs: The subparsers of `leakaudit`.
    """
    sub = verbs.add_parser(
        "demo",
        help=(
            "the whole path in a minute: ten nodes, one face each, every face recovered from the "
            "wire"
        ),
    )
    shared(sub, "seed", "output")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Record, attack, and point at the picture.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    chosen = settings(args)
    folder = Path(chosen.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise LeakauditError(f"output folder {folder} cannot be written: {e.strerror}") from e
    trace = folder / "demo.pt"
    common = ["--seed", str(chosen.seed), "--progress", chosen.progress]
    say(
        (
            "Ten nodes train a face classifier by differential PDMM. z^0 is random and secret; "
            "each node holds one face."
        ),
        args,
    )
    record = [
        "record",
        "pdmm",
        "-o",
        str(trace),
        "--nodes",
        "10",
        "--graph",
        "rgg",
        "--rounds",
        "20",
        "--data",
        "faces",
        "--samples",
        "1",
        "--model",
        "mlp",
    ]
    code = main([*record, "--set", "hidden=64", "--dtype", "float32", *common])
    say("An eavesdropper hears the differences on the wire: no model, no label, no z^0.", args)
    code = code or main(["attack", str(trace), "-o", str(folder / "demo"), *common])
    say(f"See {folder / 'demo' / 'reconstructions.png'} and {folder / 'demo' / 'report.md'}.", args)
    return code
