"""`leakaudit record`: run a protocol and record its messages."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit.cli._commands import Options, SharedOptions, argument, command, option
from leakaudit.cli._options import plugins, say, settings, show, size_of, trusting
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.capture.gloo.setup import ProcessLayout
    from leakaudit.protocols.recording import Plan


class _Help(argparse.Action):
    """Help that also lists parameters and messages of a named victim."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: object
    ) -> None:
        show(parser.format_help())
        if namespace.victim:
            try:
                plugins(namespace)
                _describe(namespace.victim)
            except LeakauditError as error:
                parser.error(str(error))
        parser.exit()


def _describe(victim: str) -> None:
    from leakaudit._util import declarations
    from leakaudit.cli.list import parameters, wrapped
    from leakaudit.protocols import calibration
    from leakaudit.reporting.rendering import console

    declared = declarations.of("victims", victim, ("sends", "noise_constant"))
    known = dict(declared.parameters)
    for name in calibration.added(known, declared.attributes["noise_constant"]):
        known[name] = declarations.Parameter(MISSING, calibration.HELPS[name])
    sends = [f"{kind}: {text}" for kind, text in declared.attributes["sends"].items()]
    lists = {f"parameters of {victim} (--set NAME=VALUE)": parameters(known)}
    if sends:
        lists[f"kinds of messages of {victim}"] = sends
    for heading, texts in lists.items():
        lines = [line for text in texts for line in wrapped(text, console.width(), "  ")]
        show("\n".join(["", f"{heading}:", *lines, ""]))


class _KeyOptions(Options):
    nodes: int | None = option("number of nodes with data (default 10)")
    graph: str | None = option(
        "graph: ring, star, complete, rgg, rgg:R (random points closer than R are connected), er, "
        "grid or file:PATH (default rgg)",
        names="graphs",
    )
    rounds: int | None = option("number of rounds (default 20)")
    data: str | None = option("data set, see 'leakaudit list data' (default faces)", names="data")
    samples: int | None = option("number of records per node (default 1)")
    split: str | None = option(
        "distribution of the records: iid, classes:C, dirichlet:A or owners (default iid)"
    )
    classes: str | None = option(
        "classes of the data set to use, by number or name, joined by commas (default all)"
    )
    rows: str | None = option(
        "scale of the records: raw, unit (Euclidean norm 1) or range (every feature in [0, 1]) "
        "(default raw)"
    )
    labels: str | None = option(
        "targets of the model: classes; or, for the squared loss, signs (-1 and +1 for two "
        "classes) or one-hot (default classes)"
    )
    reduction: str | None = option(
        "objective of a node: the mean or the sum of the losses of its records (default mean)"
    )
    model: str | None = option(
        "model, see 'leakaudit list models', package.module:factory, or a torch.export program "
        "file.pt2 (default mlp)",
        names="models",
    )
    weights: str | None = option(
        "file of trained weights to start from, FILE.safetensors: the state_dict of the model "
        "(default: a random model)",
        names="files",
    )
    dtype: str | None = option("number format: float32 or float64 (default float32)")
    wires: str | None = option("channels to record: all, none, node:3 or 0-1,1-2 (default all)")
    layers: str | None = option(
        "parameters to record: all, or first, last (layer), names of parameters or modules, and "
        "sketch for sums of all columns that verify the others, joined by commas (default all)"
    )
    set: list[str] = option(
        "set a parameter of the protocol or an argument of the model; repeatable",
        metavar="NAME=VALUE",
    )
    states: bool | None = option("store the private vectors of the nodes in the truth file")
    curves: bool | None = option(
        "store loss, accuracy, consensus and norms of each round in the truth file"
    )
    calibrate: str | None = option(
        "what sets the noise for '--set epsilon=E': the claim of the protocol's paper, or the "
        "exact view of the strongest adversary: claim or exact (default claim)"
    )
    test: int | None = option(
        "number of held-out records, on which --curves evaluates the model of every node and the "
        "mean model: records of the data set's test set, or some that no node holds (default 0)"
    )
    every: int | None = option("number of rounds between two points of the curves (default 1)")


class _Options(SharedOptions):
    settings = ("seed", "device", "threads", "data_root", "download", "max_bytes")

    victim: str | None = argument(
        "protocol to run, see 'leakaudit list victims'", nargs="?", names="victims"
    )
    help: Any = option(
        "show this help; 'record pdmm --help' adds the parameters and messages of pdmm",
        "-h",
        action=_Help,
        nargs=0,
    )
    output: str = option(
        "trace file to write, or a folder ('name/') of shards; replaces an existing one; the truth "
        "is written beside it",
        "-o",
        default="trace.pt",
        names="files",
    )
    scenario: Path | None = option(
        "TOML file with values for the options below; options on the command line take precedence",
        metavar="FILE",
    )
    keys: _KeyOptions
    trust_model: bool | str = trusting("scenario")
    engine: str = option(
        "run the nodes one after the other in this process (inline), in one process each (gloo) or "
        "in one thread each (threads)",
        choices=("inline", "gloo", "threads"),
        default="inline",
    )
    procs: int | None = option(
        "number of processes or threads (default: one per node)", metavar="N"
    )
    timeout: float | None = option(
        "time after which a process that does not respond is given up, in seconds (default 120)",
        metavar="S",
    )
    fault: list[str] = option(
        "inject a fault: stop:3@5 (node 3 stops after round 5), late:2@4:0.5 (node 2 is 0.5 s late "
        "in round 4) or drop:0-1@6 (a message is lost); repeatable",
        metavar="WHAT",
    )
    dry_run: bool = option("print the scenario and the size of the recording, without recording")


def pairs(texts: list[str], flag: str = "--set") -> dict[str, Any]:
    """Parse settings of the form NAME=VALUE."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise LeakauditError(f"{flag}: expected NAME=VALUE, got {text!r}")
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


@command(
    "record",
    "run a training protocol and record its messages",
    "Trains a model with a decentralised protocol and records the messages that its nodes "
    "exchange. Writes a trace, and the private data to a separate truth file.",
    "leakaudit record pdmm -o trace.pt --nodes 6 --graph ring --rounds 8",
    "leakaudit record --scenario scenario.toml --seed 1 -o trace.pt",
    add_help=False,
)
def run(args: _Options) -> int:
    """Record, and print a summary to stderr."""
    from leakaudit.judging.auditing.environment import RunEnvironment
    from leakaudit.protocols import premises
    from leakaudit.protocols.recording import record
    from leakaudit.protocols.scenario import Scenario
    from leakaudit.reporting.rendering import console
    from leakaudit.reporting.results.provenance import command
    from leakaudit.traces import gaps, trace_info
    from leakaudit.traces._storage import shards
    from leakaudit.traces.recorder import human

    chosen = settings(args)
    asked = {**vars(args.keys), "victim": args.victim}
    given = {name: value for name, value in asked.items() if value is not None}
    base = Scenario.from_toml(args.scenario) if args.scenario else Scenario()
    if not args.scenario and not args.victim:
        raise LeakauditError("name a victim (see 'leakaudit list victims') or give --scenario FILE")
    given["set"] = {**base.set, **pairs(args.keys.set)}
    if not args.scenario or args.given.seed is not None:
        given["seed"] = chosen.seed
    scenario = replace(base, **given)
    trusted = args.keys.model or args.trust_model  # who names a model on the command line trusts it
    root = Path(chosen.data_root)
    where = RunEnvironment(root, chosen.download, chosen.device, trusted=trusted)
    ready = where.plan(scenario)
    spread = _spread(args, ready)
    if args.dry_run:
        show(
            f"{ready.scenario.to_toml()}\n# {human(ready.size)}, {len(ready.wires)} channels, "
            f"{ready.task.layout.size} parameters\n"
        )
        return 0
    if args.output.endswith(".truth.pt"):
        raise LeakauditError(
            f"{args.output} is the name of a truth, which is written beside the trace; "
            "name the trace with -o"
        )
    path = args.output if args.output.endswith("/") else Path(args.output)
    earlier = Path(args.output).is_file() or shards.place(Path(args.output)).is_file()
    replaced = ", in place of an earlier one" if earlier else ""
    with console.shown(chosen.progress, main="recording"):
        told = {"command": command()}
        if spread is None:
            recorder = record(ready, path, chosen.max_bytes, told)
        else:
            from leakaudit.capture.gloo import engine

            recorder = engine.record(
                ready, path, spread, chosen.max_bytes, told, trusted, args.engine == "threads"
            )
    trace = recorder.trace
    written = human(_bytes(Path(args.output)))
    say(f"{args.output}: {scenario.victim}, {size_of(trace)}, {written}{replaced}", args)
    if trace_info.diverged(trace):
        say(
            "warning: training diverged: its last messages are NaN or infinite, which no attack "
            f"can use; 'leakaudit trace verify {args.output}' names the first one",
            args,
        )
    if ready.calibrated is not None:
        say(f"noise: {ready.calibrated.words}", args)
    for sentence in premises.sentences(recorder.truth_record):
        say(f"warning: {sentence}", args)
    if premises.about_gradients(trace) and scenario.rows == "raw":
        say("with --rows unit, every record has the norm 1, and its gradients are smaller", args)
    for sentence in gaps.sentences(trace):
        say(f"missing: {sentence}", args)
    if spread is None:
        return 0
    happened = trace.provenance.get("faults")
    for fault in spread.faults:
        if not isinstance(happened, list) or str(fault) not in happened:
            say(fault.missed, args)
    return 0


def _spread(args: _Options, plan: Plan) -> ProcessLayout | None:
    """Return how nodes are spread over processes; None if they run in this one."""
    if args.engine == "inline":
        given = [
            f"--{name}"
            for name in ("procs", "timeout", "fault")
            if getattr(args, name) not in (None, [])
        ]
        if given:
            raise LeakauditError(
                f"{', '.join(given)}: only for nodes in several processes or threads; add "
                "--engine gloo or --engine threads"
            )
        return None
    from leakaudit.capture.gloo import engine
    from leakaudit.capture.gloo.faults import Fault
    from leakaudit.capture.gloo.setup import ProcessLayout

    procs = plan.graph.nodes if args.procs is None else args.procs
    timeout = ProcessLayout.timeout if args.timeout is None else args.timeout
    spread = ProcessLayout(procs, timeout, tuple(Fault.parse(text) for text in args.fault))
    engine.check(plan, spread)
    return spread


def _bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(part.stat().st_size for part in path.rglob("*") if part.is_file())
