"""SecureD-FL: how many iterations of its averaging reveal a model."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from leakaudit.core.adversary import Adversary
from leakaudit.core.verdict import Verdict, against
from leakaudit.judging.papers.row import Judgement, judges
from leakaudit.judging.papers.runs import protocol, run
from leakaudit.protocols.declared import Protocol
from leakaudit.theory.relations import Knowledge, determined_each, know
from leakaudit.views.extraction import hearing

EXACT = 1e-6  # largest relative error of a vector that counts as recovered
CASES = ((9, 4), (15, 7), (15, 5))  # peers and partitions


def _own_alone(view: Knowledge) -> Knowledge:
    """Remove the sums of groups from a view, but not z, as in the paper's proof."""
    p = view.declared
    told = {m.vector for m in p.select("message", name="sum")}
    rows = tuple(r for r in view.rows if told.isdisjoint(p.relations[r].terms))
    return Knowledge(p, (view.known - told) | {z.vector for z in p.select("state", name="z")}, rows)


def _first(
    made: Protocol, corrupt: Collection[int], last: int, *, sums: bool = True
) -> dict[int, int]:
    """Return, by peer k, the first iteration at which a coalition knows w_k, if any."""
    p = made.whole
    others = [k for k in range(made.graph.nodes) if k not in corrupt]
    first: dict[int, int] = {}
    for i in range(1, last + 1):
        view = know(p, Adversary(hears="none", corrupt=frozenset(corrupt), window=range(i + 1)))
        view = view if sums else _own_alone(view)
        left = [k for k in others if k not in first]
        first |= {
            k: i
            for k, rows in determined_each(view, {k: [p.find("w", k, 1)] for k in left}).items()
            if rows
        }
        if len(first) == len(others):
            break
    return first


def _coalitions(peers: int, size: int, every: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(peers), size))[::every]


def _case(peers: int, partitions: int) -> dict[str, int]:
    """Return the first and the last breach for one and two curious peers, sampled."""
    last = 2 * partitions - 1
    network = {"nodes": peers, "graph": "complete"}
    made = protocol(
        victim="secured",
        rounds=last,
        seed=1,
        set={"rho": 0.8, "iterations": last, "partitions": partitions, "local_steps": 1},
        **network,
    )  # seed 1 finds seven partitions of fifteen peers
    found = {"peers": peers, "partitions": partitions, "claimed_safe": last}
    for size, word in ((1, "one"), (2, "two")):
        seen = [
            _first(made, c, min(last, partitions + 2))
            for c in _coalitions(peers, size, 4 if size == 1 else 12)
        ]
        found[f"{word}_first"] = min(min(s.values()) for s in seen)
        found[f"{word}_all"] = max(max(s.values()) for s in seen if len(s) == peers - size)
    found["alone_first"] = min(_first(made, (0,), last, sums=False).values())
    return found


def _recovered(iterations: int) -> tuple[float, int]:
    """Return the largest relative error of the w_k that one of nine computes, and how many."""
    done = run(
        victim="secured",
        nodes=9,
        graph="complete",
        rounds=iterations,
        samples=3,
        set={"rho": 0.8, "iterations": iterations, "partitions": 4, "local_steps": 3},
    )
    start = done.trace.public["w0"].double()
    lr = 0.1
    errors = []
    for leak in hearing.leaks(done.trace, Adversary(hears="none", corrupt=frozenset({0}))):
        true = done.truth.states["w"][1, leak.node].double()
        if float(leak.std.max()) < EXACT:
            errors.append(float((start - lr * leak.value[0] - true).norm() / true.norm()))
    return max(errors, default=1.0), len(errors)


@judges(1)
def _theorem_3_2() -> Iterator[Judgement]:
    cases = [_case(*case) for case in CASES]
    error, count = _recovered(6)
    nine = cases[0]
    broken = error < EXACT and all(c["alone_first"] <= c["claimed_safe"] for c in cases)
    two = f"they know a first model at iteration {nine['two_first']} and all at {nine['two_all']}"
    yield Judgement(
        "one curious peer",
        against(broken),
        f"nine peers, four partitions: {nine['claimed_safe']} iterations are claimed to be safe; "
        "one curious peer that also uses the group sums knows a first model at iteration "
        f"{nine['one_first']} and all at {nine['one_all']}, and without the sums a first one at "
        f"{nine['alone_first']}; from a run, it computes {count} of 8 models with a relative error "
        f"of at most {error:.1e}",
        {"cases": cases, "iteration": nine["one_first"], "relative_error": error},
    )
    yield Judgement(
        "two curious peers",
        Verdict.UNCLAIMED,
        f"{two}; the theorem concerns only one",
        {"iteration": nine["two_first"]},
    )


@judges(34)
def _lemma_3_1() -> Iterator[Judgement]:
    made = protocol(
        victim="secured",
        nodes=9,
        graph="complete",
        rounds=3,
        set={"rho": 0.8, "iterations": 3, "partitions": 1, "group_size": 9, "local_steps": 1},
    )
    first = _first(made, (0,), 3)
    told = set(first.values()) == {2} and len(first) == 8
    yield Judgement(
        "two consecutive iterations",
        against(not told),
        f"nine peers in one group: one curious peer determines {len(first)} of 8 models, the "
        f"first at iteration {min(first.values())}",
        {"peers": 9, "iteration": first.get(1)},
    )
