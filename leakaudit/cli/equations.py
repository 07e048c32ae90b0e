"""`leakaudit trace equations`: propose the update equations of a protocol that is not declared."""

from __future__ import annotations

import sys
from pathlib import Path

from leakaudit.cli._commands import SharedOptions, command, option
from leakaudit.cli._options import INCONCLUSIVE, TRACE, say, settings, show, trusting

FITTED = "fitted"  # name in the file if the protocol of the trace is a bundled one


class _Options(SharedOptions):
    settings = ("threads",)

    trace: Path = TRACE
    output: Path = option(
        "protocol file to write; replaces an existing one",
        "-o",
        default=Path("protocol.toml"),
        metavar="FILE",
    )
    trust_model: bool | str = trusting("trace")


@command(
    "trace equations",
    "propose the update equations of a protocol that is not declared",
    "Fits update equations to the messages of a trace, whatever protocol it declares, and "
    "writes them as a protocol file. An equation is written only if it predicts rounds "
    "that were held back, and if recomputed gradients explain what it leaves; otherwise "
    "the exit code is 3.",
    "leakaudit trace equations trace.pt -o protocol.toml",
    "leakaudit trace equations folder/ -o fitted.toml",
)
def run(args: _Options) -> int:
    """Print the equations of every node and write the file."""
    settings(args)
    from leakaudit._util.files import replacing
    from leakaudit.capture.equations.propose import propose
    from leakaudit.core import registry
    from leakaudit.core.errors import one_line
    from leakaudit.tasks.task import Task
    from leakaudit.traces import trace_file
    from leakaudit.traces.vocabulary import finite

    trace = trace_file.load(args.trace)
    for messages in trace.messages:
        finite(messages.payload, str(args.trace))
    task = Task.build(trace.task, dtype=trace.dtype, trusted=args.trust_model)
    name = FITTED
    if trace.protocol.startswith(registry.OWN) or registry.TEXT in trace.provenance:
        name = trace.protocol
    found = propose(trace, task, name)
    if found.text is None:
        sys.stderr.write(f"leakaudit trace equations: {'; '.join(found.said)}\n")
        return INCONCLUSIVE
    for line in (*found.nodes, *found.said):
        show(f"{one_line(line)}\n")
    with replacing(args.output) as file:
        file.write(found.text.encode())
    next = f"check them: leakaudit trace lint {args.trace} --plugin {args.output}"
    if name == FITTED:
        next = f"to use them, record the program with protocol = '{args.output}'"
    say(f"{args.output}: {next}", args)
    return 0
