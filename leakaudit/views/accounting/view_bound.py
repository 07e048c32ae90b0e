"""View bounds: the mu, and epsilon, of an adversary's view of each node."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from leakaudit._util.plain import encoded
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError, Unexplained
from leakaudit.core.progress import step
from leakaudit.core.trace import Json
from leakaudit.core.verdict import APART, Holds
from leakaudit.protocols.declared import Protocol
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Adjacency, Guarantee
from leakaudit.theory.bounds.losses import Losses
from leakaudit.theory.bounds.mechanisms import Additive
from leakaudit.theory.bounds.releases import Release, composed
from leakaudit.theory.relations import Relations, Turns, Vector, account, drift, largest, reached
from leakaudit.theory.relations.expression import TRUNCATED
from leakaudit.views.accounting import basis as grounds
from leakaudit.views.accounting.basis import Basis
from leakaudit.views.accounting.node_view import NodeView, Views, released, stronger_views

# The adversary's own view is computed first. If it determines every model at which the node
# evaluates gradients (certificate 2), its mu holds for one record. If not, the views of stronger
# adversaries are tried, which determine its own view, so that their mu is an upper bound; and with
# a smoothness, the drift of the gradients is bounded. The smallest upper bound is used. What
# constant and quadratic losses attain is computed as well, so that the truth lies between the two.

# Most choices of batches for which a drift is computed; if there are more, a record is counted in
# every gradient, which is an upper bound. A choice: each costs a pass over the declaration.
DRIFTED = 16
POWERS: Mapping[str, Literal[1, 2]] = {
    "laplace": 1,
    "truncated_laplace": 1,
    "gaussian": 2,
    "truncated_gaussian": 2,
}
LAWS = {(power, law in TRUNCATED): law for law, power in POWERS.items()}
# Kinds of releases up to which their changes are not rounded, and the relative rounding. Choices.
KINDS = 8
ROUNDED = 1e-4
# What is proportional to the sensitivity.
SCALED = ("mu", "attained", "linear", "reached", "node_mu")
CONTRADICTION = (
    "its upper bound is below what records attain, which is a defect of leakaudit; please report it"
)
UNBOUNDED = "messages determine a combination of gradients, or do not bound what a noise hides"
# A smoothness that is tried to see whether there is a bound with one, which no other value changes.
ANY = 1.0


@dataclass(frozen=True)
class ViewBound:
    """The bound on one adversary's view of one node."""

    node: int  # the node that owns the data
    adversary: Adversary
    sensitivity: float  # largest change of one gradient
    delta: float
    # certified upper bound of the parameter of Gaussian differential privacy at record level. None
    # if there is none, for the reason in `basis`.
    mu: float | None = None
    # mu attained by changes that may differ from round to round; None if `mu` is only an upper
    # bound
    attained: float | None = None
    # mu attained by a record whose gradients are constant and change by the sensitivity
    linear: float | None = None
    # as `linear`, also by quadratic losses within the specified smoothness
    reached: float | None = None
    epsilon: float | None = None
    # mu if all data of the node change, and any two of its gradients, wherever evaluated, differ by
    # at most the sensitivity
    node_mu: float | None = None
    node_epsilon: float | None = None
    # the releases of the node, if no mu describes their noise: how far a changed record moves them,
    # and how far a change of all data of the node does
    releases: tuple[Release, ...] = ()
    node_releases: tuple[Release, ...] = ()
    # what a record attains whose gradients are constant and change in one coordinate
    least: Losses | None = None
    basis: Basis | None = None  # the basis of these values; None if there are none
    # certificate of every gradient, see `leakaudit.theory.relations.Bound`
    certificate: tuple[int, ...] = ()
    leaking: tuple[str, ...] = ()  # combinations of gradients without noise, if mu is inf
    enters: int | None = None  # largest number of the node's gradients that one record enters
    gradients: int | None = None  # number of gradients of the node
    # whether a record counts in every mini-batch although it is not in all of them, because the
    # declaration does not say in which. Nothing is then known to be attained.
    every_batch: bool = False
    # whether the sensitivity is unknown: every finite mu is a multiple of it, computed for 1, and
    # there is no epsilon
    per_unit: bool = False
    rounds: int = 0  # number of rounds that these values cover
    refused: str = ""  # why there are no values, in words

    @property
    def guarantee(self) -> Guarantee | None:
        """The guarantee for one record; None if there is none."""
        if self.mu is not None:
            return Gdp(self.mu, Adjacency.REPLACE)
        return composed(self.releases, Adjacency.REPLACE) if self.releases else None

    @property
    def node_guarantee(self) -> Guarantee | None:
        """The same for all data of the node."""
        if self.node_mu is not None:
            return Gdp(self.node_mu, Adjacency.NODE)
        return composed(self.node_releases, Adjacency.NODE) if self.node_releases else None

    @property
    def holds(self) -> Holds:
        """Whether `mu` is exact, an upper bound, or absent."""
        if self.releases:
            return Holds.AT_MOST
        return Holds.of(self.mu, max(self.attained or 0.0, self.reached or 0.0))

    @property
    def rank(self) -> float:
        """What orders views from harmless to severe; one without any bound may leak everything."""
        if self.refused:
            return math.inf
        return self.largest or 0.0

    @property
    def largest(self) -> float | None:
        """The mu for comparing views: at record level, or of the node, or the attained one.

        Releases without a mu, which all views of a node share, are compared by their epsilon.
        """
        if self.refused:
            return None
        for mu in (self.mu, self.node_mu, self.epsilon, self.node_epsilon):
            if mu is not None:
                return mu
        return self.reached

    @property
    def unit(self) -> str:
        """Whose change is bounded, "record", "node" or "none"; empty if there is no bound."""
        return "" if self.basis is None else self.basis.unit

    def multiple(self, mu: float | None) -> str:
        """Return a mu in words; a multiple of the sensitivity S if that is unknown."""
        if mu is None:
            return "-"
        if self.per_unit and 0 < mu < math.inf:
            return f"{mu:.4g} S"
        return f"{mu:.4g}"

    def to_json(self) -> dict[str, Json]:
        """Plain values; infinity is the text ``inf``."""
        level = ""
        if self.basis is not None:
            level = str(self.basis)
        sensitivity: Json = encoded(self.sensitivity)
        values = {name: getattr(self, name) for name in SCALED}
        multiples: Json = None
        if self.per_unit:
            sensitivity = None
            multiples = {name: encoded(value) for name, value in values.items()}
            values = {name: _unscaled(value) for name, value in values.items()}
        return {
            "node": self.node,
            "adversary": str(self.adversary),
            "sensitivity": sensitivity,
            "delta": self.delta,
            **{name: encoded(value) for name, value in values.items()},
            "per_unit_of_sensitivity": multiples,
            "epsilon": encoded(self.epsilon),
            "node_epsilon": encoded(self.node_epsilon),
            "releases": [_plain(one) for one in self.releases or self.node_releases],
            "level": level,
            "certificate": list(self.certificate),
            "leaking": list(self.leaking),
            "enters": self.enters,
            "gradients": self.gradients,
            "holds": str(self.holds),
            "every_batch": self.every_batch,
            "rounds_priced": self.rounds,
            "refused": self.refused,
        }


def view_bounds(
    protocol: Protocol,
    adversary: Adversary,
    nodes: Sequence[int],
    sensitivity: float = 1.0,
    delta: float = 1e-5,
    smoothness: float | None = None,
    *,
    verified: bool = False,
) -> Iterator[ViewBound]:
    """Yield the bound of every node, over all rounds of the protocol.

    Args:
        sensitivity: Largest change of one gradient, in Euclidean norm, if a record changes and the
            model does not.
    """
    adversary.check(protocol.graph)
    views = Views(protocol, adversary, nodes, smooth=smoothness is not None)
    for k, node in enumerate(nodes):
        protocol.graph.require(node)
        step("nodes", k, len(nodes))
        empty = ViewBound(node, adversary, sensitivity, delta, rounds=protocol.rounds)
        try:
            found = _bound(views, empty, smoothness)
        except LeakauditError as e:
            found = replace(empty, refused=str(e))
        if protocol.unstated and _is_finite(found):
            names = protocol.guessed if verified else protocol.defaulted
            if names:
                found = replace(empty, refused=_guess(protocol, names))
        if protocol.batched and node not in protocol.silent:
            found = _in_every_batch(found)
        if _contradicts(found):
            found = replace(empty, refused=CONTRADICTION)
        yield found
    step("nodes", len(nodes), len(nodes))


def without_scale(found: ViewBound) -> ViewBound:
    """Return a bound that was computed for sensitivity 1, if the sensitivity is unknown.

    Zero and infinity hold for every sensitivity. Everything else is a multiple of it, and has no
    epsilon.
    """
    if found.releases or found.node_releases:
        why = "its releases are priced at a sensitivity, which is unknown; specify --sensitivity"
        return replace(_without_values(found), refused=why)
    if all(_unscaled(mu) == mu for mu in (found.mu, found.node_mu)):
        return found
    epsilon, node_epsilon = found.epsilon, found.node_epsilon
    if _unscaled(found.mu) is None:
        epsilon = None
    if _unscaled(found.node_mu) is None:
        node_epsilon = None
    return replace(found, epsilon=epsilon, node_epsilon=node_epsilon, least=None, per_unit=True)


def _plain(release: Release) -> dict[str, Json]:
    noise = release.noise
    return {
        "law": LAWS[noise.power, noise.width < math.inf],
        "scale": noise.scale,
        "width": encoded(noise.width),
        "moves": release.l2,
        "coordinates": release.dimensions,
        "times": release.times,
    }


def _without_values(found: ViewBound) -> ViewBound:
    """Return the view of a node without any bound."""
    return ViewBound(
        found.node, found.adversary, found.sensitivity, found.delta, rounds=found.rounds
    )


def _unscaled(mu: float | None) -> float | None:
    """Return a mu that holds for every sensitivity; None if it depends on it."""
    if mu in (0.0, math.inf):
        return mu
    return None


def _in_every_batch(found: ViewBound) -> ViewBound:
    if found.leaking:
        return found
    return replace(found, attained=None, linear=None, reached=None, least=None, every_batch=True)


def _is_finite(found: ViewBound) -> bool:
    if found.basis is not None and found.basis.ground == grounds.IDLE:
        return False
    if found.releases or found.node_releases:
        return True
    return any(mu is not None and mu < math.inf for mu in (found.mu, found.node_mu))


def _guess(protocol: Protocol, names: Sequence[str]) -> str:
    values = registry.values(protocol.victim)
    guessed = ", ".join(f"{name} (default {values[name]})" for name in names)
    return (
        f"the recording does not state {guessed}, and the messages depend on it; state it in "
        "params=… of the recording"
    )


def _contradicts(found: ViewBound) -> bool:
    """Return whether records attain more than the upper bound allows.

    The two are computed in different ways, so this would show a defect of leakaudit.
    """
    upper = found.guarantee
    if upper is not None and found.least is not None:
        return found.least.epsilon(found.delta) > upper.epsilon(found.delta) * (1 + APART)
    if found.mu is None or found.reached is None:
        return False
    return found.reached > found.mu * (1 + APART)


def _bound(views: Views, empty: ViewBound, smoothness: float | None) -> ViewBound:
    protocol = views.protocol
    node = empty.node
    if node in empty.adversary.corrupt:
        raise LeakauditError("the adversary controls this node")
    if node in protocol.silent:
        return _with_epsilons(_idle(empty))
    if protocol.missing:
        return _faulty(protocol, empty, smoothness)
    try:
        own = views.own(node)
    except Unexplained as e:
        return _undeclared(views, empty, smoothness, e)
    except LeakauditError as e:
        return _elsewhere(protocol, empty, smoothness, str(e))
    turns = own.turns(protocol)
    count = own.count
    found = replace(empty, certificate=own.bound.certificate, gradients=count, enters=count)
    if own.bound.leaking:
        return _with_epsilons(_leak(found, own))
    found = replace(_reached(found, own, turns, smoothness), enters=_most(turns, count))
    if own.lowest == 2:
        found = _least(found, [own], turns, smoothness)
    else:
        found = _least(found, [own, *stronger_views(protocol, node)], turns, smoothness)
    if own.lowest == 2 and not turns:
        found = replace(found, attained=found.sensitivity * own.bound.attained)
    return found


def _idle(empty: ViewBound) -> ViewBound:
    return replace(
        empty,
        mu=0.0,
        attained=0.0,
        linear=0.0,
        reached=0.0,
        node_mu=0.0,
        basis=Basis(grounds.IDLE),
        enters=0,
        gradients=0,
    )


def _leak(found: ViewBound, own: NodeView) -> ViewBound:
    """Return the bound of a view with a combination of gradients without noise."""
    # For constant gradients, a record moves all of them by one vector. A difference of two of them,
    # which may be what leaks, contains no information about it.
    linear = math.inf
    if not any(sum(one.terms.values()) for one in own.bound.leaking):
        linear = found.sensitivity * _quadratic(own, range(own.count), 0.0)
    return replace(
        found,
        mu=math.inf,
        attained=math.inf,
        linear=linear,
        reached=math.inf,
        node_mu=math.inf,
        basis=Basis(grounds.LEAK),
        leaking=tuple(map(str, own.bound.leaking)),
    )


def _reached(
    found: ViewBound, own: NodeView, turns: Turns | None, smoothness: float | None
) -> ViewBound:
    """Return the bound with what records of simple losses attain, which are lower bounds."""
    entered: Sequence[int] = range(own.count)
    least = own.bound.attained
    fisher = own.bound.fisher
    if fisher is not None and turns:
        least, _, entered = largest(fisher, turns)
    elif fisher is not None:
        # All gradients change by one vector of length 1: mu^2 is the sum of M. Rounding may make it
        # negative.
        with np.errstate(over="ignore"):  # it is then infinite
            least = math.sqrt(max(float(fisher.sum()), 0.0))
    linear = found.sensitivity * least
    if smoothness:
        # Quadratic losses of the largest curvature that the smoothness allows, concave and convex.
        concave = _quadratic(own, entered, -smoothness)
        convex = _quadratic(own, entered, smoothness)
        least = max(least, concave, convex)
    return replace(found, linear=linear, reached=found.sensitivity * least)


def _least(
    found: ViewBound, views: Sequence[NodeView], turns: Turns | None, smoothness: float | None
) -> ViewBound:
    """Return the bound with the smallest upper bound of all views, for records and for the node.

    The adversary's view is a function of each of these views, so the bound of any of them is an
    upper bound of its own.
    """
    record_mu = math.inf
    basis = Basis(grounds.STEERED)
    node_mu = math.inf
    not_smooth = ""
    helps = False  # whether some smoothness gives a bound
    for view in views:
        mu = math.inf
        now = Basis(grounds.MODELS_SEEN, view.stronger)
        if view.lowest == 2:
            mu = _of_record(view, turns)
        elif view.lowest == 1 and not helps:
            now = Basis(grounds.SMOOTH, view.stronger, smoothness)
            try:
                if smoothness is not None:
                    mu = _drifted(view, turns, smoothness)
                    not_smooth = UNBOUNDED if mu == math.inf else ""
                else:
                    drift(view.knowledge, view.targets, 1.0, ANY)
                    helps = True
            except LeakauditError as e:
                not_smooth = str(e)
        if mu < record_mu:
            record_mu = mu
            basis = now
        if view.lowest >= 1:
            node_mu = min(node_mu, view.bound.mu)
    moved = found.sensitivity
    if record_mu < math.inf:
        found = replace(found, mu=moved * record_mu)
        if not record_mu:
            basis = replace(basis, ground=grounds.UNSEEN)
    elif node_mu < math.inf:
        basis = Basis(grounds.REACTING, not_smooth="" if helps else not_smooth)
    else:
        basis = Basis(grounds.STEERED, not_smooth=not_smooth)
    if node_mu < math.inf:
        found = replace(found, node_mu=moved * node_mu)
    return _with_epsilons(replace(found, basis=basis))


def _with_epsilons(found: ViewBound) -> ViewBound:
    guarantee = found.guarantee
    if guarantee is not None:
        found = replace(found, epsilon=guarantee.epsilon(found.delta))
    of_node = found.node_guarantee
    if of_node is not None:
        found = replace(found, node_epsilon=of_node.epsilon(found.delta))
    return found


def _of_record(view: NodeView, turns: Turns | None) -> float:
    """Return the mu at record level of a view that determines every model, at sensitivity 1."""
    if turns is None or view.bound.fisher is None:
        return view.bound.mu
    _, upper, _ = largest(view.bound.fisher, turns)
    return min(view.bound.mu, upper)


def _drifted(view: NodeView, turns: Turns | None, smoothness: float) -> float:
    """Return the mu at record level of a view without the models, for Lipschitz gradients.

    It is for sensitivity 1. A record of a mini-batch enters only some gradients. If there are few
    choices, the bound of each is computed; otherwise, the record is counted in all of them, which
    is an upper bound.
    """
    every = range(len(view.targets))
    patterns: list[Sequence[int]] = [every]
    if turns and math.prod(len(choices) for choices in turns) <= DRIFTED:
        patterns = [tuple(itertools.chain(*chosen)) for chosen in itertools.product(*turns)]
    worst = 0.0
    for entered in patterns:
        moves = [float(k in entered) for k in every]
        mu, limits = drift(view.knowledge, view.targets, moves, smoothness)
        aligned = account(view.knowledge, view.targets, limits, certify=False)
        worst = max(worst, min(mu, aligned.mu))
    return worst


def _quadratic(view: NodeView, entered: Sequence[int], curvature: float) -> float:
    """Return the mu that least-squares losses of this curvature attain.

    It is 0, a trivial lower bound, if it cannot be computed.
    """
    try:
        return reached(view.knowledge, view.targets, entered, curvature)
    except LeakauditError:
        return 0.0


def _undeclared(
    views: Views, empty: ViewBound, smoothness: float | None, missing: Unexplained
) -> ViewBound:
    """Return the bound of a view that contains vectors that the declaration does not explain.

    Lower values are those of the view whatever these vectors contain. The upper value is that of
    one who knows what they may contain, which may be infinite: there is then no bound.
    """
    protocol = views.protocol
    found = empty
    own = None
    with contextlib.suppress(LeakauditError):  # otherwise nothing is certain
        own = views.certain(empty.node)
    if own is not None:
        turns = own.turns(protocol)
        found = _counted(found, own, turns)
        if own.bound.leaking:
            return _with_epsilons(_leak(found, own))
        found = _reached(found, own, turns, smoothness)
    known = views.informed(empty.node, missing)
    stronger = list(stronger_views(protocol, empty.node))
    if known is not None:
        stronger.insert(0, known)
    stronger = [view for view in stronger if not view.bound.leaking]
    if not stronger:
        return replace(found, refused=f"{missing}, also data of this node without noise")
    turns = stronger[0].turns(protocol)
    if found.gradients is None:
        found = _counted(found, stronger[0], turns)
    found = _least(found, stronger, turns, smoothness)
    if own is not None and own.lowest == 2 and not turns:
        attained = found.sensitivity * own.bound.attained
        if found.mu is not None and attained >= found.mu * (1 - APART):
            return replace(found, attained=attained)
    if found.basis is None:
        return found
    return replace(found, basis=replace(found.basis, own_view=str(missing)))


def _elsewhere(
    protocol: Protocol, empty: ViewBound, smoothness: float | None, why: str
) -> ViewBound:
    """Return the bound for one who observes all messages of the node.

    It is used if the adversary's own view cannot be bounded. It is then not known whether the bound
    is attained. Raises LeakauditError with the reason if there is no such bound either.
    """
    views = [view for view in stronger_views(protocol, empty.node) if not view.bound.leaking]
    if not views:
        return _by_release(protocol, empty, smoothness, why)
    turns = views[0].turns(protocol)
    found = _counted(empty, views[0], turns)
    found = _least(found, views, turns, smoothness)
    if found.basis is None:
        return found
    return replace(found, basis=replace(found.basis, own_view=why))


def _by_release(
    protocol: Protocol, empty: ViewBound, smoothness: float | None, why: str
) -> ViewBound:
    """Return the bound for one who observes all messages of the node, release by release.

    It is used if no mu bounds its view: noise that is not Gaussian, or nonlinear steps between its
    messages. Raises LeakauditError with both reasons if there is no such bound either.
    """
    found = replace(empty, gradients=None)
    not_smooth = ""
    try:
        return _with_epsilons(_released(protocol, found, smoothness, anywhere=False))
    except LeakauditError as e:
        if smoothness is not None:
            not_smooth = str(e)
    if smoothness is None:
        try:
            _released(protocol, found, ANY, anywhere=False)
        except LeakauditError as e:
            not_smooth = str(e)
    try:
        found = _released(protocol, found, smoothness, anywhere=True)
    except LeakauditError as e:
        raise LeakauditError(f"{why}; release by release: {e}") from None
    basis = Basis(grounds.REACTING, grounds.ALL_MESSAGES, not_smooth=not_smooth, by_release=True)
    return _with_epsilons(replace(found, basis=basis))


def _released(
    protocol: Protocol, empty: ViewBound, smoothness: float | None, *, anywhere: bool
) -> ViewBound:
    """Return the view with the releases of its node, or with their mu if all noise is Gaussian."""
    known, moved = released(protocol, empty.node, smoothness, anywhere=anywhere)
    vectors = known.declared.vectors
    count: Counter[Release] = Counter()
    for k, size in moved.of_noise.items():
        noise = _noise(vectors[k])
        if not protocol.size and (noise.power == 1 or noise.width < math.inf):
            raise LeakauditError(
                f"{vectors[k].label} is {vectors[k].law} noise on an unknown number of coordinates"
            )
        count[Release(noise, protocol.size or 1, l2=empty.sensitivity * size)] += 1
    sure = not (protocol.missing or protocol.begun)  # every message was sent and received
    heard = sure and _hears_everything(known.declared, empty.adversary)
    if moved.of_constant is not None and heard:
        empty = replace(empty, least=_constant(vectors, moved.of_constant, empty.sensitivity))
    made = tuple(replace(one, times=times) for one, times in count.items())
    if len(made) > KINDS:
        made = _fewer(made)
    gradients = len(known.gradients(empty.node))
    found = replace(empty, gradients=gradients, enters=gradients)
    guarantee = composed(made, Adjacency.REPLACE) if made else Gdp(0.0, Adjacency.REPLACE)
    if isinstance(guarantee, Gdp):
        if anywhere:
            return replace(found, node_mu=guarantee.mu)
        found = replace(found, mu=guarantee.mu)
    elif anywhere:
        return replace(found, node_releases=made)
    else:
        found = replace(found, releases=made)
    ground = grounds.MODELS_SEEN
    if moved.convex:  # the prox of a convex loss needs no smoothness
        ground = grounds.CONVEX
    elif moved.smooth:
        ground = grounds.SMOOTH
    smooth = smoothness if moved.smooth else None
    basis = Basis(ground, grounds.ALL_MESSAGES, smooth, by_release=True)
    return replace(found, basis=basis)


def _hears_everything(declared: Relations, adversary: Adversary) -> bool:
    """Return whether the adversary observes what one does who observes all messages of a node."""
    secure = any(vector.secure for vector in declared.vectors)
    heard = adversary.hears == "all" and not secure
    return heard and adversary.window is None and adversary.knows == "all"


def _constant(
    vectors: Sequence[Vector], of_constant: Mapping[int, float], sensitivity: float
) -> Losses:
    """Return the losses of a record whose gradients are constant and change in one coordinate."""
    count: Counter[tuple[Additive, float]] = Counter()
    for k, size in of_constant.items():
        count[_noise(vectors[k]), sensitivity * size] += 1
    kinds = tuple((*one, times) for one, times in count.items())
    return Losses(kinds, Adjacency.REPLACE, least=True)


def _fewer(releases: Sequence[Release]) -> tuple[Release, ...]:
    """Return releases with changes rounded up, so that those that converge become equal."""
    count: Counter[Release] = Counter()
    for one in releases:
        moves = one.l2
        if moves:
            moves = math.exp(math.ceil(math.log(moves) / ROUNDED) * ROUNDED)
        count[replace(one, l2=moves, times=1)] += one.times
    return tuple(replace(one, times=times) for one, times in count.items())


def _noise(vector: Vector) -> Additive:
    """Return the noise of a declaration; LeakauditError if its curve is not known."""
    power = POWERS.get(vector.law)
    if power is None:
        raise LeakauditError(f"{vector.label} is {vector.law} noise, for which there is no bound")
    if vector.law in TRUNCATED and vector.width == math.inf:
        raise LeakauditError(
            f"{vector.label} is {vector.law} noise, but its largest value is not declared"
        )
    return Additive.of_std(power, vector.std, vector.width)


def _faulty(protocol: Protocol, empty: ViewBound, smoothness: float | None) -> ViewBound:
    """Return the bound of a run in which messages were lost, over all its rounds.

    Each step of the node is as declared, except for received vectors: a lost vector is replaced by
    another one that is known. The bound is therefore that of one who observes all the node's
    messages, including lost ones (`relations.alone`). An adversary of the run without the fault
    never knows more.
    """
    why = f"{protocol.missing}, so every message of the node is assumed to be observed"
    node = empty.node
    try:
        return _elsewhere(protocol, empty, smoothness, why)
    except LeakauditError:
        if protocol.holds:  # a leak in the rounds before the first loss is a leak of the run
            before = replace(protocol, rounds=protocol.holds, missing="")
            leaking = _bound(Views(before, empty.adversary, [node]), empty, None)
            if leaking.mu == math.inf:
                return leaking
        hides = "its noise then hides nothing"
        if protocol.undeclared:
            kind = protocol.undeclared[0][0][0]
            hides = f"it is not declared what the messages {kind!r} contain"
        raise LeakauditError(f"{why}, and {hides}; record a run without the fault") from None


def _counted(found: ViewBound, view: NodeView, turns: Turns | None) -> ViewBound:
    return replace(
        found,
        certificate=view.bound.certificate,
        gradients=view.count,
        enters=_most(turns, view.count),
    )


def _most(turns: Turns | None, every: int) -> int:
    if turns is None:
        return every
    most = 0
    for choices in turns:
        most += max((len(entered) for entered in choices), default=0)
    return most
