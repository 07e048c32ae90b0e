"""The view bound of every adversary compared with the paper's claim."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from leakaudit._util.jobs import IN_PROCESS, Pool
from leakaudit._util.plain import encoded
from leakaudit.core.adversary import Adversary
from leakaudit.core.claim import Claim
from leakaudit.core.display import CardDisplay
from leakaudit.core.evidence import Evidence, Origin, weakest
from leakaudit.core.progress import step
from leakaudit.core.trace import Json
from leakaudit.core.verdict import Holds, Verdict
from leakaudit.protocols.declared import Protocol
from leakaudit.theory.bounds import gaussian
from leakaudit.views.accounting.adversaries import Threat
from leakaudit.views.accounting.calibration import Calibration, calibrate
from leakaudit.views.accounting.resting import rests_on
from leakaudit.views.accounting.symmetry import likes
from leakaudit.views.accounting.view_bound import ViewBound, view_bounds, without_scale

# A comparison has mu, epsilon, their ratio to the claim, and the noise that the claim requires.

# Default if neither the caller nor a claim specifies a value.
DELTA = 1e-5

# Relative amount by which a computed epsilon or mu may exceed another one and still count as equal.
ROUNDING = 1e-9

# Jobs per worker from which their different durations even out: a choice.
BUSY = 4

# What a claim says, in JSON.
OF_CLAIM = (
    *("source", "promise", "epsilon", "delta", "adjacency", "std", "rounds", "assumes"),
    *("sensitivity", "sampled"),
)

REPORTED = 100  # views equal to others between two reports of the progress: a choice


@dataclass(frozen=True)
class Comparison(CardDisplay):
    """One view of one node compared with the claim."""

    threat: Threat  # the adversary and the node
    bound: ViewBound  # the bound on the adversary's view
    claim: Claim | None  # the strongest claim that applies to this view
    verdict: Verdict
    why: str  # the reason for the verdict
    # upper bound of a record's epsilon at the claim's delta, exact if `ViewBound.holds` says so;
    # None if there is none
    exact: float | None = None
    least: float | None = None  # the epsilon that linear (and quadratic) losses attain
    ratio: float | None = None  # exact epsilon divided by the claimed one
    calibration: Calibration | None = None  # the noise that the claim requires
    like: Threat | None = None  # the adversary whose view is the same by symmetry
    sensitivity_from: str = ""  # origin of the sensitivity, in words
    sensitivity_known: bool = True  # whether anything states it
    rests: tuple[Evidence, ...] = ()  # the inputs of the bound, and where each comes from

    @property
    def holds(self) -> Holds:
        """How its mu relates to what a record attains: no stronger than the weakest input."""
        return standing(self.bound, self.rests)

    @property
    def node_holds(self) -> Holds:
        """The same for the mu of all data of the node, which is an upper bound."""
        if is_contradicted(self.rests):
            return Holds.DECLARED
        return Holds.AT_MOST

    @property
    def mu_in_words(self) -> str:
        """Its mu in a table, with how it holds."""
        if self.bound.mu is None:
            return "-"
        return self.holds.brief(self.bound.multiple(self.bound.mu))

    @property
    def epsilon_in_words(self) -> str:
        """Its epsilon in a table, with how it holds."""
        if self.bound.epsilon is None:
            return "-"
        return self.holds.brief(f"{self.bound.epsilon:.4g}")

    def __repr__(self) -> str:
        """One line: the view, its epsilon, the claim and the verdict."""
        epsilon = "none"
        if self.bound.epsilon is not None:
            epsilon = self.holds.says(f"{self.bound.epsilon:.4g}")
        claimed = "none"
        if self.claim is not None and self.claim.epsilon is not None:
            claimed = f"{self.claim.epsilon:.4g}"
        return (
            f"Comparison(node {self.bound.node}, {str(self.bound.adversary)!r:.60},"
            f" epsilon {epsilon}, claimed {claimed}, {self.verdict.words})"
        )

    def to_json(self) -> dict[str, Json]:
        """Plain values; infinity is the text ``inf``."""
        claim: Json = None
        if self.claim is not None:
            claim = {name: getattr(self.claim, name) for name in OF_CLAIM}
        recommended: Json = None
        if self.calibration is not None:
            recommended = self.calibration.to_json()
        same_as: Json = None
        if self.like is not None:
            same_as = {"node": self.like.node, "adversary": str(self.like.adversary)}
        inputs: list[Json] = []
        for one in self.rests:
            inputs.append({"subject": one.subject, "origin": one.origin.name, "detail": one.detail})
        values = self.bound.to_json()
        if not self.sensitivity_known:
            values["sensitivity"] = None
        return {
            **values,
            "holds": str(self.holds),
            "sensitivity_from": self.sensitivity_from,
            "rests_on": inputs,
            "weakest": _weakest(self.rests),
            "kind": self.threat.kind,
            "claim": claim,
            "exact": encoded(self.exact),
            "least": encoded(self.least),
            "ratio": encoded(self.ratio),
            "verdict": self.verdict.name,
            "why": self.why,
            "recommended": recommended,
            "same_as": same_as,
        }


def standing(bound: ViewBound, inputs: Iterable[Evidence]) -> Holds:
    """Return how a bound holds that rests on some inputs: no stronger than the weakest of them."""
    if bound.holds is not Holds.NONE and is_contradicted(inputs):
        return Holds.DECLARED
    return bound.holds


def is_contradicted(inputs: Iterable[Evidence]) -> bool:
    """Return whether a recording contradicts one of the inputs of a bound."""
    return any(one.origin is Origin.CONTRADICTED for one in inputs)


class Comparisons(list[Comparison], CardDisplay):
    """A list of comparisons, which a notebook displays as a table."""


def resting(found: Iterable[Comparison], doubts: Sequence[Evidence]) -> Comparisons:
    """Return comparisons of a recording that also rest on what is doubtful in it."""
    return Comparisons(replace(one, rests=(*one.rests, *doubts)) for one in found)


def _weakest(inputs: Sequence[Evidence]) -> str | None:
    least = weakest(inputs)
    if least is None:
        return None
    return str(least)


@dataclass(frozen=True)
class AssumedSensitivity:
    """The assumed largest change of a gradient if one record is exchanged."""

    value: float  # Euclidean norm of the change
    origin: str
    comparable: bool  # whether claims are judged with it
    asked: bool = False  # whether it was specified for this bound
    # whether anything states it; otherwise mu is a multiple of it (`without_scale`)
    known: bool = True

    @property
    def evidence(self) -> Evidence:
        """Where it comes from."""
        if self.asked:
            return Evidence("sensitivity", Origin.ASSUMED, f"{self.value:g}, {self.origin}")
        if not self.known:
            return Evidence("sensitivity", Origin.UNKNOWN, self.origin)
        return Evidence("sensitivity", Origin.DECLARED, f"{self.value:g}, {self.origin}")


def assumed_sensitivity(
    protocol: Protocol, claims: Sequence[Claim], asked: float | None
) -> AssumedSensitivity:
    """Return the sensitivity at which views are bounded.

    Args:
        asked: The value specified by the user, None if there is none.
    """
    clipped = protocol.clipped

    def allowed(value: float) -> str:
        if clipped is None or clipped.sensitivity <= value * (1 + ROUNDING):
            return ""
        return (
            f"; the run allows {clipped.sensitivity:.6g}, since {clipped.words} "
            "(use --sensitivity to evaluate that)"
        )

    if asked is not None:
        return AssumedSensitivity(asked, f"as specified{allowed(asked)}", True, asked=True)
    # What a theorem assumes of the data holds or not, whatever noise is added.
    for claim in (*claims, *protocol.claims):
        if claim.sensitivity:
            origin = f"as the claim assumes{allowed(claim.sensitivity)}"
            return AssumedSensitivity(claim.sensitivity, origin, True)
    if clipped is not None:
        return AssumedSensitivity(clipped.sensitivity, clipped.words, False)
    why = "neither a claim nor a clip is declared; specify --sensitivity"
    return AssumedSensitivity(1.0, why, False, known=False)


@dataclass(frozen=True)
class _Question:
    """The parameters for every view, as for `compare`."""

    sensitivity: AssumedSensitivity
    delta: float | None
    epsilon: float | None
    smoothness: float | None


def compare(
    protocol: Protocol,
    threats: Sequence[Threat],
    *,
    sensitivity: float | AssumedSensitivity | None = None,
    delta: float | None = None,
    epsilon: float | None = None,
    smoothness: float | None = None,
    executor: Pool = IN_PROCESS,
) -> Iterator[Comparison]:
    """Yield every adversary's view and the claim; views equal by symmetry are computed once.

    Args:
        delta: As for `view_bounds`; by default that of the claim, otherwise 1e-5.
    """
    claims = _claims(protocol)
    if not isinstance(sensitivity, AssumedSensitivity):
        sensitivity = assumed_sensitivity(protocol, claims, sensitivity)
    # Symmetry is proven for mu without a smoothness, and for claims that treat all nodes alike.
    proven = smoothness is None and not any(claim.pair for claim in claims)
    symmetric = proven and len(threats) > 1
    same: list[Threat | None] = [None] * len(threats)
    if symmetric:
        same = likes(protocol.graph, protocol.start, threats)
    different = [one for one, like in zip(threats, same, strict=True) if like is None]
    question = _Question(sensitivity, delta, epsilon, smoothness)
    job = partial(_comparisons, protocol, question)
    found = executor.map(job, _parts(different, executor))
    known: dict[Threat, Comparison] = {}
    for k, (threat, like) in enumerate(zip(threats, same, strict=True)):
        if like is None or not k % REPORTED:
            step("views", k, len(threats))
        if like is not None:
            yield _renamed(known[like], threat, like)
            continue
        while threat not in known:
            known.update(next(found))
        yield known[threat]
    step("views", len(threats), len(threats))


def _parts(threats: Sequence[Threat], executor: Pool) -> list[tuple[Threat, ...]]:
    """Return the jobs: the views of one adversary, or parts of them if that keeps workers busy."""
    of_adversary = defaultdict[Adversary, list[Threat]](list)
    for threat in dict.fromkeys(threats):
        of_adversary[threat.adversary].append(threat)
    most = len(threats)
    if not executor.inside:
        most = max(1, len(threats) // (BUSY * max(2, executor.workers)))
    parts = []
    for some in of_adversary.values():
        for at in range(0, len(some), most):
            parts.append(tuple(some[at : at + most]))
    return parts


def _claims(protocol: Protocol) -> list[Claim]:
    return [claim for claim in protocol.claims if _speaks(claim, protocol.rounds)]


def _speaks(claim: Claim, rounds: int) -> bool:
    if claim.epsilon is None or claim.delta is None or not claim.met:
        return False
    if math.isnan(claim.epsilon) or not 0 <= claim.delta < 1:
        return False
    return claim.rounds is None or claim.rounds >= rounds


def _renamed(old: Comparison, threat: Threat, like: Threat) -> Comparison:
    # There may be hundreds of thousands; `dataclasses.replace` takes twice as long as this.
    bound = ViewBound(**{**vars(old.bound), "node": threat.node, "adversary": threat.adversary})
    return Comparison(**{**vars(old), "threat": threat, "bound": bound, "like": like})


def _comparisons(
    protocol: Protocol, question: _Question, threats: Sequence[Threat]
) -> dict[Threat, Comparison]:
    """Bound the views of one adversary, which share most of the work, and judge the claims."""
    claims = _claims(protocol)
    found: dict[Threat, Comparison] = {}
    by_claim = defaultdict[tuple[Claim | None, float], list[Threat]](list)
    for threat in threats:
        claim = _strongest(claims, threat)
        delta = DELTA
        if question.delta is not None:
            delta = question.delta
        elif claim is not None and claim.delta:
            delta = claim.delta
        by_claim[claim, delta].append(threat)
    assumed = question.sensitivity.value
    for (claim, delta), some in by_claim.items():
        nodes = [threat.node for threat in some]
        adversary = some[0].adversary
        bounds = view_bounds(protocol, adversary, nodes, assumed, delta, question.smoothness)
        for threat, bound in zip(some, bounds, strict=True):
            if not question.sensitivity.known:
                bound = without_scale(bound)
            found[threat] = _comparison(protocol, threat, claim, bound, question)
    return found


def _comparison(
    protocol: Protocol,
    threat: Threat,
    claim: Claim | None,
    bound: ViewBound,
    question: _Question,
) -> Comparison:
    delta = bound.delta
    assumed = question.sensitivity
    # The noise is for the requested epsilon, otherwise for the claim, at the claim's delta.
    target = question.epsilon
    target_delta = delta
    if target is None and claim is not None:
        if assumed.comparable:
            target = claim.epsilon
        if claim.delta is not None:
            target_delta = claim.delta
    rests = rests_on(protocol, bound, assumed.evidence, asked=assumed.asked)
    calibration = None
    # Noise that is calibrated to an input that does not hold would be too small.
    known = not bound.per_unit and not is_contradicted(rests)
    if target is not None and target != math.inf and known:
        calibration = calibrate(protocol, threat, bound, target, target_delta, question.smoothness)
    unjudged = Comparison(
        threat,
        bound,
        claim,
        Verdict.UNCLAIMED,
        "",
        calibration=calibration,
        sensitivity_from=assumed.origin,
        sensitivity_known=assumed.known,
        rests=rests,
    )
    return judged(unjudged, assumed.comparable)


def judged(comparison: Comparison, comparable: bool) -> Comparison:
    """Return the comparison with its verdict.

    REFUTED requires that losses of one kind exceed the claim: losses with constant gradients, or
    quadratic losses within the smoothness, for a record that enters as many gradients as possible.
    NOT_REFUTED requires that no loss exceeds it.
    """
    claim = comparison.claim
    bound = comparison.bound
    if claim is None or claim.epsilon is None or claim.delta is None:
        return replace(comparison, why="no claim applies to this view with these constants")
    if bound.refused:
        return replace(comparison, verdict=Verdict.INCONCLUSIVE, why=bound.refused)
    if not comparable:
        why = "the claim does not state how much a gradient may change; specify --sensitivity"
        return replace(comparison, verdict=Verdict.UNSUPPORTED, why=why)
    limit = claim.epsilon * (1 + ROUNDING)
    shown = comparison
    if bound.least is not None:
        shown = replace(shown, least=bound.least.epsilon(claim.delta))
    elif bound.reached is not None:
        shown = replace(shown, least=gaussian.epsilon(claim.delta, bound.reached))
    guarantee = bound.guarantee
    if guarantee is not None:
        upper = guarantee.epsilon(claim.delta)
        shown = replace(shown, exact=upper, ratio=_ratio(upper, claim.epsilon))
        if upper <= limit:
            why = f"no change within the sensitivity exceeds the claimed {claim.epsilon:.4g}"
            return replace(shown, verdict=Verdict.NOT_REFUTED, why=why)
    if claim.sampled:
        why = "mini-batches are secret, which the view bound does not credit"
        return replace(shown, verdict=Verdict.INCONCLUSIVE, why=why)
    if shown.least is not None and shown.least > limit:
        why = f"epsilon {shown.least:.4g} is attained, but {claim.epsilon:.4g} is claimed"
        return replace(shown, verdict=Verdict.REFUTED, why=why)
    return replace(shown, verdict=Verdict.INCONCLUSIVE, why=_between(shown))


def _between(comparison: Comparison) -> str:
    exact = comparison.exact
    least = comparison.least
    if exact is None:
        basis = comparison.bound.basis
        wanted = "; specify --smoothness" if basis is not None and basis.wants_smoothness else ""
        return f"there is no epsilon per record to compare with the claim{wanted}"
    if least is None:
        return f"epsilon is at most {exact:.4g}, but it is not known whether this is attained"
    return f"epsilon is between {least:.4g} and {exact:.4g}, and so is the claim"


def worst(found: Sequence[Comparison], by_node: bool = True) -> list[Comparison]:
    """Return, for each node and kind of adversary, the first comparison with the largest mu."""
    best: dict[tuple[int, str, bool], Comparison] = {}
    for one in found:
        node = one.bound.node if by_node else 0
        key = (node, one.threat.kind, one.bound.mu is None)
        if key not in best or _exceeds(one.bound, best[key].bound):
            best[key] = one
    return list(best.values())


def _exceeds(bound: ViewBound, other: ViewBound) -> bool:
    return bound.rank > other.rank * (1 + ROUNDING)


def alike(found: Sequence[Comparison]) -> dict[int, int]:
    """Return nodes whose views all equal those of another node by symmetry: node -> that node."""
    likes: dict[int, set[int | None]] = {}
    for one in found:
        node = one.bound.node
        other = None
        if one.like is not None and one.like.node != node:
            other = one.like.node
        likes.setdefault(node, set()).add(other)
    same = {}
    for node, others in likes.items():
        if len(others) == 1:
            (only,) = others
            if only is not None:
                same[node] = only
    return same


def _strongest(claims: Sequence[Claim], threat: Threat) -> Claim | None:
    mine = [claim for claim in claims if claim.pair is None or _is_pair(claim.pair, threat)]
    return min(mine, key=lambda claim: claim.epsilon or 0.0, default=None)


def _is_pair(pair: tuple[int, int], threat: Threat) -> bool:
    curious, target = pair
    adversary = threat.adversary
    if adversary.hears != "none" or adversary.corrupt != {curious}:
        return False
    return threat.node == target


def _ratio(exact: float, claimed: float) -> float:
    if claimed == math.inf:
        return 0.0
    if claimed:
        return exact / claimed
    if exact:
        return math.inf
    return 1.0
