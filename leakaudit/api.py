"""The functions that notebooks, other programs and the command line share: leaks, attack."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Generator

from leakaudit import registry, values
from leakaudit.adversary import Adversary
from leakaudit.deduction import Deduction
from leakaudit.errors import AttackError, LeakauditError, NotDetermined
from leakaudit.leak import GradientLeak, Leaks
from leakaudit.progress import expired
from leakaudit.reconstruction import Attack, Certificate, Reconstruction
from leakaudit.scoring import score
from leakaudit.task import Task
from leakaudit.trace import Trace
from leakaudit.tracefile import load, load_truth

__all__ = ["attack", "attack_one", "deduce", "in_order", "leaks", "load", "load_truth", "score", "targets"]

MEMORY, MOST = 512_000_000, 128  # bytes of the values of one leak, and gradients, where the caller names no number


def leaks(trace: Trace, adversary: Adversary | None = None, nodes: Iterable[int] | None = None, rounds: int | None = None) -> Leaks:
    """Return what an adversary (an eavesdropper on all wires by default) learns of the nodes' gradients.

    nodes: whose, all but the adversary's own by default. rounds: how many at most, as many as 512 MB hold, 128 at most, by default.
    Raises LeakauditError for a node that is not there or a message that holds NaN.
    """
    return deduce(Deduction(trace, adversary or Adversary()), nodes, rounds)


def deduce(heard: Deduction, nodes: Iterable[int] | None = None, rounds: int | None = None) -> Leaks:
    """Do what `leaks` does, for a deduction that is kept for several calls."""
    trace = heard.trace
    if rounds is None:
        rounds = max(4, min(MOST, MEMORY // (8 * (trace.columns[1] - trace.columns[0]))))
    found: list[GradientLeak] = []
    reasons: dict[int, str] = {}
    for node in targets(trace, heard.view.adversary) if nodes is None else nodes:
        if not 0 <= node < trace.graph.nodes:
            raise LeakauditError(f"there is no node {node}: the trace has nodes 0 to {trace.graph.nodes - 1}")
        try:
            found.append(values.leak(heard, heard.of(node, rounds)))
        except NotDetermined as e:
            reasons[node] = str(e)
    return Leaks(trace.task, tuple(found), reasons)


def targets(trace: Trace, adversary: Adversary) -> tuple[int, ...]:
    """Return the nodes that hold data and are not the adversary's own."""
    server = {trace.graph.nodes - 1} if registry.get("victims", trace.protocol).centralised else set()
    return tuple(n for n in range(trace.graph.nodes) if n not in adversary.corrupt | server)


def attack(leaks: Leaks, name: str = "auto", *, generator: Generator, task: Task | None = None, **settings: Any) -> list[Reconstruction]:
    """Run one attack, or the strongest that fits each leak (`auto`), and return a reconstruction a leak.

    settings: the attack's hyper-parameters. task: needed only where the model is a user's own
    ``package.module:factory``: Task.build(leaks.task, trusted=True).
    Raises LeakauditError for an unknown attack or setting, AttackError where a named attack cannot use a leak.
    """
    task = task or Task.build(leaks.task)
    return [attack_one(leak, task, name, generator, **settings) for leak in leaks]


def attack_one(leak: GradientLeak, task: Task, name: str, generator: Generator, **settings: Any) -> Reconstruction:
    """Attack one leak; `auto` goes from exact to iterative attacks until one fits."""
    start = time.perf_counter()
    if name != "auto":
        chosen: Attack = registry.configure(registry.get("attacks", name), settings)
        if why := chosen.refuses(leak, task):
            raise AttackError(f"node {leak.node}: attack {name} cannot use this leak: {why}")
        return replace(chosen(leak, task, generator), seconds=time.perf_counter() - start)
    if settings:
        raise LeakauditError(f"auto takes no settings, got {', '.join(settings)}; name the attack that they are for")
    best: Reconstruction | None = None
    reasons: list[str] = []
    for known, candidate in in_order():
        if reason := candidate.refuses(leak, task):
            reasons.append(f"{known}: {reason}")
            continue
        found = candidate(leak, task, generator)
        if best is None or (found.certificate is not Certificate.FAILED and (len(found.x) or not len(best.x))):
            best = found
        if found.certificate is not Certificate.FAILED or expired():
            break
    if best is None:
        best = Reconstruction(
            leak.node,
            "none",
            torch.empty(0, *task.spec.shape),
            None,
            Certificate.FAILED,
            1.0,
            note="no attack can use this leak. " + "; ".join(reasons),
        )
    return replace(best, seconds=time.perf_counter() - start)


def in_order() -> Iterator[tuple[str, Attack]]:
    """Return all attacks with their defaults, exact ones first, then by rank."""
    known = [(n, cast(Attack, registry.configure(kind, {}))) for n, kind in registry.everything("attacks")]
    return iter(sorted(known, key=lambda pair: (not pair[1].exact, pair[1].rank, pair[0])))
