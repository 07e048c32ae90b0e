"""`leakaudit record`: run a victim and record what travels."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit.cli._options import plugins, say, settings, shared, trust
from leakaudit.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.capture.gloo.setup import Options
    from leakaudit.protocols.recording import Plan

CHOICES = {
    "nodes": (int, "number of nodes that hold data"),
    "graph": (str, "ring, star, complete, rgg, er, grid or file:PATH"),
    "rounds": (int, "rounds of communication"),
    "data": (
        str,
        (
            "faces, faces-detect, photos, fashion, mnist, cifar10, gaussians, npz:FILE, "
            "images:FOLDER or libsvm:FILE"
        ),
    ),
    "samples": (int, "records a node"),
    "split": (str, "iid, classes:C or dirichlet:A"),
    "model": (str, "see 'leakaudit list models'; or package.module:factory"),
    "dtype": (str, "float32 or float64"),
    "wires": (str, "what is recorded: all, none, node:3 or 0-1,1-2"),
    "layers": (str, "columns that are recorded: all, first, or parameter names"),
}


class _Help(argparse.Action):
    """Help that lists the victim's parameters where a victim is named."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: object
    ) -> None:
        sys.stdout.write(parser.format_help())
        if namespace.victim:
            from leakaudit._util import declarations

            try:
                plugins(namespace)
                declared = declarations.of("victims", namespace.victim)
            except LeakauditError as e:
                parser.error(str(e))
            sys.stdout.write(f"\nparameters of {namespace.victim} (--set NAME=VALUE):\n")
            for name, known in declared.parameters.items():
                symbol = f" [{known.symbol}]" if known.symbol else ""
                choices = f" ({', '.join(known.choices)})" if known.choices else ""
                value = f"{name}={known.default}"
                sys.stdout.write(f"  {value:22} {known.help}{choices}{symbol}\n")
        parser.exit()


def add(verbs: Any) -> None:
    """Describe the verb.

    Args:
        verbs: The subparsers of `leakaudit`.
    """
    sub = verbs.add_parser(
        "record", help="run a protocol on data and record its channels", add_help=False
    )
    sub.add_argument("victim", nargs="?", help="protocol, see 'leakaudit list victims'")
    sub.add_argument(
        "-h",
        "--help",
        action=_Help,
        nargs=0,
        help="show this help; 'record pdmm --help' adds the parameters of pdmm",
    )
    sub.add_argument(
        "-o",
        "--output",
        default="trace.pt",
        help=(
            "trace file, or a folder ('name/') for shards (default trace.pt); the truth goes "
            "beside it"
        ),
    )
    sub.add_argument(
        "--scenario", type=Path, help="TOML file with the options below; flags go before it"
    )
    for name, (kind, text) in CHOICES.items():
        sub.add_argument(f"--{name}", type=kind, default=None, help=text)
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a constant of the protocol or an argument of the model; repeatable",
    )
    sub.add_argument(
        "--states",
        action="store_const",
        const=True,
        default=None,
        help="keep the nodes' private vectors in the truth file",
    )
    sub.add_argument(
        "--curves",
        action="store_const",
        const=True,
        default=None,
        help="keep loss, accuracy, consensus and norms, round by round",
    )
    sub.add_argument(
        "--trust-model",
        action="store_true",
        help="let a model package.module:factory of --scenario run its code",
    )
    engines = (
        "all nodes in this process (inline, default), in real processes (gloo), or in threads; see "
        "docs/engines.md"
    )
    sub.add_argument(
        "--engine", choices=("inline", "gloo", "threads"), default="inline", help=engines
    )
    sub.add_argument(
        "--procs",
        type=int,
        metavar="N",
        help="processes or threads of the engine (default: one a node)",
    )
    sub.add_argument(
        "--timeout",
        type=float,
        metavar="S",
        help="seconds after which a process that hangs is given up (default 120)",
    )
    sub.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="WHAT",
        help=(
            "stop:3@5 (node 3 ends after round 5), late:2@4:0.5 (half a second late) or drop:0-1@6 "
            "(a lost message); repeatable"
        ),
    )
    sub.add_argument(
        "--dry-run", action="store_true", help="print the scenario and its size, record nothing"
    )
    shared(sub, "seed", "device", "threads", "data_root", "download", "max_bytes")
    sub.set_defaults(run=run)


def pairs(texts: list[str]) -> dict[str, Any]:
    """Read settings given as NAME=VALUE.

    Args:
        texts: One for each time that the option is given.

    Returns:
        Values by name; numbers and true or false are read as such.

    Raises:
        LeakauditError: One of them has no "=".
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise LeakauditError(f"--set: expected NAME=VALUE, got {text!r}")
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


def run(args: argparse.Namespace) -> int:
    """Record, and say where.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    from leakaudit.protocols.recording import plan, record
    from leakaudit.protocols.scenario import Scenario
    from leakaudit.rendering import console
    from leakaudit.results.provenance import command
    from leakaudit.traces import gaps
    from leakaudit.traces.recorder import human

    chosen = settings(args)
    given = {
        n: getattr(args, n)
        for n in (*CHOICES, "victim", "states", "curves")
        if getattr(args, n) is not None
    }
    base = Scenario.from_toml(args.scenario) if args.scenario else Scenario()
    if not args.scenario and not args.victim:
        raise LeakauditError("name a victim (see 'leakaudit list victims') or give --scenario FILE")
    seed = base.seed if args.scenario and args.seed is None else chosen.seed
    scenario = replace(base, **given, set={**base.set, **pairs(args.set)}, seed=seed)
    trusted = trust(args.trust_model or args.model is not None)
    ready = plan(
        scenario,
        data_root=Path(chosen.data_root),
        download=chosen.download,
        device=chosen.device,
        trusted=trusted,
    )
    spread = _spread(args, ready)
    if args.dry_run:
        sys.stdout.write(
            f"{scenario.to_toml()}\n# {human(ready.size())}, {len(ready.wires)} wires, "
            f"{ready.task.layout.size} parameters\n"
        )
        return 0
    path = args.output if args.output.endswith("/") else Path(args.output)
    with console.shown(chosen.progress):
        told = {"command": command()}
        if spread is None:
            trace = record(ready, path, chosen.max_bytes, told).trace
        else:
            from leakaudit.capture.gloo import engine

            trace = engine.record(
                ready, path, spread, chosen.max_bytes, told, trusted, args.engine == "threads"
            ).trace
    size = (
        f"{trace.graph.nodes} nodes, {len(trace.graph.edges)} edges, {trace.rounds} rounds, "
        f"{len(trace)} messages"
    )
    say(f"{args.output}: {scenario.victim}, {size}", args)
    for sentence in gaps.sentences(trace):
        say(f"missing: {sentence}", args)
    for fault in spread.faults if spread else ():
        if str(fault) not in trace.provenance["faults"]:
            say(fault.missed, args)
    return 0


def _spread(args: argparse.Namespace, plan: Plan) -> Options | None:
    """Return how the run is spread over processes, None where it is not."""
    if args.engine == "inline":
        given = [
            f"--{name}"
            for name in ("procs", "timeout", "fault")
            if getattr(args, name) not in (None, [])
        ]
        if given:
            raise LeakauditError(
                f"{', '.join(given)}: for nodes in several processes; add --engine gloo, or "
                "--engine threads"
            )
        return None
    from leakaudit.capture.gloo import engine
    from leakaudit.capture.gloo.faults import Fault
    from leakaudit.capture.gloo.setup import Options

    procs = plan.graph.nodes if args.procs is None else args.procs
    timeout = Options.timeout if args.timeout is None else args.timeout
    spread = Options(procs, timeout, tuple(Fault.parse(text) for text in args.fault))
    engine.check(plan, spread)
    return spread
