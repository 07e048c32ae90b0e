"""`leakaudit bound`: the epsilon of every adversary's view, exact or at most, beside the claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leakaudit.cli._commands import SharedOptions, argument, command, option
from leakaudit.cli._options import (
    ComputeOptions,
    PageOptions,
    concluded,
    say,
    settings,
    show_table,
)
from leakaudit.core.errors import LeakauditError
from leakaudit.core.verdict import Holds, Verdict

if TYPE_CHECKING:
    from leakaudit.protocols.declared import Protocol
    from leakaudit.reporting.results.model import TraceSummary
    from leakaudit.runs.workers.executor import Executor
    from leakaudit.views.accounting.adversaries import Threat
    from leakaudit.views.accounting.compare import Comparison

SHOWN = 3  # leaking combinations in a table
LARGE = 5000  # number of relations above which views that lack messages take minutes
MANY = 1000  # number of views that are bounded one by one, above which a line says so
NODES_SHOWN = 100  # nodes in a table; of more, only the worst views of all nodes are shown
NOTE = (
    "mu is the parameter of Gaussian differential privacy for one record, which changes a gradient "
    "by at most the sensitivity (Euclidean norm, same model). Initial values and the order of "
    "mini-batches count as public; secret sampling is not credited. required noise: the noise that "
    "the claimed epsilon (or --epsilon) requires if all noise of the run is scaled by the same "
    "factor; where mu is an upper bound, less may suffice. NOT REFUTED is not a proof of privacy."
)


class _Options(SharedOptions):
    settings = ("threads", "data_root", "download")

    source: Path = argument("scenario (.toml) or trace")
    adversary: list[str] | None = option(
        "adversary, as in 'leakaudit attack'; repeatable (default: an eavesdropper on all "
        "channels, one on each channel of a node, each neighbour, and coalitions)",
        "--as",
        metavar="WHO",
        names="adversaries",
    )
    coalitions: int | None = option(
        "maximum number of curious nodes that cooperate (default 1)", metavar="K"
    )
    node: list[int] | None = option("node to analyse; repeatable (default: all nodes)")
    all: bool = option(
        "show every view, not only the worst of each kind; json always contains all views"
    )
    sensitivity: float | None = option(
        "largest change of a gradient that one record can cause, in Euclidean norm (default: "
        "the value that the claim assumes, else that of the declared clip; without either, "
        "mu is a multiple of it, and there is no epsilon)",
        metavar="S",
    )
    smoothness: float | None = option(
        "Lipschitz constant of a node's gradients; without it, protocols that do not send "
        "their models have no epsilon per record",
        metavar="L",
    )
    delta: float | None = option(
        "delta at which epsilon is stated (default: the delta of the claim, else 1e-5)"
    )
    epsilon: float | None = option(
        "epsilon for which noise is recommended (default: the epsilon of the claim)"
    )
    page: PageOptions
    computing: ComputeOptions


@command(
    "bound",
    "bound the epsilon of each adversary's view, and compare it with the claim",
    "Computes the differential privacy (mu and epsilon) of one record in the view of each "
    "adversary, exactly or as an upper bound (the outcome says which), and compares it "
    "with the claim. The messages of a trace are only "
    "compared with the declared protocol, and no attack is run.",
    "leakaudit bound trace.pt",
    "leakaudit bound trace.pt --as node:1 --node 2 --delta 1e-6",
)
def run(args: _Options) -> int:
    """Print one row for each node and adversary."""
    from rich.text import Text

    from leakaudit.judging.auditing.environment import RunEnvironment
    from leakaudit.judging.lint import assumptions
    from leakaudit.reporting.rendering import console
    from leakaudit.traces import framework_epsilon
    from leakaudit.views.accounting import bounding
    from leakaudit.views.accounting.compare import alike, compare, resting, worst
    from leakaudit.views.accounting.footnotes import footnotes

    chosen = settings(args)
    form = args.page.form()
    executor = args.computing.executor()
    asked = bounding.checked(args.sensitivity, args.smoothness, args.delta, args.epsilon)
    if args.adversary and args.coalitions is not None:
        raise LeakauditError("expected --coalitions or --as, got both; remove one of them")
    where = RunEnvironment(Path(chosen.data_root), chosen.download)
    protocol, last = bounding.protocol_of(args.source, where.plan)
    case = assumptions.case_of(args.source)
    with console.shown(chosen.progress):
        threats = _threats(args, protocol, last, executor)
        compared = list(compare(protocol, threats, executor=executor, **asked))
        doubts = assumptions.doubts(case)
    found: list[Comparison] = resting(compared, doubts)
    unclear = [one.detail for one in doubts]
    stated = [] if case is None else [one.sentence for one in framework_epsilon.of(case.trace)]
    if form == "json":
        beside = {"unclear": unclear} | ({"stated": stated} if stated else {})
        args.page.write_json([{**one.to_json(), **beside} for one in found], args)
        return concluded(unclear, form)
    if form == "html":
        from leakaudit.reporting.rendering.html import bounded

        notes, marks = footnotes(found, protocol.begun)
        remarks = [*stated, *notes, NOTE]
        args.page.write(bounded.page(found, _network(protocol), marks, remarks, unclear), args)
        return concluded(unclear, form)
    same = alike(found)
    shown = found
    if not (args.all or args.adversary):
        shown = [one for one in worst(found) if one.bound.node not in same]
        if len({one.bound.node for one in shown}) > NODES_SHOWN:
            shown = worst(found, by_node=False)
            same = {}
    if len(shown) == len(found):
        same = {}
    _table(shown, same, len(found), protocol.begun)
    for line in (*stated, NOTE):
        console.stdout().print(Text(line, style="dim"))
    return concluded(unclear, form)


def _threats(args: _Options, protocol: Protocol, last: int, executor: Executor) -> list[Threat]:
    """Return the threats to evaluate; the first `last` nodes hold data."""
    from leakaudit.core.adversary import Adversary
    from leakaudit.views.accounting import survey
    from leakaudit.views.accounting.adversaries import named

    if args.adversary:
        adversaries = [Adversary.parse(who) for who in args.adversary]
        return named(adversaries, args.node, last)
    nodes = list(range(last)) if args.node is None else args.node
    size = 1 if args.coalitions is None else args.coalitions
    threats = survey.adversaries(protocol, nodes, size, executor)
    if survey.lists_worst(protocol, nodes, size):
        say(
            "of the curious nodes that are not neighbours, all are evaluated, and the one that "
            "learns most about each node is listed",
            args,
        )
    count = protocol.relations_count
    together = protocol.forward is not None or protocol.network is not None
    if together or args.coalitions is not None:
        return threats
    if count <= LARGE:
        if len(threats) > MANY:
            say(
                f"{len(threats)} views are bounded one by one, which takes minutes; "
                "select fewer with --node or --as",
                args,
            )
        return threats
    say(
        f"{count} relations: only the outsider is evaluated; "
        "request the others with --coalitions or --as, or record fewer rounds",
        args,
    )
    return [one for one in threats if one.kind == "outsider"]


def _table(found: Sequence[Comparison], same: Mapping[int, int], views: int, begun: bool) -> None:
    from rich.text import Text

    from leakaudit.reporting.rendering import console
    from leakaudit.reporting.rendering.tables import Column
    from leakaudit.views.accounting.footnotes import footnotes

    out = console.stdout()
    columns = (
        Column("node", right=True),
        Column("adversary"),
        Column("mu", right=True),
        Column("epsilon", right=True),
        Column("delta", right=True),
        Column("claim", right=True),
        Column("ratio", right=True, spare=True),
        Column("required noise", text=True),
        Column("outcome", text=True),
    )
    notes, marks = footnotes(found, begun)
    rows = [_row(one, mark) for one, mark in zip(found, marks, strict=True)]
    show_table(columns, rows)
    if len(found) < views:
        which = "only the worst view of each kind of adversary is shown"
        out.print(Text(f"{which}; {views} views were computed (--all or -f json shows them)"))
    for node in dict.fromkeys(same.values()):
        others = ", ".join(str(other) for other, of in same.items() if of == node)
        how = "because renaming the nodes leaves the relations unchanged"
        out.print(Text(f"nodes {others}: the same as node {node}, {how}"))
    for line in notes:
        out.print(Text(line, style="dim"))


def _network(protocol: Protocol) -> TraceSummary:
    from leakaudit.reporting.results.model import TraceSummary

    graph = protocol.graph
    return TraceSummary(
        protocol=type(protocol.victim).__name__,
        nodes=graph.nodes,
        edges=len(graph.edges),
        links=tuple(graph.edges),
        rounds=protocol.rounds,
        data="",
        model="",
        shape=(),
        classes=0,
    )


def _row(one: Comparison, mark: str) -> list[str]:
    bound = one.bound
    delta = claim = noise = "-"
    if bound.epsilon is not None:
        delta = f"{bound.delta:g}"
    if one.claim:
        claim = _number(one.claim.epsilon)
    if one.calibration:
        noise = one.calibration.words
    return [
        str(bound.node),
        _who(one),
        one.mu_in_words,
        one.epsilon_in_words,
        delta,
        claim,
        _number(one.ratio),
        noise,
        f"{_what(one)} {mark}".strip(),
    ]


def _who(one: Comparison) -> str:
    who = str(one.bound.adversary)
    if one.threat.kind == "wire":
        return f"one channel ({who})"
    if one.threat.kind == "outsider":
        return "outsider, all channels"
    if one.threat.kind == "named":
        return who
    if one.threat.kind == "node":
        return f"other node {who}"
    return f"{one.threat.kind} {who}"


def _what(one: Comparison) -> str:
    """Return the verdict, and the unit of the bound or what leaks without noise."""
    bound = one.bound
    if bound.refused:
        return f"no bound: {bound.refused}"
    parts = []
    if one.claim:
        parts.append(one.verdict.words)
    if one.verdict in (Verdict.INCONCLUSIVE, Verdict.UNSUPPORTED):
        parts.append(f"({one.why})")
    verdict = " ".join(parts)
    what = _unit(one)
    if bound.leaking:
        what = f"without noise: {', '.join(bound.leaking[:SHOWN])}"
    if len(bound.leaking) > SHOWN:
        what += f" and {len(bound.leaking) - SHOWN} more"
    return "; ".join(part for part in (verdict, what) if part)


def _unit(one: Comparison) -> str:
    """Return the unit of the bound, whether it is exact, and what is attained."""
    bound = one.bound
    unit = bound.unit
    if bound.guarantee is not None:
        said = f"{unit}, {one.holds}"
        if bound.holds is Holds.AT_MOST and bound.linear is not None:
            said += f"; constant gradients attain mu {bound.multiple(bound.linear)}"
        return said
    node = ""
    if bound.node_epsilon is not None:
        node = f", of the whole node {one.node_holds.says(f'{bound.node_epsilon:.4g}')}"
    elif bound.node_mu is not None:
        node = f", of the whole node mu {one.node_holds.says(bound.multiple(bound.node_mu))}"
    return f"{unit}: no epsilon for records{node}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}"
