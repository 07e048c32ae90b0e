"""`leakaudit bound`: the mu and epsilon of one record in what every adversary sees, beside the paper's claim."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit.cli._options import say, settings, shared
from leakaudit.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.accounting.ledger import Entry
    from leakaudit.accounting.pricing import Price
    from leakaudit.protocols.declared import Protocol

SHOWN = 3  # leaking combinations in a table
LARGE = 5000  # relations of a run from which views that miss messages take minutes
NOTE = (
    "mu: of Gaussian differential privacy, when one record changes that moves a gradient by the sensitivity at most (Euclidean), at the "
    "same model. Start values count as public, and so does the order of mini-batches: secret sampling is not credited. Noise: what the "
    "claimed epsilon (or --epsilon) needs, all noise of the run scaled alike, and the mu computed anew at it. NOT REFUTED is no proof "
    "of privacy."
)


def add(verbs: Any) -> None:
    """Describe the verb."""
    sub = verbs.add_parser(
        "bound",
        help="mu and epsilon of one record in what each adversary sees of each node, beside the claim",
    )
    sub.add_argument(
        "source", type=Path, help="a scenario (.toml) or a trace; its messages are not read"
    )
    sub.add_argument(
        "--as",
        dest="adversary",
        action="append",
        metavar="WHO",
        help="as for 'attack'; repeatable (default: outsider, each wire and neighbour of a node, and coalitions)",
    )
    sub.add_argument(
        "--coalitions",
        type=int,
        metavar="K",
        help="most other nodes that listen together (default 1)",
    )
    sub.add_argument("--node", type=int, action="append", help="node; repeatable (default all)")
    sub.add_argument(
        "--all",
        action="store_true",
        help="every view in the table, not only the worst of each kind (json has all)",
    )
    sub.add_argument(
        "--sensitivity",
        type=float,
        help="how far a record moves one gradient, Euclidean norm (default: as the claim assumes, else by the declared clip, else 1)",
    )
    sub.add_argument(
        "--smoothness",
        type=float,
        metavar="L",
        help="Lipschitz constant of a node's gradients; without it, protocols that do not release their models have no epsilon for records",
    )
    sub.add_argument(
        "--delta", type=float, help="delta of the epsilon (default: the claim's, else 1e-5)"
    )
    sub.add_argument(
        "--epsilon", type=float, help="recommend noise for this epsilon (default: the claimed one)"
    )
    sub.add_argument(
        "-f", "--format", choices=("text", "json"), default="text", help="default text"
    )
    shared(sub, "threads", "data_root", "download")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a line for each node and adversary."""
    from leakaudit.accounting import bounding
    from leakaudit.accounting.ledger import alike, entries, worst
    from leakaudit.accounting.listeners import around, named
    from leakaudit.adversary import Adversary
    from leakaudit.rendering import console

    chosen = settings(args)
    asked = {
        name: getattr(args, name) for name in ("sensitivity", "delta", "epsilon", "smoothness")
    }
    bounding.check(**asked)
    if args.adversary and args.coalitions is not None:
        raise LeakauditError("--coalitions lists adversaries and --as names them; give one of both")
    protocol, last = bounding.protocol_of(args.source, chosen.data_root, chosen.download)
    if args.adversary:
        listeners = named([Adversary.parse(who) for who in args.adversary], args.node, last)
    else:
        size = 1 if args.coalitions is None else args.coalitions
        listeners = around(
            protocol.graph, list(range(last)) if args.node is None else args.node, size
        )
        if args.coalitions is None and (count := _relations(protocol)) > LARGE:
            listeners = [one for one in listeners if one.kind == "outsider"]
            say(
                f"{count} relations: only the outsider is priced; ask for the others with --coalitions or --as, or for fewer rounds",
                args,
            )
    with console.shown(chosen.progress):
        found = list(entries(protocol, listeners, **asked))
    if args.format == "json":
        sys.stdout.write(json.dumps([one.to_json() for one in found], indent=2) + "\n")
    else:
        same = alike(found)
        shown = (
            found
            if args.all or args.adversary
            else [one for one in worst(found) if one.price.node not in same]
        )
        _table(shown, same if len(shown) < len(found) else {}, len(found), protocol.begun)
    return 0


def _relations(protocol: Protocol) -> int:
    """Return about how many relations all rounds have; views that miss messages need them all at once."""
    return len(protocol.start.relations) * protocol.rounds // max(1, protocol.start.round)


def _table(found: Sequence[Entry], same: Mapping[int, int], views: int, begun: bool) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from leakaudit.rendering import console

    out = console.stdout()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    words = ("adversary", "noise for it", "what")
    for name in (
        "node",
        "adversary",
        "mu",
        "epsilon (delta)",
        "claim",
        "ratio",
        "noise for it",
        "what",
    ):
        table.add_column(name, overflow="fold", justify="left" if name in words else "right")
    for one in found:
        table.add_row(*_row(one))
    out.print(table)
    if len(found) < views:
        out.print(
            Text(
                f"the worst of each kind of adversary; {views} views were computed (--all, or -f json)"
            )
        )
    for node in dict.fromkeys(same.values()):
        others = ", ".join(str(n) for n, of in same.items() if of == node)
        out.print(
            Text(
                f"nodes {others}: the same as node {node}, proved by renaming nodes in the relations"
            )
        )
    levels = dict.fromkeys(one.price.level for one in found if one.price.level)
    claims = dict.fromkeys(f"claim: {one.claim.source}" for one in found if one.claim)
    for line in (*_rounds(found, begun), *_sensitivities(found), *levels, *claims, NOTE):
        out.print(Text(line, style="dim"))


def _rounds(found: Sequence[Entry], begun: bool) -> list[str]:
    """Say over how many rounds the figures are, and how many gradients a record enters."""
    more = (
        ", the last of which was begun and not ended: any of its messages may have been sent"
        if begun
        else ""
    )
    lines = [
        f"rounds priced: {n}{more}" for n in dict.fromkeys(one.price.rounds_priced for one in found)
    ]
    shares = dict.fromkeys(
        (p.enters, p.gradients) for p in (one.price for one in found) if p.enters != p.gradients
    )
    return lines + [
        f"mini-batches: a record enters at most {some} of the {all} gradients of its node"
        for some, all in shares
    ]


def _sensitivities(found: Sequence[Entry]) -> list[str]:
    """Say which sensitivities the figures rest on, and where each comes from."""
    return list(
        dict.fromkeys(f"sensitivity {one.price.sensitivity:.6g}: {one.moved}" for one in found)
    )


def _row(one: Entry) -> list[str]:
    price = one.price
    who = {
        "wire": f"one wire ({price.adversary})",
        "outsider": "outsider, all wires",
        "named": price.adversary,
    }
    more = f" and {len(price.leaking) - SHOWN} more" if len(price.leaking) > SHOWN else ""
    what = (
        f"without noise: {', '.join(price.leaking[:SHOWN])}{more}"
        if price.leaking
        else _level(price)
    )
    says = one.verdict.words if one.claim else ""
    reason = f" ({one.why})" if one.verdict.name in ("INCONCLUSIVE", "UNSUPPORTED") else ""
    return [
        str(price.node),
        who.get(one.listener.kind, f"{one.listener.kind} {price.adversary}"),
        _number(price.mu),
        "-" if price.epsilon is None else f"{price.epsilon:.4g} ({price.delta:g})",
        _number(one.claim.epsilon if one.claim else None),
        _number(one.ratio),
        one.advice.words if one.advice else "-",
        f"no bound: {price.refused}"
        if price.refused
        else "; ".join(filter(None, (says + reason, what))),
    ]


def _level(price: Price) -> str:
    """Say in a few words whose change is bounded, and what there is if that is not one record's."""
    level = price.level.partition(":")[0]
    if price.mu is not None:
        return level
    node = "" if price.node_epsilon is None else f", of the whole node {price.node_epsilon:.4g}"
    return f"{level}: no epsilon for records{node}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
