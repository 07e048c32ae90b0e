"""From measurements to rules: budgets, growth, controls, acceptances, and the exit code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from fnmatch import fnmatchcase

import numpy as np

from leakaudit._util import averages, holm
from leakaudit._util.plural import counted, named
from leakaudit.core.quantities import MEASURES
from leakaudit.core.verdict import Holds
from leakaudit.judging.gate import baseline, compare, measures
from leakaudit.judging.gate.baseline import Baseline, CellMeasurements
from leakaudit.judging.gate.cells import GateCell
from leakaudit.judging.gate.config import Acceptance, Budget, Gate
from leakaudit.judging.gate.controls import BATCH
from leakaudit.judging.gate.rule import CANNOT_TELL, FOUND, PricedView, Rule
from leakaudit.reporting.findings.wording import figure, measured, reconstructed
from leakaudit.reporting.results.model import AcceptanceState, ExitCode, RuleKind, RuleStatus

# Rounding to d significant digits moves a number by at most half a unit of its last digit, which is
# 10^(1 - d) / 2 of its size. Growth up to this amount can result from rounding the baseline.
_ROUNDED = 0.5 * 10.0 ** (1 - baseline.DIGITS)
# The smallest growth that counts, whatever the numbers are. A choice, far below what a reader would
# call growth: a thousandth of a percent of a share.
_LEAST = 1e-5
# Probability that chance alone makes a gate inconclusive by measures that a guess reaches, over all
# comparisons. A choice: one honest run in 1000.
CHANCE = 1e-3
# How a budget combines the seeds.
_OVER_SEEDS = {"worst": "with the worst seed", "p95": "in 95 % of the runs", "mean": "on average"}
_UPDATE = "measure it again with 'leakaudit check --update --reason TEXT'"


# --- sentences ------------------------------------------------------------------------------------


def whom(cell: GateCell) -> str:
    """Return what leaked at worst in a cell, from which node and to whom."""
    return reconstructed(cell.worst, str(cell.adversary), cell.attack)


def _named(cell: GateCell) -> tuple[int, ...]:
    """Return the nodes that `whom` names."""
    own = set(cell.adversary.corrupt)
    if cell.worst is not None:
        own.add(cell.worst.node)
    return tuple(sorted(own))


# --- budgets --------------------------------------------------------------------------------------


def budgets(
    cell: GateCell, budgets: Sequence[Budget], priced: PricedView | None = None
) -> list[Rule]:
    """Judge the budgets that match a cell; for each measure, the last matching one applies."""
    last = {one.measure: one for one in budgets if fnmatchcase(cell.name, one.cells)}
    found = []
    for name, budget in last.items():
        if budget.level == "off":
            continue
        if name == "epsilon":
            found.append(_epsilon_budget(cell, budget, priced or PricedView()))
        else:
            found.append(_measure_budget(cell, budget))
    return found


def _measure_budget(cell: GateCell, budget: Budget) -> Rule:
    samples = cell.samples.get(budget.measure)
    if not samples:
        others = ", ".join(name for name in MEASURES if name in cell.samples)
        why = "this kind of data does not have the measure"
        return _unjudged(cell, budget, f"{why}; use {others or 'epsilon'}")
    value = measures.aggregate(budget.aggregate, samples)
    said = f"{figure(budget.measure, value)} {_OVER_SEEDS[budget.aggregate]}"
    return _limited(cell, budget, value, said, whom(cell), _named(cell))


def _epsilon_budget(cell: GateCell, budget: Budget, priced: PricedView) -> Rule:
    """Judge epsilon; if only its doubtful value exceeds the budget, it cannot be judged."""
    value = priced.epsilon
    if value is None:
        return _unjudged(cell, budget, priced.why or "the view has no epsilon", priced.nodes)
    said = priced.holds.says(figure("epsilon", value))
    if priced.holds is Holds.DECLARED and value <= budget.most:
        return replace(_unjudged(cell, budget, said, priced.nodes), value=value)
    doubted = priced.doubted
    if doubted is not None and value <= budget.most < doubted:
        figures = f"{said} as declared, but {doubted:.4g} {priced.doubt}"
        return replace(_unjudged(cell, budget, figures), value=value)
    about = f"view bound of {cell.adversary} for the data of {named(priced.nodes)}"
    nodes = tuple(sorted({*priced.nodes, *cell.adversary.corrupt}))
    rule = _limited(cell, budget, value, said, about, nodes)
    return replace(rule, says=f"{rule.says} (sensitivity {priced.sensitivity:g})")


def _limited(
    cell: GateCell, budget: Budget, value: float, said: str, about: str, nodes: tuple[int, ...]
) -> Rule:
    """Compare a value with the budget; only a rule that is over it says what leaked."""
    name = budget.measure
    says = f"{measured(name)}: {said}, at most {figure(name, budget.most)} allowed"
    if value <= budget.most:
        return _budget_rule(cell, budget, RuleStatus.OK, says, value)
    status = RuleStatus.OVER if budget.level == "error" else RuleStatus.WARNING
    return _budget_rule(cell, budget, status, f"{says}: {about}", value, nodes)


def _unjudged(cell: GateCell, budget: Budget, why: str, nodes: tuple[int, ...] = ()) -> Rule:
    name = budget.measure
    says = f"a budget on {name if name == 'epsilon' else measured(name)} cannot be judged: {why}"
    return _budget_rule(cell, budget, RuleStatus.VOID, says, None, nodes)


def _budget_rule(
    cell: GateCell,
    budget: Budget,
    status: RuleStatus,
    says: str,
    value: float | None,
    nodes: tuple[int, ...] = (),
) -> Rule:
    return Rule(
        kind=RuleKind.BUDGET,
        cell=cell.name,
        measure=budget.measure,
        status=status,
        says=says,
        value=value,
        limit=budget.most,
        nodes=nodes,
    )


# --- growth ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Comparison:
    """A measure of a cell and its samples in the baseline."""

    cell: GateCell
    measure: str
    new: Sequence[float]  # samples of this run
    old: Sequence[float]  # samples of the baseline
    paired: bool  # whether both have the same seeds, in the same order
    tolerance: float  # growth that the configuration ignores
    # how many records each sample is a share of, if guesses are right by chance; else 0
    records: int = 0

    @property
    def ignored(self) -> float:
        """Growth that is ignored: the tolerance, and what rounding of the baseline can cause."""
        rounding = _ROUNDED * max(map(abs, self.old))
        return self.tolerance + max(rounding, _LEAST)

    @classmethod
    def of(cls, cell: GateCell, measure: str, block: CellMeasurements, gate: Gate) -> _Comparison:
        """Pair the samples of common seeds; compare all if there are none."""
        new = dict(zip(cell.seeds, cell.samples[measure], strict=True))
        old = dict(zip(block.seeds, block.samples[measure], strict=True))
        both = [seed for seed in new if seed in old]
        known = MEASURES[measure]
        tolerance = gate.tolerance.get(measure, known.tolerance)
        records = cell.records if known.guessed else 0
        if both:
            paired_new = [new[seed] for seed in both]
            paired_old = [old[seed] for seed in both]
            return cls(cell, measure, paired_new, paired_old, True, tolerance, records)
        before = list(old.values())
        return cls(cell, measure, list(new.values()), before, False, tolerance, records)

    def p_value(self) -> float:
        """Return the p-value of "it did not grow by more than the tolerance"."""
        test = compare.paired if self.paired else compare.unpaired
        with np.errstate(all="ignore"):  # a tolerance may be as large as any float
            return test(self.new, self.old, self.ignored)

    def least(self) -> float:
        """Return the smallest p-value that so many samples allow."""
        return compare.least(len(self.new), len(self.old), self.paired)

    def explained(self, level: float) -> str:
        """Return why chance explains the growth at this level; empty if it does not.

        Results of the same seeds do not differ by chance, unless they are guesses, and no input is
        recovered bit for bit by chance.
        """
        if self.records and self._is_guessed(level):
            return "guesses that are right as often as before explain it"
        if self.paired or self.records or not self.tolerance or self.least() > level:
            return ""
        with np.errstate(all="ignore"):
            if compare.unpaired(self.new, self.old, 0.0) > level:
                return "other seeds differ as much by chance"
        return ""

    def _is_guessed(self, level: float) -> bool:
        trials = len(self.new) * self.records
        old = (round(sum(self.old) * self.records), len(self.old) * self.records)
        if compare.chance((trials, trials), old) > level:
            return False
        return compare.chance((round(sum(self.new) * self.records), trials), old) > level

    def rule(self, p: float, count: int, gate: Gate) -> Rule:
        """Judge it, with `p` adjusted for all `count` comparisons."""
        now = averages.mean(self.new)
        was = averages.mean(self.old)
        grown = now - was > self.ignored
        status = RuleStatus.OK
        says = self._figures(now, was, p)
        nodes: tuple[int, ...] = ()
        if grown and p <= gate.alpha:
            status = RuleStatus.REGRESSION
            says = f"{says}: {whom(self.cell)}"
            nodes = _named(self.cell)
        elif grown and self.explained(CHANCE / count):
            says = f"{says}; {self.explained(CHANCE / count)}"
        elif grown:
            status = RuleStatus.INCONCLUSIVE
            if self.least() * count > gate.alpha:
                status = RuleStatus.TOO_FEW_SEEDS
            says = f"{says}; {self._needs(status, count, gate.alpha)}"
        return Rule(
            kind=RuleKind.BASELINE,
            cell=self.cell.name,
            measure=self.measure,
            status=status,
            says=says,
            value=now,
            limit=was + self.tolerance,
            p=p,
            nodes=nodes,
        )

    def _figures(self, now: float, was: float, p: float) -> str:
        before = figure(self.measure, was)
        after = figure(self.measure, now)
        tolerance = figure(self.measure, self.tolerance)
        how = f"{len(self.new)} new and {len(self.old)} old seeds"
        if self.paired:
            how = f"{len(self.new)} paired seeds"
        change = f"{measured(self.measure)}: {before} -> {after}"
        return f"{change} (tolerance {tolerance}, p = {p:.2g}, {how})"

    def _needs(self, status: RuleStatus, count: int, alpha: float) -> str:
        if status is RuleStatus.INCONCLUSIVE:
            return "use more seeds to decide"
        seeds = compare.seeds_for(alpha, count)
        many = "1 comparison requires" if count == 1 else f"{count} comparisons require"
        return (
            f"so few seeds can never show an increase: {many} seeds >= {seeds} at alpha {alpha:g}"
        )


def growth(cells: Sequence[GateCell], base: Baseline, gate: Gate) -> list[Rule]:
    """Compare every cell with the baseline; all comparisons share alpha."""
    out, comparisons = _compared(cells, base, gate)
    adjusted = holm.adjusted([comparison.p_value() for comparison in comparisons])
    for comparison, p in zip(comparisons, adjusted, strict=True):
        out.append(comparison.rule(p, len(comparisons), gate))
    return out


def few_seeds(cells: Sequence[GateCell], base: Baseline, gate: Gate) -> list[str]:
    """Return a remark if no increase over the baseline could be significant."""
    _, comparisons = _compared(cells, base, gate)
    count = len(comparisons)
    if not count:
        return []
    least = min(one.least() for one in comparisons) * count
    if least <= gate.alpha:
        return []
    many = f"{counted(gate.seeds, 'seed')} and {counted(count, 'comparison')}"
    smallest = f"no p-value can be below {min(1.0, least):.2g} (alpha {gate.alpha:g})"
    needed = f"set seeds >= {compare.seeds_for(gate.alpha, count)}"
    return [f"with {many}, no increase over the baseline can be significant: {smallest}; {needed}"]


def _compared(
    cells: Sequence[GateCell], base: Baseline, gate: Gate
) -> tuple[list[Rule], list[_Comparison]]:
    out: list[Rule] = []
    comparisons: list[_Comparison] = []
    for cell in cells:
        block = base.cells.get(cell.name)
        if block is None:
            says = f"this cell is not in the baseline; {_UPDATE}"
            out.append(_not_comparable(cell, "", says))
            continue
        if block.digest != cell.digest():
            why = "was measured differently (attack, settings, adversary or nodes)"
            out.append(_not_comparable(cell, "", f"this cell {why}; {_UPDATE}"))
            continue
        for name in gate.compare:
            if name not in cell.samples:
                continue
            if name in block.samples:
                comparisons.append(_Comparison.of(cell, name, block, gate))
            else:
                says = f"the baseline does not contain {measured(name)} ({name}); {_UPDATE}"
                out.append(_not_comparable(cell, name, says))
    return out, comparisons


def _not_comparable(cell: GateCell, measure: str, says: str) -> Rule:
    return Rule(RuleKind.BASELINE, cell.name, measure, RuleStatus.NOT_COMPARABLE, says)


# --- what was attacked ----------------------------------------------------------------------------


def attacked(cells: Iterable[GateCell]) -> list[Rule]:
    """Return a rule for every cell in which a node was not attacked.

    If none was, nothing was examined. That is excused if the check expects that nothing is
    determined, unless messages are not understood.
    """
    found = []
    for cell in cells:
        if cell.seeds and not cell.tried:
            found.append(_unattacked(cell))
        elif cell.seeds and cell.reasons:
            found.append(_partly_attacked(cell))
    return found


def _partly_attacked(cell: GateCell) -> Rule:
    missing = sorted(cell.not_understood or cell.reasons)
    says = f"{named(missing)} not attacked: {cell.reasons[missing[0]]}"
    status = RuleStatus.UNTESTED
    if cell.not_understood:
        status = RuleStatus.VOID
        says = f"it is not known what leaked: {says}"
    return _attacked_rule(cell, status, says, missing)


def _attacked_rule(cell: GateCell, status: RuleStatus, says: str, nodes: Iterable[int]) -> Rule:
    named = tuple(sorted({*nodes, *cell.adversary.corrupt}))
    return Rule(RuleKind.ATTACKED, cell.name, "", status, says, nodes=named)


def _unattacked(cell: GateCell) -> Rule:
    says = "nothing was attacked, so nothing was measured: no node holds data"
    nodes: tuple[int, ...] = ()
    if cell.reasons:
        node, reason = min(cell.reasons.items())
        says = f"nothing was attacked, so nothing was measured: node {node}: {reason}"
        nodes = (node,)
    status = RuleStatus.VOID  # no guarantee of a protocol excuses what is not understood
    if cell.who in cell.check.undetermined and not cell.not_understood:
        status = RuleStatus.UNTESTED
        says = f"{says}; the check expects this for {cell.who}"
    elif not cell.not_understood:
        setting = f'undetermined = ["{cell.who}"] in [check.{cell.check.name}]'
        says = f"{says}; if the protocol guarantees this, set {setting}"
    return _attacked_rule(cell, status, says, nodes)


# --- acceptances and exit codes -------------------------------------------------------------------


def accept(
    rules: Sequence[Rule], accepted: Sequence[Acceptance], today: date
) -> tuple[list[Rule], dict[str, AcceptanceState]]:
    """Apply acceptances to findings; return the rules, and which acceptances were used."""
    state: dict[str, AcceptanceState] = {}
    for one in accepted:
        state[one.id] = "unused"
        if one.expires < today:
            state[one.id] = "expired"
    out = []
    for rule in rules:
        cover = _cover(rule, accepted)
        if cover is None:
            out.append(rule)
        elif cover.expires < today:
            expired = f"acceptance {cover.id} of {cover.owner} expired on {cover.expires}"
            out.append(replace(rule, says=f"{rule.says}; {expired}"))
        else:
            state[cover.id] = "used"
            until = f"accepted until {cover.expires} by {cover.owner}: {cover.reason} ({cover.id})"
            says = f"{rule.says}; {until}"
            out.append(replace(rule, status=RuleStatus.ACCEPTED, accepted=cover.id, says=says))
    return out, state


def _cover(rule: Rule, accepted: Sequence[Acceptance]) -> Acceptance | None:
    if rule.status not in FOUND:
        return None
    return next((one for one in accepted if _covers(one, rule)), None)


def _covers(one: Acceptance, rule: Rule) -> bool:
    if not (fnmatchcase(rule.cell, one.cells) and fnmatchcase(rule.measure, one.measure)):
        return False
    return one.most is None or (rule.value is not None and rule.value <= one.most)


def code(rules: Sequence[Rule], complete: bool, strict: bool) -> ExitCode:
    """Return 1 for a finding in a cell whose controls passed, 3 if inconclusive, otherwise 0.

    If `strict`, an increase that is not significant is inconclusive.
    """
    distrusted = set(_distrusted(rules))
    if any(rule.status in FOUND and rule.cell not in distrusted for rule in rules):
        return 1
    if not complete or any(rule.status in CANNOT_TELL for rule in rules):
        return 3
    if strict and any(rule.status is RuleStatus.INCONCLUSIVE for rule in rules):
        return 3
    return 0


def _distrusted(rules: Sequence[Rule]) -> Iterator[str]:
    """Yield the cells whose attack or scores failed a control, except for planted batches."""
    for rule in rules:
        control = rule.kind in (RuleKind.POSITIVE, RuleKind.NEGATIVE) and rule.measure != BATCH
        if control and rule.status is RuleStatus.VOID:
            yield rule.cell
