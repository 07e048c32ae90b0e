"""One run of a gate: record every program with every seed, attack, check the controls, judge."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime

import torch

from leakaudit import registry
from leakaudit.accounting.pricing import Price, price
from leakaudit.adversary import Adversary
from leakaudit.errors import LeakauditError
from leakaudit.extraction import hearing
from leakaudit.gate import baseline, controls, rules
from leakaudit.gate import linted as lints
from leakaudit.gate.baseline import Baseline, Block
from leakaudit.gate.cells import Cell, attack_all, empty, held
from leakaudit.gate.config import Check, Gate
from leakaudit.gate.fidelity import MOST, Fidelity
from leakaudit.gate.program import staying
from leakaudit.gate.rules import Rule
from leakaudit.gate.runs import Recorded, Runner, ready
from leakaudit.progress import expired, remaining, step
from leakaudit.protocols.declared import Protocol, clipped, played
from leakaudit.results import provenance
from leakaudit.results.findings import about
from leakaudit.trace import Json

ROUNDING = 1e-6  # of a sensitivity that is written with six digits
SECONDS = 10.0  # that more recordings of a check may take, or as long as its own seeds took
BLUNT = 0.2  # standard error of the gradients' coefficient from which on it is not told from 0: 1 is five of them away
LIMIT = 3.0  # standard errors above the coefficient that is measured, up to which it is priced then


@dataclass(frozen=True)
class Options:
    """seed: the first one. strict: whether too few samples are code 3. today: for acceptances, None for now."""

    seed: int = 0
    strict: bool = False
    today: date | None = None


@dataclass
class Judged:
    """What a run of a gate gave.

    epsilon: of one record in the view and the node that it is of, the worst one by ``check/adversary``, if a budget asks for it.
    unpriced: why there is none. doubts: what it may be instead, as far as the recordings tell, and why. rounds: how many were priced,
    by check.
    acceptances: id -> used, unused or expired.
    stale: cells of the baseline that are no longer measured. first: the first recording. networks: what was trained, by check.
    code: the exit code.
    """

    gate: Gate
    options: Options
    cells: list[Cell] = field(default_factory=list)
    epsilon: dict[str, tuple[float, int]] = field(default_factory=dict)
    unpriced: dict[str, str] = field(default_factory=dict)
    doubts: dict[str, tuple[float, str]] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    acceptances: dict[str, str] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)
    first: Recorded | None = None
    networks: dict[str, dict[str, Json]] = field(default_factory=dict)
    complete: bool = True
    interrupted: bool = False
    code: int = 3
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0

    @property
    def blocks(self) -> dict[str, Block]:
        """The cells as a baseline stores them."""
        return {c.name: baseline.block(c.digest(), c.seeds, c.samples) for c in self.cells}


def validate(gate: Gate) -> None:
    """Raise LeakauditError where an attack, one of its settings or an adversary of the configuration is not there; runs nothing."""
    for check in gate.checks:
        for attack in check.attacks:
            settings = dict(check.set.get(attack, {}))
            if attack != "auto":
                registry.configure(registry.get("attacks", attack), settings)
            elif settings:
                raise LeakauditError(
                    f"check {check.name}: auto takes no settings; name the attack that they are for"
                )
        for who in check.adversaries:
            Adversary.parse(who)


def run(gate: Gate, options: Options, base: Baseline | None) -> Judged:
    """Run the gate; base: what it compares with, None for budgets and controls alone. Ctrl-C ends it and keeps what was found."""
    validate(gate)
    out, clock = Judged(gate, options), time.perf_counter()
    try:
        with _deterministic(), staying():
            for check in gate.checks:
                _run(check, out)
    except KeyboardInterrupt:
        out.complete, out.interrupted = False, True
    conclude(out, base)
    out.seconds = time.perf_counter() - clock
    return out


def _run(check: Check, out: Judged) -> None:
    """Record one program with every seed and attack it, until the time is over; a control that time cut short says nothing.

    The first seed of a gate is run whatever the time, so that there is a record of what was tried.
    """
    cells, shown, began = empty(check), Fidelity(check), time.monotonic()
    first: Recorded | None = None
    seeds = range(out.options.seed, out.options.seed + out.gate.seeds)
    record = ready(check, out.gate.folder)
    try:
        for k, seed in enumerate(seeds):
            step(f"check {check.name}", k, len(seeds))
            if expired() and out.first is not None:
                break
            made = record(seed)
            shown.look(made)
            attack_all(cells, made)
            if first is None:
                first, out.first = made, out.first or made
                _once(check, cells, made, out, shown.hides(made.trace))
        step(f"check {check.name}", len(seeds), len(seeds))
        _again(shown, record, seeds)
        if _foreign(check, first):
            _more(shown, record, seeds, max(SECONDS, time.monotonic() - began))
        if first is not None:
            _epsilon(check, first, shown, out)
    finally:
        record.close()
        out.complete = out.complete and not expired()
        out.cells += [c for c in cells if c.seeds]
        linted = {
            r.measure for r in out.rules if r.kind == "lint" and r.cell == f"{check.name}/lint"
        }
        out.rules += [*shown.rules(linted), *rules.attacked(cells)]
        for cell in cells:
            out.rules += rules.controls(cell, [controls.negative(cell)] if cell.seeds else [])
            cell.found.clear()
            cell.planted.clear()


def _once(check: Check, cells: Sequence[Cell], made: Recorded, out: Judged, hidden: bool) -> None:
    """Do what one recording is enough for: lint it, and plant leaks like its own. hidden: whether it declares noise."""
    out.networks[check.name] = about(made.trace)
    out.rules += lints.rules(check, made)
    for cell in cells:
        nodes = held(cell, made)
        tested = controls.positive(cell, made, nodes)
        together = (
            None if expired() or not tested.ok else controls.batched(cell, made, nodes, hidden)
        )
        out.rules += rules.controls(
            cell, [] if expired() else [c for c in (tested, together) if c is not None]
        )


def _again(shown: Fidelity, record: Runner, seeds: range) -> None:
    """Run a seed in a process of its own, whose noise is compared with that of the seeds before.

    It is the last seed, so that an honest program draws what it drew before. Noise that starts anew with every process is that of the
    first seed then, with which that process began. A check of a single seed has no other one, and the next is run, which may be one that
    the program does not have.
    """
    if not shown.noisy or expired():
        return
    another = len(seeds) > 1
    try:
        made = record.anew(seeds[-1] if another else seeds.stop)
    except LeakauditError:
        if another:
            raise
        return
    if made is not None:
        shown.look_again(made)


def _foreign(check: Check, made: Recorded | None) -> bool:
    """Whether the code under test is a user's: a function, or a scenario whose victim is not one of leakaudit's own."""
    if check.run or made is None:
        return True
    return not registry.get("victims", made.trace.protocol).__module__.startswith(
        "leakaudit.victims."
    )


def _more(shown: Fidelity, record: Runner, seeds: range, seconds: float) -> None:
    """Record more seeds, without attacking them, while gradients of the truth cannot be told from others and the time allows.

    A program need not have these seeds; if one of them fails, the others tell as much as they do. seconds: that this may take; of the
    time that is left for the whole gate it takes half, so that what was measured is not cut short.
    """
    until = time.monotonic() + min(seconds, remaining() / 2)
    for seed in range(seeds.stop, seeds.stop + MOST):
        if expired() or time.monotonic() > until or not shown.undecided():
            return
        try:
            made = record(seed)
        except LeakauditError:
            return
        shown.look(made)


def _epsilon(check: Check, made: Recorded, shown: Fidelity, out: Judged) -> None:
    """Price the views of the declared protocol for one record if a budget asks for epsilon; the worst node counts."""
    if not any(b.measure == "epsilon" and b.level != "off" for b in out.gate.budgets):
        return
    protocol = played(made.trace)
    out.rounds[check.name] = protocol.rounds
    short = _too_small(check, made, getattr(protocol.victim, "clip", 0.0))
    for who in check.adversaries:
        adversary, cell = Adversary.parse(who), f"{check.name}/{who}"
        if short:
            out.unpriced[cell] = short
            continue
        nodes = check.nodes or hearing.targets(made.trace, adversary)
        prices = list(
            price(protocol, adversary, nodes, check.sensitivity, check.delta, check.smoothness)
        )
        found = [(p.epsilon, p.node) for p in prices if p.epsilon is not None]
        if found and len(found) == len(prices):
            out.epsilon[cell] = max(found)
            doubt = (
                _doubt(check, protocol, adversary, nodes, shown) if _foreign(check, made) else None
            )
            if doubt is not None:
                out.doubts[cell] = doubt
        elif missing := next((p for p in prices if p.epsilon is None), None):
            out.unpriced[cell] = _unpriced(missing, check)


def _doubt(
    check: Check, protocol: Protocol, adversary: Adversary, nodes: Sequence[int], shown: Fidelity
) -> tuple[float, str] | None:
    """Return what epsilon may be as far as the recordings tell, and why; None if they hold what the price relies on.

    Noise so loud that even `MOST` recordings could not tell gradients from none is no reason for doubt: then nothing that a program can
    do would end it, and the recording's rule says how little was told.
    """
    if protocol.turns is not None and not shown.compared:
        unordered = replace(protocol, ordered=False)
        why = "if records come in mini-batches in another order than declared, which no recording shows"
        return _largest(
            price(unordered, adversary, nodes, check.sensitivity, check.delta, check.smoothness)
        ), why
    fit = shown.fit
    needed = math.ceil(len(shown.seeds) * (fit.error / BLUNT) ** 2)
    if fit.error <= BLUNT or needed > MOST:
        return None
    times = max(1.0, 1 + fit.shift + LIMIT * fit.error)
    why = (
        f"if the messages hold {times:.2g} times the declared gradients, which the noise of {len(shown.seeds)} recordings hides; "
        f"seeds = {needed} would tell"
    )
    return _largest(
        price(protocol, adversary, nodes, check.sensitivity * times, check.delta, check.smoothness)
    ), why


def _largest(prices: Iterable[Price]) -> float:
    return max((math.inf if p.epsilon is None else p.epsilon for p in prices), default=math.inf)


def _too_small(check: Check, made: Recorded, clip: float) -> str:
    """Say that the check's sensitivity is smaller than the declared clip allows, and which one is needed; empty if it is not.

    `declared.clipped` says how far one record for another moves a gradient.
    """
    if not clip > 0:
        return ""
    counts = made.truth.node.bincount()
    samples = int(made.trace.params.get("samples") or counts[counts > 0].min())
    batch = int(made.trace.params.get("batch") or 0)
    needed = clipped(clip, samples, batch).sensitivity
    if check.sensitivity >= needed * (1 - ROUNDING):
        return ""
    moves = f"one record for another moves a gradient by up to 2 * clip / {2 * clip / needed:g} = {needed:g}"
    return f"sensitivity = {check.sensitivity:g}, but with clip = {clip:g} {moves}; set sensitivity = {needed:g} in [check.{check.name}]"


def _unpriced(missing: Price, check: Check) -> str:
    """Say why a node has no epsilon for records, and what to add."""
    if missing.refused:
        return f"node {missing.node}: {missing.refused}"
    says = f"node {missing.node} has no epsilon for records, since what it sends does not determine the models where gradients are taken"
    if check.smoothness is None:
        return f"{says}; add smoothness = L, a Lipschitz constant of a node's gradients, to [check.{check.name}]"
    return f"{says}, and smoothness = {check.smoothness:g} does not bound them ({missing.level.partition(':')[0]} level only)"


def conclude(out: Judged, base: Baseline | None) -> None:
    """Turn what was measured into rules and an exit code."""
    gate = out.gate
    found = list(out.rules)
    for cell in out.cells:
        view = f"{cell.check.name}/{cell.who}"
        found += rules.budgets(
            cell,
            gate.budgets,
            out.epsilon.get(view),
            out.unpriced.get(view, ""),
            out.doubts.get(view),
        )
    if base is not None:
        found += rules.growth(out.cells, base, gate)
        known = {c for check in gate.checks for c in check.cells}
        out.stale = sorted(
            n
            for n in base.cells
            if n.split("/")[0] in {c.name for c in gate.checks} and n not in known
        )
    today = out.options.today or datetime.now(UTC).date()
    out.rules, out.acceptances = rules.accept(found, gate.accepted, today)
    out.code = rules.code(out.rules, out.complete, out.options.strict)


def sound(judged: Judged) -> None:
    """Raise LeakauditError where a control or the lint failed, nothing was measured or the run is not complete: it would hide a leak."""
    if failed := [
        r for r in judged.rules if r.status in rules.UNSOUND and r.kind in (*rules.CONTROLS, "lint")
    ]:
        raise LeakauditError(f"the baseline is not changed: {failed[0].cell}: {failed[0].says}")
    if not judged.complete:
        raise LeakauditError(
            "the baseline is not changed: the run was cut short; give it more --max-seconds"
        )


def update(judged: Judged, old: Baseline, reason: str) -> Baseline:
    """Return the baseline with what was measured; cells of checks that were not run stay. Raises LeakauditError as `sound` does."""
    sound(judged)
    run = {c.name for c in judged.gate.checks}
    kept = Baseline({n: b for n, b in old.cells.items() if n.split("/")[0] not in run})
    return kept.merged(judged.blocks, reason, provenance.versions())


@contextmanager
def _deterministic() -> Iterator[None]:
    """Make torch choose algorithms that repeat, and put its choice back."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(
        "warn"
    )  # use_deterministic_algorithms imports the compiler: 1.2 s
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
