"""The page of `leakaudit bound`: the epsilon of every view, exact or at most, beside the claim."""

from __future__ import annotations

from collections.abc import Sequence

from leakaudit._util.plural import counted, named
from leakaudit.core.evidence import Origin, weakest
from leakaudit.core.verdict import Holds, Verdict
from leakaudit.core.version import VERSION
from leakaudit.reporting.findings import grading
from leakaudit.reporting.findings.overview import Advice, Overview
from leakaudit.reporting.findings.wording import limits, significant
from leakaudit.reporting.findings.worst_case import who, whom
from leakaudit.reporting.rendering.html import rendered, topology
from leakaudit.reporting.results.model import TraceSummary
from leakaudit.views.accounting.compare import Comparison

SHOWN = 500  # most views in the table; the JSON format has all
_LEAKING = 5  # shade of a node with a combination of gradients that is sent without noise
_REFUTED = 5
_BOUNDED = 1
_REFUSED = 0


def page(
    found: Sequence[Comparison],
    network: TraceSummary,
    marks: Sequence[str],
    remarks: Sequence[str],
    unclear: Sequence[str],
) -> str:
    """Render the views; `unclear` says how a recording contradicts its declaration."""
    marked = list(zip(found, marks, strict=True))
    marked.sort(key=lambda one: _severity(one[0]), reverse=True)
    ordered = [one for one, _ in marked]
    values = {
        "title": f"leakaudit: bound of {network.protocol}",
        "source": "leakaudit bound",
        "first": _first(ordered, network, unclear),
        "exhibit": _exhibit(ordered, network, bool(unclear)),
        "sections": [
            ("views", "Views"),
            ("assumptions", "Assumptions"),
            ("limits", "Limits of this report"),
            ("provenance", "Provenance"),
        ],
        "rows": [_row(one, mark) for one, mark in marked[:SHOWN]],
        "left_out": max(0, len(ordered) - SHOWN),
        "remarks": remarks,
        "unclear": unclear,
        "limits": limits(attacks=False),
        "attacked": False,
        "provenance": [
            ("leakaudit", VERSION),
            (
                "protocol",
                f"{network.protocol}, {counted(network.nodes, 'node')}, "
                f"{counted(network.edges, 'edge')}, {counted(network.rounds, 'round')}",
            ),
        ],
    }
    return rendered("bound.html.j2", values)


def _severity(one: Comparison) -> tuple[int, float, bool]:
    level = grading.RANK[grading.VERDICTS[one.verdict.name]] if one.claim else 0
    return level, one.bound.rank, bool(one.bound.leaking)


def _first(found: Sequence[Comparison], network: TraceSummary, unclear: Sequence[str]) -> Overview:
    worst = found[0]
    bound = worst.bound
    adversary = str(bound.adversary)
    someone = whom(adversary)
    owner = f"node {bound.node}"
    level: grading.Level = "note"
    badge = "Bounded"
    if bound.refused:
        says = f"What {someone} learns about {owner} cannot be bounded: {bound.refused}."
        level, badge = "warning", "No bound"
    elif bound.leaking:
        says = (
            f"{who(adversary)} receives gradients of {owner} without noise: "
            "no finite epsilon holds."
        )
        level, badge = "error", "No epsilon"
    elif bound.epsilon is not None:
        says = (
            f"Against {someone}, a record of {owner} has epsilon "
            f"{worst.holds.says(f'{bound.epsilon:.4g}')} at delta {bound.delta:g}."
        )
    elif bound.per_unit:
        says = (
            f"What {someone} learns about {owner} has no epsilon, because the sensitivity of its "
            "gradients is unknown."
        )
        level, badge = "warning", "No epsilon"
    elif bound.node_epsilon is not None:
        says = (
            f"Against {someone}, all data of {owner} together have epsilon "
            f"{worst.node_holds.says(f'{bound.node_epsilon:.4g}')} at delta {bound.delta:g}; "
            "there is no bound for one record."
        )
        level, badge = "warning", "Per node only"
    else:
        says = f"There is no bound on what {someone} learns about {owner}."
        level, badge = "warning", "No bound"
    if worst.claim is not None:
        level, badge = grading.VERDICTS[worst.verdict.name], worst.verdict.words
    certainty = (
        "This is computed from the protocol's equations and constants, for every attack that is "
        "possible."
    )
    least = weakest(worst.rests)
    if least is not None and least.origin < Origin.DECLARED:
        certainty += f" Its weakest input is {least}."
    if unclear:
        level, badge = "warning", "INCONCLUSIVE"
        certainty = "It is open whether the recording is what it declares"
        if least is not None and least.origin is Origin.CONTRADICTED:
            certainty = "The recording contradicts its declaration"
        certainty += f": {'; '.join(unclear)}."
    return Overview(
        topic=f"Bound of {network.protocol}: {counted(network.nodes, 'node')}, "
        f"{counted(network.rounds, 'round')}",
        says=says,
        certainty=certainty,
        level=level,
        badge=badge,
        advice=_advice(worst),
        facts=_facts(found, worst),
    )


def _exhibit(
    found: Sequence[Comparison], network: TraceSummary, unclear: bool
) -> dict[str, object]:
    adversary = str(found[0].bound.adversary)
    steps: dict[int, int] = {}
    words: dict[int, str] = {}
    for one in found:
        if str(one.bound.adversary) == adversary:
            steps[one.bound.node], words[one.bound.node] = _shade(one, unclear)
    return {
        "pair": None,
        "texts": None,
        "network": topology.network(network, adversary, steps, words),
        "caption": (
            f"Thick lines: observed by {whom(adversary)}. "
            "Shade of a node: red, sent without noise or refuted; light, bounded."
        ),
    }


def _shade(one: Comparison, unclear: bool) -> tuple[int, str]:
    if unclear:
        return _BOUNDED, "inconclusive"
    if one.bound.leaking:
        return _LEAKING, "gradients are sent without noise"
    if one.claim is not None and one.verdict in (Verdict.REFUTED, Verdict.UNSUPPORTED):
        return _REFUTED, one.verdict.words
    if one.bound.refused:
        return _REFUSED, "no bound"
    return _BOUNDED, _largest(one)


def _largest(one: Comparison) -> str:
    """Return what compares views: of a record, else of the node, else what is attained."""
    bound = one.bound
    if bound.releases and bound.epsilon is not None:
        return f"epsilon {one.holds.says(f'{bound.epsilon:.4g}')}"
    if bound.node_releases and bound.node_epsilon is not None:
        return f"epsilon {one.node_holds.says(f'{bound.node_epsilon:.4g}')} of the node"
    return f"mu {_mu(one)}"


def _mu(one: Comparison) -> str:
    bound = one.bound
    said = bound.multiple(bound.largest)
    if bound.mu is not None:
        return one.holds.says(said)
    if bound.node_mu is not None:
        return f"{one.node_holds.says(said)} of the node"
    return f"at least {said}"


def _facts(found: Sequence[Comparison], worst: Comparison) -> list[tuple[str, str]]:
    bound = worst.bound
    nodes = sorted({one.bound.node for one in found if one.bound.leaking})
    facts = [("who leaks to whom", f"node {bound.node} to {whom(str(bound.adversary))}")]
    if nodes:
        facts.append(("sent without noise", f"gradients of {named(nodes)}"))
    claimed = "none"
    if worst.claim is not None:
        claimed = f"{significant(worst.claim.epsilon)} ({worst.claim.source})"
    facts.append(("claimed epsilon", claimed))
    exact = bound.epsilon if worst.exact is None else worst.exact
    said = "none per record"
    if exact is not None:
        said = f"{worst.holds.says(f'{exact:.4g}')} per record at delta {bound.delta:g}"
    facts.append(("epsilon", said))
    facts.append(("views", str(len(found))))
    return facts


def _advice(worst: Comparison) -> list[Advice]:
    advice = []
    if worst.bound.leaking:
        advice.append(
            (
                "Add noise to every message: now no epsilon can be claimed, and an attack may "
                "recover the data.",
                "leakaudit attack trace.pt",
            )
        )
    if worst.claim is not None and worst.verdict in (Verdict.REFUTED, Verdict.UNSUPPORTED):
        advice.append(("Do not publish or rely on the claimed epsilon.", ""))
    if worst.calibration is not None and not worst.bound.leaking:
        advice.append(
            (
                f"For epsilon {worst.calibration.epsilon:g}, use this noise: "
                f"{worst.calibration.words}.",
                "",
            )
        )
    elif worst.verdict is Verdict.INCONCLUSIVE:
        advice.append((f"Supply what is missing: {worst.why}.", ""))
    elif worst.bound.per_unit:
        advice.append(
            (
                "State by how much one record can change a gradient, and enforce it by clipping.",
                "leakaudit bound trace.pt --sensitivity 2",
            )
        )
    elif not worst.bound.leaking:
        advice.append(
            (
                "Compute the noise that an epsilon of your choice requires.",
                "leakaudit bound scenario.toml --epsilon 8",
            )
        )
    advice.append(
        ("Include several curious nodes together.", "leakaudit bound trace.pt --coalitions 2")
    )
    return advice


def _row(one: Comparison, mark: str) -> tuple[grading.Level, Comparison, str]:
    """The severity of a view, the view, and its details."""
    bound = one.bound
    says = one.why
    if bound.holds is Holds.AT_MOST and bound.linear is not None:
        says = f"{says}; constant gradients attain mu {bound.multiple(bound.linear)}"
    if bound.refused:
        says = bound.refused
    elif bound.leaking:
        says = f"without noise: {', '.join(bound.leaking[:3])}"
        if len(bound.leaking) > 3:
            says = f"{says} and {len(bound.leaking) - 3} more"
    level: grading.Level = "error" if bound.leaking else "note"
    if one.claim is not None:
        level = grading.VERDICTS[one.verdict.name]
    return level, one, f"{says} {mark}".strip()
