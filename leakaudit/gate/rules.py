"""The outcomes of a gate, each a `Rule`: budgets, growth over the baseline, lint and controls; a leak says what, from whom, to whom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from enum import Enum
from fnmatch import fnmatchcase
from statistics import fmean

from leakaudit.gate import compare, measures
from leakaudit.gate.baseline import Baseline, Block
from leakaudit.gate.cells import Cell, Worst
from leakaudit.gate.config import Acceptance, Budget, Gate
from leakaudit.gate.controls import BATCH, Control


class Status(Enum):
    """The outcome of one rule; the value says what it means for the gate."""

    OK = "within the limit"
    OVER = "over the budget"
    REGRESSION = "grew over the baseline"
    CONTRADICTED = "the recording contradicts what it declares"
    ACCEPTED = "over the limit, and accepted until a date"
    WARNING = "over a budget of level warn, or a warning of the lint"
    INCONCLUSIVE = "too few samples to tell"
    NOT_COMPARABLE = "the baseline was measured in another way, or is not there"
    VOID = "a control failed: the gate cannot tell"
    UNTESTED = "nothing to test: it counts neither for nor against"


CONTROLS = (
    "positive",
    "negative",
    "recording",
    "attacked",
)  # kinds of rules that say whether the others can be believed
UNSOUND = (
    Status.VOID,
    Status.CONTRADICTED,
)  # outcomes of a control with which nothing that was measured becomes a baseline
FOUND = (Status.OVER, Status.REGRESSION, Status.CONTRADICTED)
CANNOT_TELL = (Status.VOID, Status.NOT_COMPARABLE)


@dataclass(frozen=True)
class Rule:
    """One rule for one cell.

    kind: budget, baseline, lint (of ``check/lint``), recording (of ``check/recording``), attacked, positive or negative. measure: of
    lint a pitfall's code, of recording what it is about. value, limit: what is compared. p: adjusted, of a test.
    """

    kind: str
    cell: str
    measure: str
    status: Status
    says: str
    value: float | None = None
    limit: float | None = None
    p: float | None = None
    accepted: str = ""


def whom(cell: Cell) -> str:
    """Say what leaked most, from whom and to whom."""
    return outcome(cell.worst, str(cell.adversary), cell.attack)


def outcome(worst: Worst | None, adversary: str, attack: str) -> str:
    """Say it of a record."""
    if worst is None:
        return f"{adversary} reconstructs nothing by {attack}"
    what = (
        f"{worst.labels or 0:.0%} of the labels"
        if worst.relative_error is None
        else "the training input"
    )
    how = (
        "bit for bit"
        if worst.exact
        else ""
        if worst.relative_error is None
        else f"with relative error {worst.relative_error:.2g}"
    )
    near = "" if worst.psnr is None else f" ({worst.psnr:.1f} dB PSNR)"
    rounds = (
        f"round {worst.first}"
        if worst.first == worst.last
        else f"rounds {worst.first} to {worst.last}"
    )
    said = f"{adversary} reconstructs {what} of node {worst.node} {how}{near}".rstrip()
    return f"{said}, by {attack} from the {worst.kind}s of {rounds} (seed {worst.seed})"


def budgets(
    cell: Cell,
    budgets: Sequence[Budget],
    epsilon: tuple[float, int] | None = None,
    unpriced: str = "",
    doubt: tuple[float, str] | None = None,
) -> list[Rule]:
    """Judge the budgets that fit a cell; the last one that fits holds for its measure.

    epsilon: of one record in this adversary's view, with the node that it is of, None if there is none; unpriced: why. doubt: what it
    may be instead as far as the recordings tell, and why; if only that is over the budget, the budget cannot be judged.
    """
    last: dict[str, Budget] = {b.measure: b for b in budgets if fnmatchcase(cell.name, b.cells)}
    out = []
    for name, budget in last.items():
        if budget.level == "off":
            continue
        if name == "epsilon":
            value = None if epsilon is None else epsilon[0]
        else:
            value = (
                measures.aggregate(budget.aggregate, cell.samples[name])
                if cell.samples.get(name)
                else None
            )
        if value is None:
            why = (
                (unpriced or "the protocol's view gives none")
                if name == "epsilon"
                else "it is not measured on this data"
            )
            out.append(
                Rule(
                    "budget",
                    cell.name,
                    name,
                    Status.VOID,
                    f"a budget on {name} cannot be judged: {why}",
                    limit=budget.most,
                )
            )
            continue
        if name == "epsilon" and doubt is not None and value <= budget.most < doubt[0]:
            says = f"a budget on epsilon cannot be judged: {value:.4g} as declared, but {doubt[0]:.4g} {doubt[1]}"
            out.append(Rule("budget", cell.name, name, Status.VOID, says, value, budget.most))
            continue
        over = value > budget.most
        status = (Status.OVER if budget.level == "error" else Status.WARNING) if over else Status.OK
        how = f"{budget.aggregate} {name}" if name != "epsilon" else "epsilon of one record"
        says = f"{how} {measures.text(name, value)}, at most {measures.text(name, budget.most)}"
        about = (
            whom(cell)
            if epsilon is None or name != "epsilon"
            else f"so much may {cell.adversary} tell of the data of node {epsilon[1]}"
        )
        says = f"{says}: {about}" if over else says
        if name == "epsilon":
            says += f" (sensitivity {cell.check.sensitivity:g})"
        out.append(Rule("budget", cell.name, name, status, says, value, budget.most))
    return out


def growth(cells: Sequence[Cell], base: Baseline, gate: Gate) -> list[Rule]:
    """Compare every cell with the baseline, all comparisons sharing alpha."""
    out: list[Rule] = []
    tests: list[tuple[Cell, str, Block]] = []
    for cell in cells:
        block = base.cells.get(cell.name)
        if block is None or block.digest != cell.digest():
            why = (
                "is not in the baseline"
                if block is None
                else "was measured in another way (attack, settings, adversary or nodes)"
            )
            out.append(
                Rule(
                    "baseline",
                    cell.name,
                    "",
                    Status.NOT_COMPARABLE,
                    f"{cell.name} {why}; {_UPDATE}",
                )
            )
            continue
        tests += [
            (cell, name, block)
            for name in gate.compare
            if name in cell.samples and name in block.samples
        ]
        for name in gate.compare:
            if name in cell.samples and name not in block.samples:
                out.append(
                    Rule(
                        "baseline",
                        cell.name,
                        name,
                        Status.NOT_COMPARABLE,
                        f"the baseline has no {name}; {_UPDATE}",
                    )
                )
    adjusted = compare.holm([_p(cell, name, block, gate) for cell, name, block in tests])
    return out + [
        _judged(*test, p, len(tests), gate) for test, p in zip(tests, adjusted, strict=True)
    ]


_UPDATE = "'leakaudit baseline update --reason TEXT' measures it anew"


def _pairs(cell: Cell, name: str, block: Block) -> tuple[list[float], list[float], bool]:
    """Return the samples on both sides: of the seeds that both have, where there are any, else of all."""
    new, old = (
        dict(zip(cell.seeds, cell.samples[name], strict=True)),
        dict(zip(block.seeds, block.samples[name], strict=True)),
    )
    both = [s for s in new if s in old]
    if both:
        return [new[s] for s in both], [old[s] for s in both], True
    return list(new.values()), list(old.values()), False


def _tolerance(name: str, gate: Gate) -> float:
    return gate.tolerance.get(name, measures.MEASURES[name].tolerance)


def _p(cell: Cell, name: str, block: Block, gate: Gate) -> float:
    new, old, same = _pairs(cell, name, block)
    return (compare.paired if same else compare.unpaired)(new, old, _tolerance(name, gate) + _NOISE)


_NOISE = 1e-5  # rounding of what the baseline stores


def _judged(cell: Cell, name: str, block: Block, p: float, count: int, gate: Gate) -> Rule:
    new, old, same = _pairs(cell, name, block)
    now, was, tolerance = fmean(new), fmean(old), _tolerance(name, gate)
    grown = now - was > tolerance + _NOISE
    how = f"{len(new)} {'paired seeds' if same else 'new seeds against ' + str(len(old))}"
    says = f"{name} {measures.text(name, was)} -> {measures.text(name, now)} (tolerance {measures.text(name, tolerance)}, p = {p:.2g}, {how})"
    status = Status.OK
    if grown and p <= gate.alpha:
        status, says = Status.REGRESSION, f"{says}: {whom(cell)}"
    elif grown:
        status = Status.INCONCLUSIVE
        few = compare.least(len(new), len(old), same) * count > gate.alpha
        need = f"{count} comparisons at alpha {gate.alpha:g} need seeds >= {compare.seeds_for(gate.alpha, count)}"
        says = f"{says}; {need if few else 'more seeds would tell'}"
    return Rule("baseline", cell.name, name, status, says, now, was + tolerance, p)


def controls(cell: Cell, found: Iterable[Control]) -> list[Rule]:
    """Return the rules of a cell's controls."""
    told = {True: Status.OK, False: Status.VOID, None: Status.UNTESTED}
    return [Rule(c.name, cell.name, c.about, told[c.ok], c.says) for c in found]


def attacked(cells: Iterable[Cell]) -> list[Rule]:
    """Return a rule for every cell in which nothing was attacked: it stayed within every limit because nobody looked.

    An adversary for whom the check says that the protocol determines nothing is excused; its cell counts neither for nor against.
    """
    out = []
    for cell in cells:
        if cell.tried or not cell.seeds:
            continue
        node, reason = next(iter(sorted(cell.reasons.items())), (None, "no node holds data"))
        says = f"nothing was attacked, so nothing was measured: {'' if node is None else f'node {node}: '}{reason}"
        if cell.who in cell.check.undetermined:
            out.append(
                Rule(
                    "attacked",
                    cell.name,
                    "",
                    Status.UNTESTED,
                    f"{says}; as the check expects of {cell.who}",
                )
            )
        else:
            expected = f'undetermined = ["{cell.who}"] in [check.{cell.check.name}]'
            out.append(
                Rule(
                    "attacked",
                    cell.name,
                    "",
                    Status.VOID,
                    f"{says}; if the protocol promises that, say {expected}",
                )
            )
    return out


def accept(
    rules: Sequence[Rule], accepted: Sequence[Acceptance], today: date
) -> tuple[list[Rule], dict[str, str]]:
    """Apply acceptances to what was found, and say of each by its id whether it was used, unused or has expired."""
    state = {a.id: "expired" if a.expires < today else "unused" for a in accepted}
    out = []
    for rule in rules:
        one = (
            next((a for a in accepted if _covers(a, rule)), None) if rule.status in FOUND else None
        )
        if one is None:
            out.append(rule)
        elif one.expires < today:
            out.append(
                replace(
                    rule,
                    says=f"{rule.says}; acceptance {one.id} of {one.owner} expired on {one.expires}",
                )
            )
        else:
            state[one.id] = "used"
            says = (
                f"{rule.says}; accepted until {one.expires} by {one.owner}: {one.reason} ({one.id})"
            )
            out.append(replace(rule, status=Status.ACCEPTED, accepted=one.id, says=says))
    return out, state


def _covers(one: Acceptance, rule: Rule) -> bool:
    fits = fnmatchcase(rule.cell, one.cells) and fnmatchcase(rule.measure, one.measure)
    return fits and (one.most is None or (rule.value is not None and rule.value <= one.most))


def code(rules: Sequence[Rule], complete: bool, strict: bool) -> int:
    """Return the exit code: 1 where something was found in a cell whose controls hold, 3 where the gate cannot tell, else 0.

    An attack that is too weak for planted batches is not distrusted where it finds something.
    """
    distrusted = {
        r.cell
        for r in rules
        if r.kind in ("positive", "negative") and r.measure != BATCH and r.status is Status.VOID
    }
    if any(r.status in FOUND and r.cell not in distrusted for r in rules):
        return 1
    if any(r.status in CANNOT_TELL for r in rules) or not complete:
        return 3
    return 3 if strict and any(r.status is Status.INCONCLUSIVE for r in rules) else 0
