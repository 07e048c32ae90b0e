"""Constants of PDMM that an adversary does not know, computed from the messages it observes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray

from leakaudit.core.adversary import View
from leakaudit.core.evidence import Evidence, Origin
from leakaudit.core.trace import Json
from leakaudit.protocols import quiet_directions
from leakaudit.protocols.dual_messages import Around, DualMessages
from leakaudit.protocols.quiet_directions import Measured, NodeFit, Quiet

# Node i has d neighbours j and models w; D_ij is the change of z_{j|i} that it sends, D_ji that of
# z_{i|j} which it receives, S = sum_j B z_{i|j}, P = rho w, and x' is x in the next round.
#
# theta. The update of z reads, for every neighbour,
#
#     B ( D_ij' - D_ij - theta (D_ji - D_ij) ) = 2 theta (P' - P),
#
# whose right side is the same for all neighbours. Two of them give theta, and then the changes of
# P.
#
# The local update. Every variant is, with the gradient of the loss without its l2 term (a weighted
# mean over the k_max steps),
#
#     P' = A_d P - B_d (S + gradient),     (1 - A_d) / B_d = d + q,     q = l2 / rho,
#
#     gradient   A_d = (1 - a (d + q))^k_max     a = alpha rho
#     quadratic  A_d = (m - q) / (m + d)         m = mu / rho
#     exact      A_d = 0                         (the gradient is that at w')
#
# In directions in which every gradient is zero (`quiet_directions`) this is a linear regression for
# A_d and q. Nodes of one degree give one A_d: k_max steps then cannot be told from one larger step,
# nor from a quadratic approximation, but the mean gradient is the same for all of them.
#
# The scale. (w, rho, alpha, mu, f(w)) and (c w, rho / c, c alpha, mu / c, c f(w / c)) send the same
# messages: rho is determined only through l2 (q), or through the known start w0 of a node whose z^0
# is known. Otherwise the declaration uses rho = 1, which leaves all gradients as they are and
# multiplies the models by rho.

Array = NDArray[np.float64]

ROUNDS = 24  # rounds, degrees and nodes of each degree that are examined: choices
NODES = 4
DEGREES = 4
STEPS = 4096  # largest k_max that is looked for: a choice
# Relative error above which a constant is not determined: a choice, far above what rounding leaves,
# which is 1e-15 to 1e-10 in float64. The factor is that of the number format's rounding.
CLOSE = 1e-6
ROUNDINGS = 1e3
GRID = 1e-6  # distance from whole multiples of a quantizer's cell, in cells: a choice
CELLS = 1e9  # largest number of a cell: rounding hides larger ones
ROUNDED = 4.0  # largest rounding error of a message, relative to its size and format: a choice
LARGE = 8  # large multiples of a cell that show how fine they are, and a divisor that none has by
COARSER = 8  # chance: 8 random numbers are multiples of 8 with probability 6e-8. Choices
OFF = 0.05  # distance, in cells, above which rounding hides a quantizer's cells: a choice


@dataclass(frozen=True)
class ComputedConstants:
    """Constants that an adversary computed, and those that it could not.

    Attributes:
        values: What the declaration may use for the unknown constants. If `scaled`, or if several
            updates explain the messages, this is one representative of all: the determined
            gradients are the same for each of them.
        evidence: For every unknown constant, its value and residual, or why it is not determined.
        error: Largest relative error of what the values rest on.
        scaled: Whether models are known only up to a common factor.
        premise: The only declared value that shows the scale of those constants whose origin is
            `Origin.DECLARED`; empty if there are none.
    """

    values: Mapping[str, Json]
    evidence: tuple[Evidence, ...]
    error: float = 0.0
    scaled: bool = False
    premise: str = ""

    @property
    def sentence(self) -> str:
        """What is known of the unknown constants, each reason once; empty if there are none."""
        found = list[str]()
        resting = list[str]()
        reasons = defaultdict[str, list[str]](list)
        for one in self.evidence:
            if one.origin is Origin.UNKNOWN:
                reasons[one.detail].append(one.subject)
                continue
            value = f"{one.subject} = {shown(self.values[one.subject])}"
            (resting if one.origin is Origin.DECLARED else found).append(value)
        said = []
        if found:
            said.append(
                f"computed from the messages: {', '.join(found)} (relative error at most "
                f"{self.error:.0e}, also in rounds that were not used)"
            )
        if resting:
            said.append(f"{', '.join(resting)} if {self.premise}, which alone shows their scale")
        said += [f"not determined: {', '.join(names)} ({why})" for why, names in reasons.items()]
        return "; ".join(said)

    def why_not(self, name: str) -> str:
        """Return why a constant is not determined; empty if nothing was said about it."""
        for one in self.evidence:
            if one.subject == name and one.origin is Origin.UNKNOWN:
                return one.detail
        return ""


def shown(value: Json) -> str:
    """Return a constant as a report shows it."""
    return f"{value:.10g}" if isinstance(value, float) else str(value)


class _Missing(Exception):
    """A constant is not determined, and why."""


def computed(view: View, unknown: frozenset[str]) -> ComputedConstants:
    """Return what the observed messages say about unknown constants of PDMM.

    Args:
        view: What the adversary observes, and which constants it knows.
        unknown: Names of the constants that it does not know.
    """
    return _Search(view, unknown).result


@dataclass
class _Search:
    view: View
    unknown: frozenset[str]
    values: dict[str, Json] = field(default_factory=dict)
    evidence: dict[str, Evidence] = field(default_factory=dict)
    errors: list[float] = field(default_factory=list)
    _of_rho: str = ""  # what shows rho
    _scales: list[str] = field(default_factory=list)  # declared values that show it, and agree

    @cached_property
    def result(self) -> ComputedConstants:
        scaled = False
        try:
            self._visible()
            self._active()
            self._quantizer()
            theta = self._theta()
            scaled = self._update(theta)
        except _Missing as why:
            for name in self.unknown - self.evidence.keys() - self.values.keys():
                self._unknown(name, str(why))
        unused = set[str]()
        update = self.values.get("update", self._known_update)
        if update is not None and "update" not in self.not_determined:
            unused = {"alpha", "k_max", "mu"} - set(USED[str(update)])
        said = tuple(self.evidence[name] for name in sorted(self.evidence.keys() - unused))
        error = max(self.errors, default=0.0)
        return ComputedConstants(self.values, said, error, scaled, self._premise)

    @property
    def _premise(self) -> str:
        """The only declared value that shows the scale, if no other one confirms it."""
        return self._scales[0] if len(self._scales) == 1 else ""

    @property
    def not_determined(self) -> set[str]:
        """Constants of which it was said that they are not determined."""
        return {one.subject for one in self.evidence.values() if one.origin is Origin.UNKNOWN}

    # --- what is said, and what is known ----------------------------------------------------------

    def _found(self, name: str, value: Json, detail: str, error: float = 0.0) -> None:
        if name in self.unknown:
            self.values[name] = value
            says = f"{shown(value)}, computed from them: {detail}"
            self.evidence[name] = Evidence(name, Origin.VERIFIED, says)
            self.errors.append(error)

    def _measured(self, name: str, found: Measured, how: str) -> None:
        value = found.rounded
        error = (found.error + abs(value - found.value)) / abs(value)
        self._found(name, value, f"{how}; relative error {error:.0e}", error)

    def _with_scale(self, name: str, found: Measured, how: str) -> None:
        """Note a constant that rests on the scale of the models."""
        self._measured(name, found, how)
        if self._premise and name in self.unknown:
            says = f"{self.evidence[name].detail}; if {self._premise}, which alone shows its scale"
            self.evidence[name] = Evidence(name, Origin.DECLARED, says)

    def _unknown(self, name: str, why: str) -> None:
        if name in self.unknown:
            self.evidence[name] = Evidence(name, Origin.UNKNOWN, why)

    def _number(self, name: str) -> float | None:
        """Return a constant that the adversary knows; None if it does not."""
        return None if name in self.unknown else self.view.number(name)

    @property
    def _eps(self) -> float:
        return float(torch.finfo(self.view.dtype).eps)

    @property
    def limit(self) -> float:
        """Largest relative error of a constant that counts as determined."""
        return max(CLOSE, ROUNDINGS * self._eps)

    # --- what is visible --------------------------------------------------------------------------

    def _visible(self) -> None:
        if not self._messages.kind:
            raise _Missing("no message is observed")
        changes = self._messages.kind == "dz"
        what = "changes of z" if changes else "z"
        self._found("differential", changes, f"the messages contain {what}")
        if self._messages.encrypted_start:
            self._found("z0", 1.0, "")
            self._unknown("z0", "an encrypted start is sent in round 0, whose size does not matter")
        else:
            self._found("z0", 0.0, "no start is sent in round 0")

    def _active(self) -> None:
        """Count the nodes that send in a round, which is visible on all channels."""
        if "active" not in self.unknown:
            return
        graph = self.view.graph
        rounds = range(max(1, self.view.rounds.start), self.view.rounds.stop)
        senders: dict[int, set[int]] = {t: set() for t in rounds}
        observed = {(src, dst) for src, dst, _ in self.view.channels}
        for node in range(graph.nodes):
            if not any((node, j) in observed for j in graph.neighbours[node]):
                self._unknown("active", "not all nodes are observed")
                return
            for j in graph.neighbours[node]:
                for t in self._messages.sent(node, j):
                    senders[t].add(node)
        counts = {len(some) for some in senders.values()}
        if len(counts) > 1:
            self._unknown("active", "not in every round equally many nodes send")
            return
        (count,) = counts
        self._found("active", 0 if count == graph.nodes else count, "who sends is visible")

    def _quantizer(self) -> None:
        if "quantize" not in self.unknown:
            return
        some = [np.concatenate([a.sent.ravel(), a.came.ravel()]) for a in self._around]
        cell = _cell(np.concatenate(some), self._eps)
        if cell is None:
            says = "the messages lie on no grid that is coarser than their own rounding"
            self._found("quantize", 0.0, says)
        else:
            self._measured("quantize", cell, "the messages are multiples of it")

    # --- messages ---------------------------------------------------------------------------------

    @cached_property
    def _messages(self) -> DualMessages:
        return DualMessages(self.view)

    @cached_property
    def _quiet(self) -> Quiet:
        return quiet_directions.of(self.view)

    @cached_property
    def _around(self) -> list[Around]:
        """What is observed around some nodes of each degree, all of whose messages are."""
        messages = self._messages
        by_degree = defaultdict[int, list[int]](list)
        turns = {}
        for node in range(self.view.graph.nodes):
            turns[node] = len(messages.turns(node))
            if turns[node]:
                by_degree[self.view.graph.degree(node)].append(node)
        if not by_degree:
            raise _Missing("of no node all messages are observed")
        if max(turns.values()) < 2:
            raise _Missing("too few rounds are observed")
        # Nodes whose start is known determine more.
        for degree, mine in by_degree.items():
            by_degree[degree] = [node for node in mine if turns[node] > 1]
            by_degree[degree].sort(key=lambda node: (not messages.starts(node), node))
        known = [degree for degree, mine in by_degree.items() if mine]
        order = sorted(known, key=lambda d: (not messages.starts(by_degree[d][0]), d))
        found = []
        for degree in order[:DEGREES]:
            for node in by_degree[degree][:NODES]:
                found.append(messages.around(node, ROUNDS, self._quiet.columns))
        return found

    # --- theta ------------------------------------------------------------------------------------

    def _theta(self) -> Measured:
        known = self._number("theta")
        if known is not None:
            return Measured(known)
        over: list[tuple[Array, Array]] = []
        for one in self._around:
            change = one.sign * (one.sent[:, 1:] - one.sent[:, :-1])
            apart = one.sign * (one.came[:, :-1] - one.sent[:, :-1])
            over += [(change[k] - change[0], apart[k] - apart[0]) for k in range(1, len(change))]
        if not over:
            raise _Missing("theta requires a node with two neighbours whose messages are observed")
        found = _slope(over)
        if not found.relative <= self.limit:
            raise _Missing(f"theta: {self._inexact(found)}")
        if 1 < found.value <= 1 + quiet_directions.AGREE * found.error:
            found = Measured(1.0, found.error)
        self._measured("theta", found, "what a node sends to two neighbours agrees")
        return found

    def _inexact(self, found: Measured) -> str:
        cell = self.values.get("quantize", self._number("quantize"))
        why = "the messages do not satisfy the equations of the protocol"
        if isinstance(cell, float) and cell > 0:
            why = f"the messages are rounded to multiples of {cell:g}"
        if not math.isfinite(found.value):
            return "the messages do not change"
        return f"{why}, which leaves {found.value:.3g} with an error of {found.error:.1g}"

    # --- the local update -------------------------------------------------------------------------

    def _update(self, theta: Measured) -> bool:
        """Find the constants of the local update; return whether the scale is unknown."""
        needed = {"rho", "update", "alpha", "k_max", "mu"} & self.unknown
        if not needed:
            return False
        if self._known_update == "exact" and self._number("rho") is not None:
            return False
        groups = defaultdict[int, list[Around]](list)
        for one in self._around:
            groups[one.degree].append(one)
        rho = self._number("rho")
        q = None
        if self._quiet.l2 == 0:
            q = Measured(0.0)
        elif rho is not None:
            q = Measured(self._quiet.l2 / rho)
        if self._known_update == "exact" and q is not None:  # nothing shows rho
            return self._scale()
        fits = self._fits(theta.value, q, groups)
        if q is None:
            q = min((one.q for one in fits.values()), key=lambda one: one.error)
        return self._constants(theta, q, fits, groups)

    def _fits(
        self, theta: float, q: Measured | None, groups: Mapping[int, Sequence[Around]]
    ) -> dict[int, NodeFit]:
        """Return the most accurate coefficients of each degree; nodes have to agree."""
        found: dict[int, NodeFit] = {}
        why = ""
        for degree, some in groups.items():
            good = []
            for one in some:
                fit = self._quiet.fit(one, theta, None if q is None else q.value, self._eps)
                if isinstance(fit, str):
                    why = why or fit
                elif fit.a.error <= self.limit:
                    good.append(fit)
                else:
                    why = why or f"the local update: {self._inexact(fit.a)}"
            if good:
                best = min(good, key=lambda one: one.a.error)
                found[degree] = best
                if not all(best.a.agrees(one.a.value, one.a.error) for one in good):
                    raise _Missing(f"the nodes with {degree} neighbours contradict each other")
        if not found:
            raise _Missing(why)
        return found

    @property
    def _known_update(self) -> str | None:
        return None if "update" in self.unknown else str(self.view.constant("update"))

    def _constants(
        self,
        theta: Measured,
        q: Measured,
        fits: Mapping[int, NodeFit],
        groups: Mapping[int, Sequence[Around]],
    ) -> bool:
        slopes = {degree: one.a for degree, one in fits.items()}
        self.errors += [one.error for one in slopes.values()]
        rho = self._penalty(theta, q, fits, groups)
        ways = list(self._ways(slopes, q, rho))
        if not ways:
            listed = ", ".join(f"{one.value:.6g} ({d})" for d, one in slopes.items())
            raise _Missing(
                f"no local update of the protocol multiplies the models by {listed} per round "
                "(number of neighbours in brackets)"
            )
        way = ways[0]
        if len(ways) > 1:
            return self._several(ways, slopes, rho)
        if rho is None:
            self._of_rho = "the known step shows it"
            rho = way.scale(self._number("alpha"), self._number("mu"))
        fitted = f"the {self._quiet.name} show no gradient"
        if len(slopes) > 1:
            fitted += f", for nodes of {len(slopes)} degrees"
        also = ""
        if way.update == "exact":
            also = ", unless gradient steps reach it up to rounding"
        self._found("update", way.update, f"no other explains the messages{also}; {fitted}")
        if way.update == "gradient":
            self._found("k_max", way.steps, f"no other number explains the messages; {fitted}")
        if rho is None:
            return self._scale(way)
        if not rho.relative <= self.limit:
            raise _Missing(f"rho is known only to {rho.relative:.1g}")
        if self._number(way.constant) is not None:
            self._scales.append(f"{way.constant} = {self._number(way.constant):g}, as known")
        self._with_scale("rho", rho, self._of_rho)
        if way.scaled is not None:
            self._with_scale(way.constant, way.unscaled(rho), fitted)
        return False

    def _penalty(
        self,
        theta: Measured,
        q: Measured,
        fits: Mapping[int, NodeFit],
        groups: Mapping[int, Sequence[Around]],
    ) -> Measured | None:
        """Return rho, if the messages determine it."""
        known = self._number("rho")
        if known is not None:
            self._scales.append(f"rho = {known:g}, as known")
            if self._quiet.l2:  # the fit took its multiple, and was checked
                self._scales.append(f"l2 = {self._quiet.l2:g}, as declared")
            return Measured(known)
        options = []
        by_l2 = None
        if self._quiet.l2 and q.value > 0:
            by_l2 = Measured(self._quiet.l2) / q
            options.append(by_l2)
        if self.view.knows("w0"):
            start = self._quiet.start(self.view)
            for degree, fit in fits.items():
                for one in groups[degree]:
                    # Rows of the first layer are quiet for the records of one node only.
                    mine = fit.around is one or self._quiet.classes
                    if one.start is not None and mine:
                        options += self._by_start(theta, one, fit, start)
        good = [one for one in options if one.relative <= self.limit]
        best = min(good, key=lambda one: one.relative, default=None)
        if best is not None:
            implied = self._quiet.l2 / best.value  # that of q
            agree = all(best.agrees(one.value, one.error) for one in good)
            if not (agree and q.agrees(implied, implied * best.relative)):
                raise _Missing(
                    "the declared penalty l2 and the known initial model contradict each other "
                    "about the scale of the models"
                )
        if by_l2 in good:
            self._scales.append(f"l2 = {self._quiet.l2:g}, as declared")
        if any(one is not by_l2 for one in good):
            self._scales.append("the initial model is the known one")
        self._of_rho = "the first round shows the scale of the known initial model"
        if best is not None and best is by_l2:
            shows = f"the declared penalty l2 = {self._quiet.l2:g} shows"
            self._of_rho = f"{shows} the scale of the models"
        return best

    def _by_start(
        self, theta: Measured, one: Around, fit: NodeFit, w0: Array
    ) -> Iterator[Measured]:
        """Yield rho from P^1 = A rho w^0 - B S^0 where every gradient is zero."""
        assert one.start is not None
        there, here = one.start
        moved = one.sent[:, 0] / theta.value - here + there
        p = (one.sign[..., 0] * moved).mean(0) / 2
        pull = (one.sign[..., 0] * here).sum(0)
        y = fit.left(p + fit.b * pull)
        x = fit.left(fit.a.value * w0)
        size = float(np.linalg.norm(x))
        if size > 0 and x.size > 1:
            value = float(x @ y) / size**2
            left = float(np.linalg.norm(y - value * x)) / size
            yield Measured(value, left + abs(value) * fit.a.error)

    def _ways(
        self, slopes: Mapping[int, Measured], q: Measured, rho: Measured | None
    ) -> Iterator[_Way]:
        """Yield the local updates that explain A_d of all degrees d."""
        known = self._known_update
        vanishes = all(one.agrees(0.0, 1e-12) for one in slopes.values())
        if known in (None, "exact") and vanishes:
            yield _Way("exact", 1, None)
            if len(slopes) > 1:  # gradient steps do so for several degrees only if they reach it
                return
        if known in (None, "quadratic"):
            each = [_curvature(d, one, q) for d, one in slopes.items()]
            together = _together(each)
            if together is not None and self._consistent("mu", together, rho):
                yield _Way("quadratic", 1, together)
        if known in (None, "gradient"):
            given = self._number("k_max")
            counts: Iterable[int] = range(1, STEPS + 1) if given is None else [int(given)]
            for count in counts:
                for together in _rates(count, slopes, q):
                    if self._consistent("alpha", together, rho):
                        yield _Way("gradient", count, together)

    def _consistent(self, name: str, scaled: Measured, rho: Measured | None) -> bool:
        """Return whether a multiple of a known alpha or mu agrees with it."""
        known = self._number(name)
        if known is None or rho is None:
            return True
        implied = known * rho.value if name == "alpha" else known / rho.value
        return scaled.agrees(implied, abs(implied) * rho.relative)

    def _several(
        self, ways: Sequence[_Way], slopes: Mapping[int, Measured], rho: Measured | None
    ) -> bool:
        """Choose a representative of several updates, and say that they cannot be told apart."""
        counts = sorted({way.steps for way in ways if way.update == "gradient"})
        updates = sorted({way.update for way in ways})
        (degree, slope), *_ = slopes.items()
        also = ""
        if len(updates) > 1:
            also = f", as does {' or '.join(one for one in updates if one != 'gradient')}"
        why = (
            f"only (1 - alpha (rho d + l2))^k_max = {slope.value:.6g} is, for d = {degree} "
            f"neighbours: {_many(counts)} gradient steps explain the messages{also}; the mean "
            "gradient of a round is the same for all of them"
        )
        for name in ("update", "k_max", "alpha", "mu"):
            self._unknown(name, why)
        if len(updates) == 1 and "gradient" in updates:
            self._found("update", "gradient", "no other update explains the messages")
        # Two steps or more: single gradients are not known to be leaked, unless A = 0: only the
        # last gradient then remains.
        several = [way for way in ways if way.update == "gradient" and way.steps > 1]
        way = next((way for way in ways if way.update == "exact"), (several or ways)[0])
        scale = rho or Measured(1.0)
        self.values.update(update=way.update, k_max=way.steps, rho=scale.value)
        if way.scaled is not None:
            self.values[way.constant] = way.unscaled(scale).value
        if rho is None:
            self._unknown("rho", SCALE)
        else:
            self._with_scale("rho", rho, self._of_rho)
        return True  # local steps are not known, so nothing may be computed again from them

    def _scale(self, way: _Way | None = None) -> bool:
        """Say that only products with rho are determined, and use rho = 1."""
        self.values["rho"] = 1.0
        self._unknown("rho", SCALE)
        if way is not None and way.scaled is not None:
            value = way.scaled.rounded
            self.values[way.constant] = value
            product = "alpha rho" if way.update == "gradient" else "mu / rho"
            self._unknown(way.constant, f"{SCALE}; {product} = {value:.10g}")
        return True


# Constants of each local update beside rho.
USED = {"gradient": ("alpha", "k_max"), "quadratic": ("mu",), "exact": ()}
SCALE = (
    "only products with rho are determined: models c times as large, with rho / c and the loss "
    "c f(w / c), send the same messages; what the form of the loss adds is not used"
)


@dataclass(frozen=True)
class _Way:
    """A local update that explains the messages."""

    update: str
    steps: int
    scaled: Measured | None  # alpha rho, or mu / rho; None if it has no constant

    @property
    def constant(self) -> str:
        """The name of its constant."""
        return "alpha" if self.update == "gradient" else "mu"

    def unscaled(self, rho: Measured) -> Measured:
        """Return its constant, for a rho."""
        assert self.scaled is not None
        return self.scaled / rho if self.update == "gradient" else self.scaled * rho

    def scale(self, alpha: float | None, mu: float | None) -> Measured | None:
        """Return rho, for a known alpha or mu; None if neither is known."""
        if self.scaled is None:
            return None
        if self.update == "gradient" and alpha is not None:
            return self.scaled / Measured(alpha)
        if self.update == "quadratic" and mu is not None:
            return Measured(mu) / self.scaled
        return None


def _many(counts: Sequence[int]) -> str:
    if len(counts) > 3:
        return f"{counts[0]}, {counts[1]}, {counts[2]} and more"
    return " or ".join(map(str, counts)) or "no number of"


def _curvature(degree: int, slope: Measured, q: Measured) -> Measured:
    """Return m = mu / rho of A = (m - q) / (m + d)."""
    rest = 1 - slope.value
    if rest <= 0:
        return Measured(math.nan, math.inf)
    value = (q.value + slope.value * degree) / rest
    return Measured(value, (q.error + slope.error * (degree + abs(value))) / rest)


def _rates(count: int, slopes: Mapping[int, Measured], q: Measured) -> Iterator[Measured]:
    """Yield a = alpha rho with (1 - a (d + q))^count = A_d for all degrees d."""
    each: list[list[Measured]] = []
    for degree, slope in slopes.items():
        total = degree + q.value
        options = []
        for root in _roots(slope.value, count):
            value = (1 - root) / total
            size = abs(slope.value)
            error = ((size + slope.error) ** (1 / count) - size ** (1 / count)) / total
            options.append(Measured(value, error + abs(value) * q.error / total))
        each.append(options)
    for some in product(*each):
        together = _together(some)
        if together is not None:
            yield together


def _roots(value: float, count: int) -> list[float]:
    """Return the real numbers between -1 and 1 whose power is a value."""
    if not abs(value) < 1:
        return []
    if value == 0:
        return [0.0]
    root = abs(value) ** (1 / count)
    if count % 2:
        return [math.copysign(root, value)]
    return [root, -root] if value > 0 else []


def _together(each: Sequence[Measured]) -> Measured | None:
    """Return the most accurate of several determinations if all agree and are positive."""
    if not each or not all(one.value > 0 and math.isfinite(one.error) for one in each):
        return None
    best = min(each, key=lambda one: one.error)
    return best if all(best.agrees(one.value, one.error) for one in each) else None


def _slope(pairs: Sequence[tuple[Array, Array]]) -> Measured:
    """Return the slope of y = slope x, from every other row of all y and x, (T, c) each.

    It is checked on the rest.
    """
    y, x, held_y, held_x = (
        np.concatenate([pair[one][first::2].ravel() for pair in pairs])
        for first in (0, 1)
        for one in (0, 1)
    )
    size = float(np.linalg.norm(x))
    if size == 0:
        return Measured(math.nan, math.inf)
    value = float(x @ y) / size**2
    left = float(np.linalg.norm(y - value * x)) / size
    others = float(np.linalg.norm(held_x))
    if others == 0:
        return Measured(value, math.inf)
    return Measured(value, max(left, float(np.linalg.norm(held_y - value * held_x)) / others))


def _cell(values: Array, eps: float) -> Measured | None:
    """Return the largest number of which all values are multiples; None if there is none.

    Args:
        eps: Relative rounding error of the largest value; smaller ones may be differences of it.
    """
    sizes = np.unique(np.abs(values))
    largest = float(sizes[-1])
    rounding = ROUNDED * eps * largest
    sizes = sizes[sizes > rounding]
    if len(sizes) < 2:
        return None
    gaps = np.diff(np.concatenate([[0.0], sizes]))
    gaps = gaps[gaps > max(largest / CELLS, rounding)]  # equal multiples differ by their rounding
    if not len(gaps):
        return None
    cell = float(gaps.min())
    inexact = rounding / cell + GRID  # relative error of the cell
    for _ in range(3):  # more accurate with every larger multiple
        near = sizes[sizes < cell / inexact / 8]
        count = np.round(near / cell)
        if not count.any():
            return None
        cell = float((near * count).sum() / (count**2).sum())
        inexact = GRID
    multiples = np.round(sizes / cell)
    allowed = rounding / cell + GRID
    if bool((np.abs(sizes / cell - multiples) > allowed).any()):
        return None
    if allowed > OFF or largest / cell > CELLS or _floating(multiples):
        return None
    # Least squares of multiples with errors of at most `rounding`.
    error = rounding * math.sqrt(len(near)) / float(np.linalg.norm(count))
    return Measured(cell, error)


def _floating(multiples: Array) -> bool:
    """Return whether large multiples are coarser than small ones, as in half precision."""
    large = multiples[multiples > multiples[-1] / 4].astype(np.int64)
    return len(large) >= LARGE and int(np.gcd.reduce(large)) % COARSER == 0
