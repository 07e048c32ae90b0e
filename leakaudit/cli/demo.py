"""`leakaudit demo`: record differential PDMM on photographs of faces, and recover them."""

from __future__ import annotations

from pathlib import Path

from leakaudit._util.files import private_folder
from leakaudit.cli import main
from leakaudit.cli._commands import SharedOptions, command
from leakaudit.cli._options import TEXT_OR_JSON, say, settings
from leakaudit.core.errors import LeakauditError


class _Options(SharedOptions):
    settings = ("seed", "output")

    format: str = TEXT_OR_JSON


@command(
    "demo",
    "recover ten faces from recorded traffic, in one minute",
    "Shows the whole workflow in about a minute: ten nodes train on one photograph each, "
    "and an eavesdropper recovers all ten photographs from the messages. Writes 32 MB.",
    "leakaudit demo",
    "leakaudit demo -o demo/ --seed 1",
)
def run(args: _Options) -> int:
    """Record, attack, and name the files to open."""
    chosen = settings(args)
    folder = Path(chosen.output)
    try:
        private_folder(folder)
    except OSError as e:
        raise LeakauditError(f"cannot create the output folder {folder}: {e.strerror}") from e
    trace = folder / "demo.pt"
    common = ["--seed", str(chosen.seed), "--progress", chosen.progress]
    say(
        "Ten nodes train a face classifier with differential PDMM. Each node holds one face; "
        "the initial values z^0 are random and secret.",
        args,
    )
    record = [
        *("record", "pdmm", "-o", str(trace), "--nodes", "10", "--graph", "rgg", "--rounds", "6"),
        *("--data", "faces", "--samples", "1", "--model", "mlp", "--set", "hidden=32"),
        *("--dtype", "float32"),
    ]
    code = main([*record, *common])
    observed = "An eavesdropper observes only the transmitted differences"
    say(f"{observed}: no models, no labels and no z^0.", args)
    found = folder / "demo"
    shown = ["-o", str(found), "-f", args.format]
    code = code or main(["attack", str(trace), *shown, *common])
    page = found / "report.html"
    code = code or main(["report", str(found), "-o", str(page), "-q"])
    say(f"See {page} in a web browser, or {found / 'reconstructions.png'}.", args)
    return code
