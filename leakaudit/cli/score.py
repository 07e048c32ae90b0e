"""`leakaudit score`: score stored reconstructions again, without repeating the attack."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from leakaudit.api import RECORD, file_of
from leakaudit.cli._commands import SharedOptions, argument, command, option
from leakaudit.cli._options import INCONCLUSIVE, say, settings, text_renderer
from leakaudit.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.results.model import AttackRecord


class _Options(SharedOptions):
    settings = ("lpips_weights", "threads")

    results: Path = argument(
        "results.json, or the folder with it and reconstructions.npz", metavar="RESULTS"
    )
    metric: list[str] = option(
        "metric to compute; repeatable; the others keep their values (default: all)", metavar="NAME"
    )
    truth: Path | None = option(
        "truth file (default: the file that the results name)", metavar="FILE"
    )
    format: str = option("format of the output, see 'leakaudit list reports'", "-f", default="text")
    output: Path | None = option(
        "folder for the new results (default: replace the old ones)", "-o", metavar="DIR"
    )


@command(
    "score",
    "score stored reconstructions again, with another truth or metric",
    "Scores stored reconstructions again without repeating the attack, for example with a "
    "truth file that was not available before, or with LPIPS.",
    "leakaudit score out/ --truth trace.truth.pt",
    "leakaudit score out/ --metric ssim -o rescored/",
)
def run(args: _Options) -> int:
    """Score, write results.json, the picture and report.md, and print the table.

    Returns:
        The exit code; 3 if the recording was not what it declares, if the truth refutes every
        certificate, or if no node was examined.
    """
    from leakaudit.pipeline import output, rescoring
    from leakaudit.rendering import console
    from leakaudit.results import model, record_file, worst_case
    from leakaudit.scoring import lpips_weights
    from leakaudit.traces import trace_file
    from leakaudit.traces._storage import sidecar

    chosen = settings(args)
    render = text_renderer(args.format)
    rescoring.check(args.metric)
    source = file_of(args.results)
    record = rescoring.one_truth(record_file.read(source))
    path = args.truth or _named(record)
    truth, sha256 = trace_file.load_truth(path), sidecar.digest(path)
    rescoring.same_recording(record, truth, sha256)
    weights, sentence = lpips_weights.find(chosen.lpips_weights, truth.task.shape)
    folder = args.output or source.parent
    with console.shown(chosen.progress), output.ready(folder):
        made, found, scores = rescoring.rescore(
            record,
            source.parent,
            truth,
            metrics=args.metric,
            weights=weights,
            lpips=sentence,
            truth_sha256=sha256,
            truth_path=path,
        )
        if lost := rescoring.missing(scores, args.metric):
            reason = made.metrics.get(lost[0], "this data has none")
            raise LeakauditError(
                f"{lost[0]} could not be computed for any record: {reason}; nothing was written"
            )
        made = output.write(folder, made, found, scores, truth)
    fit = console.fit() if args.format == "text" else {}
    sys.stdout.write(render(model.plain(made), **fit).rstrip("\n") + "\n")
    say(f"{folder / RECORD}: scored again; no attack was run", args)
    return 0 if worst_case.conclusive(made) else INCONCLUSIVE


def _named(record: AttackRecord) -> Path:
    """Return the truth file that the results were scored with."""
    from leakaudit.results.model import given

    name = given(record.provenance.truth.path, None)
    if name is None:
        raise LeakauditError("the results do not name a truth file; specify it with --truth FILE")
    if not Path(name).is_file():
        raise LeakauditError(
            f"the truth file {name}, which these results name, does not exist; specify it with "
            "--truth FILE"
        )
    return Path(name)
