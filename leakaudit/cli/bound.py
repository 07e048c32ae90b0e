"""`leakaudit bound`: mu and epsilon of one record in every adversary's view, beside the claim."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from leakaudit.cli._options import say, settings, shared
from leakaudit.errors import LeakauditError
from leakaudit.verdict import Verdict

if TYPE_CHECKING:
    from leakaudit.accounting.adversaries import Threat
    from leakaudit.accounting.compare import Comparison
    from leakaudit.accounting.view_bound import ViewBound
    from leakaudit.protocols.declared import Protocol

COLUMNS: dict[str, Literal["left", "right"]] = {
    "node": "right",
    "adversary": "left",
    "mu": "right",
    "epsilon (delta)": "right",
    "claim": "right",
    "ratio": "right",
    "noise for it": "left",
    "what": "left",
}
SHOWN = 3  # leaking combinations in a table
LARGE = 5000  # relations of a run from which views that miss messages take minutes
NOTE = (
    "mu: of Gaussian differential privacy, when one record changes that moves a gradient by the "
    "sensitivity at most (Euclidean), at the "
    "same model. Start values count as public, and so does the order of mini-batches: secret "
    "sampling is not credited. Noise: what the "
    "claimed epsilon (or --epsilon) needs, all noise of the run scaled alike, and the mu computed "
    "anew at it. NOT REFUTED is no proof "
    "of privacy."
)


def add(verbs: Any) -> None:
    """Describe the verb.

    Args:
        verbs: The subparsers of `leakaudit`.
    """
    sub = verbs.add_parser(
        "bound",
        help=(
            "mu and epsilon of one record in what each adversary sees of each node, beside the "
            "claim"
        ),
    )
    sub.add_argument(
        "source", type=Path, help="a scenario (.toml) or a trace; its messages are not read"
    )
    sub.add_argument(
        "--as",
        dest="adversary",
        action="append",
        metavar="WHO",
        help=(
            "as for 'attack'; repeatable (default: outsider, each wire and neighbour of a node, "
            "and coalitions)"
        ),
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
        help=(
            "how far a record moves one gradient, Euclidean norm (default: as the claim assumes, "
            "else by the declared clip, else 1)"
        ),
    )
    sub.add_argument(
        "--smoothness",
        type=float,
        metavar="L",
        help=(
            "Lipschitz constant of a node's gradients; without it, protocols that do not release "
            "their models have no epsilon for records"
        ),
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
    """Print a line for each node and adversary.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    from leakaudit.accounting import bounding
    from leakaudit.accounting.compare import alike, compare, worst
    from leakaudit.rendering import console

    chosen = settings(args)
    asked = {
        name: getattr(args, name) for name in ("sensitivity", "delta", "epsilon", "smoothness")
    }
    bounding.check(**asked)
    if args.adversary and args.coalitions is not None:
        raise LeakauditError("--coalitions lists adversaries and --as names them; give one of both")
    protocol, last = bounding.protocol_of(args.source, chosen.data_root, chosen.download)
    threats = _threats(args, protocol, last)
    with console.shown(chosen.progress):
        found = list(compare(protocol, threats, **asked))
    if args.format == "json":
        sys.stdout.write(json.dumps([one.to_json() for one in found], indent=2) + "\n")
        return 0
    same = alike(found)
    shown = found
    if not (args.all or args.adversary):
        shown = [one for one in worst(found) if one.bound.node not in same]
    if len(shown) == len(found):
        same = {}
    _table(shown, same, len(found), protocol.begun)
    return 0


def _threats(args: argparse.Namespace, protocol: Protocol, last: int) -> list[Threat]:
    """Return whose views are bounded, of the first `last` nodes, which hold data."""
    from leakaudit.accounting.adversaries import around, named
    from leakaudit.adversary import Adversary

    if args.adversary:
        adversaries = [Adversary.parse(who) for who in args.adversary]
        return named(adversaries, args.node, last)
    nodes = list(range(last)) if args.node is None else args.node
    if args.coalitions is not None:
        return around(protocol.graph, nodes, args.coalitions)
    threats = around(protocol.graph, nodes, 1)
    count = _relations(protocol)
    if count <= LARGE:
        return threats
    say(
        f"{count} relations: only the outsider is priced; "
        "ask for the others with --coalitions or --as, or for fewer rounds",
        args,
    )
    return [one for one in threats if one.kind == "outsider"]


def _relations(protocol: Protocol) -> int:
    """Return about how many relations all rounds have.

    Views that miss messages need them all at once.
    """
    return len(protocol.start.relations) * protocol.rounds // max(1, protocol.start.round)


def _table(found: Sequence[Comparison], same: Mapping[int, int], views: int, begun: bool) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from leakaudit.rendering import console

    out = console.stdout()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, side in COLUMNS.items():
        table.add_column(name, overflow="fold", justify=side)
    for one in found:
        table.add_row(*_row(one))
    out.print(table)
    if len(found) < views:
        which = "the worst of each kind of adversary"
        out.print(Text(f"{which}; {views} views were computed (--all, or -f json)"))
    for node in dict.fromkeys(same.values()):
        others = ", ".join(str(other) for other, of in same.items() if of == node)
        how = "proved by renaming nodes in the relations"
        out.print(Text(f"nodes {others}: the same as node {node}, {how}"))
    bases = dict.fromkeys(str(one.bound.basis) for one in found if one.bound.basis)
    claims = dict.fromkeys(f"claim: {one.claim.source}" for one in found if one.claim)
    for line in (*_rounds(found, begun), *_sensitivities(found), *bases, *claims, NOTE):
        out.print(Text(line, style="dim"))


def _rounds(found: Sequence[Comparison], begun: bool) -> list[str]:
    """Say over how many rounds the figures are, and how many gradients a record enters."""
    more = ""
    if begun:
        more = ", the last of which was begun and not ended: any of its messages may have been sent"
    lines = []
    for rounds in dict.fromkeys(one.bound.rounds for one in found):
        lines.append(f"rounds priced: {rounds}{more}")
    for some, every in dict.fromkeys((one.bound.enters, one.bound.gradients) for one in found):
        if some != every:
            most = f"a record enters at most {some} of the {every} gradients of its node"
            lines.append(f"mini-batches: {most}")
    return lines


def _sensitivities(found: Sequence[Comparison]) -> list[str]:
    """Say which sensitivities the figures rest on, and where each comes from."""
    return list(
        dict.fromkeys(
            f"sensitivity {one.bound.sensitivity:.6g}: {one.sensitivity_from}" for one in found
        )
    )


def _row(one: Comparison) -> list[str]:
    bound = one.bound
    epsilon = claim = noise = "-"
    if bound.epsilon is not None:
        epsilon = f"{bound.epsilon:.4g} ({bound.delta:g})"
    if one.claim:
        claim = _number(one.claim.epsilon)
    if one.calibration:
        noise = one.calibration.words
    return [
        str(bound.node),
        _who(one),
        _number(bound.mu),
        epsilon,
        claim,
        _number(one.ratio),
        noise,
        _what(one),
    ]


def _who(one: Comparison) -> str:
    """Say who listens."""
    who = str(one.bound.adversary)
    if one.threat.kind == "wire":
        return f"one wire ({who})"
    if one.threat.kind == "outsider":
        return "outsider, all wires"
    if one.threat.kind == "named":
        return who
    return f"{one.threat.kind} {who}"


def _what(one: Comparison) -> str:
    """Say what the claim is worth, and what leaks without noise or whose change is bounded."""
    bound = one.bound
    if bound.refused:
        return f"no bound: {bound.refused}"
    parts = []
    if one.claim:
        parts.append(one.verdict.words)
    if one.verdict in (Verdict.INCONCLUSIVE, Verdict.UNSUPPORTED):
        parts.append(f"({one.why})")
    verdict = " ".join(parts)
    what = _unit(bound)
    if bound.leaking:
        what = f"without noise: {', '.join(bound.leaking[:SHOWN])}"
    if len(bound.leaking) > SHOWN:
        what += f" and {len(bound.leaking) - SHOWN} more"
    return "; ".join(part for part in (verdict, what) if part)


def _unit(bound: ViewBound) -> str:
    """Say in a few words whose change is bounded, and what there is if that is not one record's."""
    unit = bound.unit or ""
    if bound.mu is not None:
        return unit
    node = ""
    if bound.node_epsilon is not None:
        node = f", of the whole node {bound.node_epsilon:.4g}"
    return f"{unit}: no epsilon for records{node}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}"
