"""`leakaudit bound`: the exact mu and epsilon of what an adversary sees."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit.cli import settings, shared
from leakaudit.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.declared import Protocol
    from leakaudit.pricing import Price

SHOWN = 3  # leaking combinations in a table
NOTE = (
    "mu: of Gaussian differential privacy, over all rounds, when every gradient of a node moves by the sensitivity at most (Euclidean). "
    "Start values count as public, sampling is not credited."
)


def add(verbs: Any) -> None:
    """Describe the verb."""
    sub = verbs.add_parser("bound", help="exact mu and epsilon of what an adversary sees of each node, from the protocol alone")
    sub.add_argument("source", type=Path, help="a scenario (.toml) or a trace; its messages are not read")
    sub.add_argument("--as", dest="adversary", action="append", metavar="WHO", help="as for 'attack'; repeatable (default eavesdropper)")
    sub.add_argument("--node", type=int, action="append", help="node; repeatable (default all)")
    sub.add_argument("--sensitivity", type=float, default=1.0, help="how far one gradient moves, Euclidean norm (default 1)")
    sub.add_argument("--smoothness", type=float, help="Lipschitz constant of a node's gradients, for records where models are not released")
    sub.add_argument("--delta", type=float, default=1e-5, help="delta of the epsilon (default 1e-5)")
    sub.add_argument("-f", "--format", choices=("text", "json"), default="text", help="default text")
    shared(sub, "threads", "data_root", "download")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a line for each node and adversary."""
    from leakaudit import console
    from leakaudit.adversary import Adversary
    from leakaudit.pricing import price

    chosen = settings(argparse.Namespace(**{**vars(args), "device": None}))
    if args.sensitivity <= 0 or not 0 < args.delta < 1:
        raise LeakauditError(f"expected --sensitivity > 0 and 0 < --delta < 1, got {args.sensitivity} and {args.delta}")
    protocol, last = _protocol(args.source, chosen)
    found: list[Price] = []
    with console.shown(chosen.progress):
        for who in args.adversary or ["eavesdropper"]:
            adversary = Adversary.parse(who)
            nodes = [n for n in range(last) if n not in adversary.corrupt] if args.node is None else args.node
            found += price(protocol, adversary, nodes, args.sensitivity, args.delta, args.smoothness)
    if args.format == "json":
        sys.stdout.write(json.dumps([p.to_json() for p in found], indent=2) + "\n")
    else:
        _table(found)
    return 0


def _protocol(path: Path, chosen: argparse.Namespace) -> tuple[Protocol, int]:
    """Return the protocol, and the number of nodes that hold data."""
    from leakaudit.declared import Protocol, protocol_of

    if path.suffix == ".toml":
        from leakaudit import recording
        from leakaudit.scenario import Scenario

        plan = recording.plan(Scenario.from_toml(path), data_root=chosen.data_root, download=chosen.download)
        public = plan.victim.schedule(plan.graph, plan.scenario.rounds, plan.random["schedule"])
        return Protocol(plan.victim, plan.graph, plan.scenario.rounds, public), plan.scenario.nodes
    from leakaudit import tracefile

    protocol = protocol_of(tracefile.load(path))
    return protocol, protocol.graph.nodes - protocol.victim.centralised


def _table(found: Sequence[Price]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from leakaudit.cli.explain import WIDE

    out = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else WIDE)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("node", "adversary", "mu", f"epsilon({found[0].delta:g})" if found else "epsilon", "what"):
        table.add_column(name, overflow="fold", justify="left" if name in ("adversary", "what") else "right")
    for one in found:
        more = f" and {len(one.leaking) - SHOWN} more" if len(one.leaking) > SHOWN else ""
        leaking = f"without noise: {', '.join(one.leaking[:SHOWN])}{more}" if one.leaking else one.level
        numbers = ["-" if v is None else f"{v:.4g}" for v in (one.mu, one.epsilon)]
        table.add_row(str(one.node), one.adversary, *numbers, f"no bound: {one.refused}" if one.refused else leaking)
    out.print(table)
    out.print(Text(NOTE, style="dim"))
