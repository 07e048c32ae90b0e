"""A run of a gate: record every program with every seed, attack, check the controls, judge."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import torch

from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.progress import expired, remaining, step
from leakaudit.judging.gate import controls, linted, rules
from leakaudit.judging.gate.baseline import Baseline
from leakaudit.judging.gate.cells import GateCell, attack_all, empty, held
from leakaudit.judging.gate.config import Check, Gate
from leakaudit.judging.gate.fidelity import MOST, Fidelity
from leakaudit.judging.gate.pricing import price_views
from leakaudit.judging.gate.program import staying
from leakaudit.judging.gate.record import GateResults as GateResults  # what it returns
from leakaudit.judging.gate.rule import CONTROLS, UNSOUND
from leakaudit.judging.gate.runs import Runner, SeedResults, ready
from leakaudit.reporting.findings.findings import trained
from leakaudit.reporting.results import provenance
from leakaudit.reporting.results.model import RuleKind, RuleStatus

# Seconds that further recordings of a check may take if its own seeds took less. A choice: this is
# an acceptable time for a check that otherwise takes a second or two.
SECONDS = 10.0
# The same in units of the time of its own seeds: all of `fidelity.MOST`, with the usual 16 seeds.
LONGER = 3.0


def validate(gate: Gate) -> None:
    """Check that everything that the configuration names exists."""
    for check in gate.checks:
        for attack in check.attacks:
            settings = dict(check.set.get(attack, {}))
            if attack != "auto":
                registry.configure(registry.get("attacks", attack), settings)
            elif settings:
                hint = "auto has no settings; put them under the name of an attack"
                raise LeakauditError(f"check {check.name}: set.auto: {hint}")
        for who in check.adversaries:
            Adversary.parse(who)


def run(gate: Gate, base: Baseline | None, seed: int = 0, *, strict: bool = False) -> GateResults:
    """Run the gate and compare with the baseline, if any; Ctrl-C keeps the results so far.

    If strict, an increase that is not significant leads to code 3.
    """
    validate(gate)
    out = GateResults(gate, seed, strict)
    start = time.perf_counter()
    try:
        with _deterministic(), staying():
            for number, check in enumerate(gate.checks):
                _run(check, out, number * gate.seeds)
    except KeyboardInterrupt:
        out.complete = False
        out.interrupted = True
    conclude(out, base)
    out.seconds = time.perf_counter() - start
    return out


def _run(check: Check, out: GateResults, before: int) -> None:
    """Record one program with every seed and attack it, until the time limit is reached.

    The first seed of a gate is always run. `before` is the number of runs of earlier checks.
    """
    cells = empty(check)
    shown = Fidelity(check)
    began = time.monotonic()
    first: SeedResults | None = None
    seeds = range(out.seed, out.seed + out.gate.seeds)
    total = len(out.gate.checks) * len(seeds)
    record = ready(check, out.gate.folder)
    try:
        for number, seed in enumerate(seeds):
            step("runs", before + number, total)
            if expired() and out.first is not None:
                break
            made = record(seed)
            shown.look(made)
            attack_all(cells, made)
            if first is None:
                first = made
                out.first = out.first or made
                _once(check, cells, made, out, shown.hides(made.trace))
        step("runs", before + len(seeds), total)
        _again(shown, record, seeds)
        own_code = _is_own(check, first)
        if not own_code:
            _more(shown, record, seeds, max(SECONDS, LONGER * (time.monotonic() - began)))
        if first is not None and _asks_for_epsilon(out.gate):
            _price(check, first, shown, out, own_code)
    finally:
        record.close()
        _close(check, cells, shown, out)


def _close(check: Check, cells: Sequence[GateCell], shown: Fidelity, out: GateResults) -> None:
    out.complete = out.complete and not expired()
    out.cells += [cell for cell in cells if cell.seeds]
    pitfalls = {
        rule.measure
        for rule in out.rules
        if rule.kind is RuleKind.LINT and rule.cell == f"{check.name}/lint"
    }
    out.rules += [*shown.rules(pitfalls), *rules.attacked(cells)]
    for cell in cells:
        if cell.seeds:
            out.rules.append(controls.negative(cell))
        cell.found.clear()
        cell.planted.clear()


def _once(
    check: Check, cells: Sequence[GateCell], made: SeedResults, out: GateResults, hidden: bool
) -> None:
    """Lint one recording and plant similar leaks; `hidden` states whether it declares noise."""
    out.networks[check.name] = trained(made.trace, made.truth)
    out.rules += linted.rules(check, made)
    for cell in cells:
        nodes = held(cell, made)
        found = [controls.positive(cell, made, nodes)]
        if found[0].status is RuleStatus.OK and not expired():
            found += controls.batched(cell, made, nodes, hidden)
        if not expired():
            out.rules += found


def _again(shown: Fidelity, record: Runner, seeds: range) -> None:
    """Run the last seed in a new process, and compare its noise with that of the recordings.

    Noise that starts anew with every process equals that of the first seed. A check with a single
    seed runs the next one, which the program may not support.
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


def _is_own(check: Check, made: SeedResults | None) -> bool:
    """Return whether the code under test is one of leakaudit's own victims."""
    if not check.scenario or made is None:
        return False
    victim = registry.of_trace(made.trace.protocol, made.trace.provenance)
    return bool(victim.__module__.startswith("leakaudit.victims."))


def _more(shown: Fidelity, record: Runner, seeds: range, seconds: float) -> None:
    """Record more seeds while the gradients of the truth cannot be distinguished from others.

    If the program fails, the previous recordings are used; at most half of the remaining time is.
    """
    shown.settles = True
    until = time.monotonic() + min(seconds, remaining() / 2)
    for seed in range(seeds.stop, seeds.stop + MOST):
        if expired() or time.monotonic() > until or not shown.undecided():
            return
        try:
            made = record(seed)
        except LeakauditError:
            return
        shown.look(made)


def _asks_for_epsilon(gate: Gate) -> bool:
    return any(one.measure == "epsilon" and one.level != "off" for one in gate.budgets)


def _price(
    check: Check, made: SeedResults, shown: Fidelity, out: GateResults, own_code: bool
) -> None:
    out.rounds[check.name], views = price_views(check, made, shown, own_code=own_code, most=MOST)
    out.priced |= {(check.name, who): priced for who, priced in views.items()}


def conclude(out: GateResults, base: Baseline | None) -> None:
    """Derive rules and an exit code; without a baseline from budgets and controls only."""
    gate = out.gate
    found = list(out.rules)
    for cell in out.cells:
        priced = out.priced.get((cell.check.name, cell.who))
        found += rules.budgets(cell, gate.budgets, priced)
    if base is not None:
        found += rules.growth(out.cells, base, gate)
        out.remarks = rules.few_seeds(out.cells, base, gate)
        out.stale = _stale(gate, base)
    today = datetime.now(UTC).date()
    out.rules, out.acceptances = rules.accept(found, gate.accepted, today)
    out.code = rules.code(out.rules, out.complete, out.strict)


def _stale(gate: Gate, base: Baseline) -> list[str]:
    """Return the cells of a baseline that its checks no longer have."""
    checks = {check.name for check in gate.checks}
    known = {cell for check in gate.checks for cell in check.cells}
    return sorted(
        name for name, block in base.cells.items() if block.check in checks and name not in known
    )


def sound(judged: GateResults) -> None:
    """Refuse a run that cannot become a baseline, because it could hide a leak."""
    kinds = (*CONTROLS, RuleKind.LINT)
    for rule in judged.rules:
        if rule.status in UNSOUND and rule.kind in kinds:
            raise LeakauditError(f"the baseline is not changed: {rule.cell}: {rule.says}")
    if not judged.complete:
        raise LeakauditError(
            "the baseline is not changed: the run was interrupted; increase --max-seconds"
        )


def update(judged: GateResults, old: Baseline, reason: str) -> Baseline:
    """Return the baseline with the new measurements; cells of checks that were not run stay."""
    sound(judged)
    checks = {check.name for check in judged.gate.checks}
    kept = {name: block for name, block in old.cells.items() if block.check not in checks}
    return Baseline(kept).merged(judged.blocks, reason, provenance.versions())


@contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.get_deterministic_debug_mode()
    # use_deterministic_algorithms would import the compiler, which takes 1.2 s.
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
