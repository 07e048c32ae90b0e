"""Random protocols that are declared incompletely: no printed mu is below the truth.

Each case is a linear protocol on a small network. The truth is computed here, from the complete
protocol and without the product's code: every vector is written as a dense form over gradients and
noise. Then something is left out of the declaration, and the bound has to be at least the truth,
or absent.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import leakaudit as la
from leakaudit.cli import main
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import Graph, Json
from leakaudit.core.verdict import Holds
from leakaudit.protocols.declared import Protocol
from leakaudit.protocols.equations.file import victim
from leakaudit.protocols.victim import Victim
from leakaudit.theory.relations import Expression, Relations
from leakaudit.views.accounting.view_bound import ViewBound, view_bounds

QUICK = 40
ALL = 300
SEED = 20261128
FAMILIES = ["gossip", "server", "pdmm", "tracking", "random", "masks", "local", "feedback"]
FACTORS = [Fraction(1), Fraction(1, 2), Fraction(1, 3), Fraction(2), Fraction(-1, 2)]
CLOSE = 1e-6

Terms = dict[int, Fraction]  # factors of steps, by their places


@dataclass
class Step:
    """One vector: a gradient, noise, a state or a message."""

    op: str
    name: str
    owner: int
    round: int
    terms: Terms = field(default_factory=dict)
    std: float = 0.0
    dst: tuple[int, ...] = ()
    index: int | None = None
    held: tuple[int, ...] = ()  # other nodes that hold it, as a mask of a pair
    secure: bool = False
    # what a channel that rounds makes of each content, which is a function of the content only
    channel: Fraction = Fraction(1)


class Program:
    """A linear protocol as a list of steps; a form maps places of steps to factors."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.steps: list[Step] = []
        self.round = 0
        self._seen: Counter[tuple[str, int, int]] = Counter()

    def add(
        self,
        op: str,
        name: str,
        owner: int,
        terms: Terms | None = None,
        std: float = 0.0,
        dst: Iterable[int] = (),
        held: Iterable[int] = (),
    ) -> Terms:
        key = (name, owner, self.round)
        count = self._seen[key]
        self._seen[key] += 1
        step = Step(op, name, owner, self.round, dict(terms or {}), std, tuple(dst), count or None)
        step.held = tuple(held)
        self.steps.append(step)
        return {len(self.steps) - 1: Fraction(1)}


def form(*parts: tuple[Fraction | int, Terms]) -> Terms:
    """Return the sum of forms with factors."""
    total: Terms = {}
    for factor, terms in parts:
        for k, value in terms.items():
            total[k] = total.get(k, Fraction(0)) + factor * value
    return {k: value for k, value in total.items() if value}


class Maker:
    """Draws a protocol of a family, with noise at random places."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.noisy = float(rng.choice([0.3, 0.7, 1.0]))
        family = str(rng.choice(FAMILIES))
        nodes = int(rng.integers(3, 6))
        self.p = Program(Graph(nodes, tuple(self._edges(family, nodes))))
        self.rounds = int(rng.integers(2, 5))
        getattr(self, family)()
        for kind in sorted({step.name for step in self.p.steps if step.op == "send"}):
            rounds, secure = rng.random(2) < 0.2
            if family == "feedback" and kind == "m":
                rounds, secure = True, bool(rng.random() < 0.5)
            for step in self.p.steps:
                if step.op == "send" and step.name == kind:
                    step.secure = bool(secure)
                    step.channel = Fraction(1, 2) if rounds else Fraction(1)

    def _edges(self, family: str, nodes: int) -> list[tuple[int, int]]:
        if family == "server":
            return [(i, nodes - 1) for i in range(nodes - 1)]
        if self.rng.random() < 0.4:
            return [(i, i + 1) for i in range(nodes - 1)] + [(0, nodes - 1)]
        edges = {(int(self.rng.integers(0, i)), i) for i in range(1, nodes)}
        for i, j in itertools.combinations(range(nodes), 2):
            if self.rng.random() < 0.3:
                edges.add((i, j))
        return sorted(edges)

    def factor(self) -> Fraction:
        return FACTORS[int(self.rng.integers(len(FACTORS)))]

    def maybe(self, node: int, terms: Terms) -> Terms:
        """Add noise of a node, or not."""
        if self.rng.random() >= self.noisy:
            return terms
        noise = self.p.add("noise", "e", node, std=float(self.rng.choice([0.5, 1.0, 2.0])))
        return form((1, terms), (1, noise))

    def mixed(self, node: int, own: Terms, heard: Mapping[int, Terms]) -> Terms:
        near = self.p.graph.neighbours[node]
        weight = Fraction(1, len(near) + 1)
        return form((weight, own), *((weight, heard[j]) for j in near))

    def gossip(self) -> None:
        p = self.p
        nodes = range(p.graph.nodes)
        lr = self.factor()
        w: dict[int, Terms] = {i: {} for i in nodes}
        for p.round in range(1, self.rounds + 1):
            half = {}
            for i in nodes:
                g = p.add("grad", "g", i, w[i])
                half[i] = p.add("state", "h", i, self.maybe(i, form((1, w[i]), (-lr, g))))
            sent = {}
            for i in nodes:
                sent[i] = p.add("send", "w", i, self.maybe(i, half[i]), dst=p.graph.neighbours[i])
            w = {i: p.add("state", "w", i, self.mixed(i, half[i], sent)) for i in nodes}

    def server(self) -> None:
        p = self.p
        server = p.graph.nodes - 1
        lr = self.factor()
        w: Terms = {}
        for p.round in range(1, self.rounds + 1):
            down = w
            if w:
                down = p.add("send", "w", server, w, dst=range(server))
            ups = []
            for i in range(server):
                g = p.add("grad", "g", i, down)
                ups.append(
                    p.add("send", "up", i, self.maybe(i, form((1, down), (-lr, g))), dst=[server])
                )
            mean = form(*((Fraction(1, server), up) for up in ups))
            w = p.add("state", "w", server, self.maybe(server, mean))

    def pdmm(self) -> None:
        p = self.p
        z: dict[tuple[int, int], Terms] = {arc: {} for arc in p.graph.arcs}
        w: dict[int, Terms] = {i: {} for i in range(p.graph.nodes)}
        theta = Fraction(1, 2)
        for p.round in range(1, self.rounds + 1):
            for i in w:
                g = p.add("grad", "g", i, w[i])
                pull = [((1 if i < j else -1), z[i, j]) for j in p.graph.neighbours[i]]
                moved = form((1, w[i]), (-1, g), *((-sign, one) for sign, one in pull))
                third = form((Fraction(1, 3), moved))
                w[i] = p.add("state", "w", i, self.maybe(i, third))
            new = {}
            for i, j in p.graph.arcs:
                sign = 1 if i < j else -1
                change = form((1 - theta, z[i, j]), (theta, z[j, i]), (sign, w[i]))
                new[j, i] = p.add("send", "z", i, self.maybe(i, change), dst=[j])
            z = new

    def tracking(self) -> None:
        p = self.p
        nodes = range(p.graph.nodes)
        lr = Fraction(1, 2)
        w: dict[int, Terms] = {i: {} for i in nodes}
        p.round = 1
        last = {i: p.add("grad", "g", i, w[i]) for i in nodes}
        y = dict(last)
        for p.round in range(1, self.rounds + 1):
            sent_w, sent_y = {}, {}
            for i in nodes:
                near = p.graph.neighbours[i]
                step = form((1, w[i]), (-lr, y[i]))
                sent_w[i] = p.add("send", "w", i, self.maybe(i, step), dst=near)
                sent_y[i] = p.add("send", "y", i, self.maybe(i, y[i]), dst=near)
            w = {i: p.add("state", "w", i, self.mixed(i, sent_w[i], sent_w)) for i in nodes}
            if p.round == self.rounds:
                break
            new = {i: p.add("grad", "n", i, w[i]) for i in nodes}
            for i in nodes:
                heard = self.mixed(i, y[i], sent_y)
                moved = form((1, heard), (1, new[i]), (-1, last[i]))
                y[i] = p.add("state", "y", i, moved)
            last = new

    def masks(self) -> None:
        """Both ends of an edge know a mask that one adds and the other subtracts."""
        p = self.p
        w: dict[int, Terms] = {i: {} for i in range(p.graph.nodes)}
        for p.round in range(1, self.rounds + 1):
            z = {(i, j): p.add("noise", "z", i, std=2.0, held=[j]) for i, j in p.graph.arcs}
            sent = {}
            for i, near in enumerate(p.graph.neighbours):
                parts = [(1, p.add("grad", "g", i, w[i]))]
                for j in near:
                    parts += [(1, z[i, j]), (-1, z[j, i])]
                sent[i] = p.add("send", "m", i, self.maybe(i, form(*parts)), dst=near)
            w = {i: p.add("state", "w", i, self.mixed(i, sent[i], sent)) for i in w}

    def local(self) -> None:
        """Nodes send noised gradients, and their models never."""
        p = self.p
        w: dict[int, Terms] = {i: {} for i in range(p.graph.nodes)}
        for p.round in range(1, self.rounds + 1):
            for i, near in enumerate(p.graph.neighbours):
                g = p.add("grad", "g", i, w[i])
                p.add("send", "m", i, self.maybe(i, g), dst=near)
                w[i] = p.add("state", "w", i, form((1, w[i]), (-1, g)))

    def feedback(self) -> None:
        """Models are sent rounded, and what the rounding left of them is sent as well."""
        p = self.p
        w: dict[int, Terms] = {i: {} for i in range(p.graph.nodes)}
        for p.round in range(1, self.rounds + 1):
            for i, near in enumerate(p.graph.neighbours):
                g = p.add("grad", "g", i, w[i])
                w[i] = p.add("state", "w", i, self.maybe(i, form((1, w[i]), (-1, g))))
                sent = p.add("send", "m", i, w[i], dst=near)
                left = form((1, w[i]), (-1, sent))
                p.add("send", "h", i, self.maybe(i, left), dst=near)

    def random(self) -> None:
        """Nodes compute and send random combinations of what they know."""
        p = self.p
        known: dict[int, list[Terms]] = {i: [] for i in range(p.graph.nodes)}
        for p.round in range(1, self.rounds + 1):
            for i, some in known.items():
                at = some[int(self.rng.integers(len(some)))] if some else {}
                some.append(p.add("grad", "g", i, at))
                kept = self.maybe(i, self._some(some))
                some.append(p.add("state", "s", i, kept))
            arrived = []
            for i, some in known.items():
                for j in p.graph.neighbours[i]:
                    if self.rng.random() < 0.7:
                        content = self.maybe(i, self._some(some))
                        message = p.add("send", "m", i, content, dst=[j])
                        arrived.append((j, message))
                        if self.rng.random() < 0.3:  # the sender uses what it sent, as sent
                            arrived.append((i, message))
            for j, message in arrived:
                known[j].append(message)

    def _some(self, forms: Sequence[Terms]) -> Terms:
        count = int(self.rng.integers(1, 3))
        chosen = self.rng.choice(len(forms), size=min(count, len(forms)), replace=False)
        found = form(*((self.factor(), forms[int(k)]) for k in chosen))
        return found or forms[-1]


@dataclass(frozen=True)
class Truth:
    """What one adversary learns about one node of the complete protocol.

    Attributes:
        constant: mu of a record that changes every gradient by one vector of length 1.
        signs: The largest mu of a change of length 1, of either sign in each gradient.
        most: An upper limit of mu for changes of every gradient by vectors of length 1.
        leaks: Whether some combination of gradients is visible without noise.
        reacts: The largest mu of a record that moves quadratic losses, whose gradients react to the
            models.
        seen: Whether each model at which the node evaluates gradients follows from what was
            observed before.
    """

    constant: float
    signs: float
    most: float
    leaks: bool
    seen: bool
    reacts: float = 0.0

    @property
    def mu(self) -> float:
        """The largest mu that a record surely attains."""
        return max(self.constant, self.reacts, self.signs if self.seen else 0.0)


def truth(p: Program, adversary: Adversary, node: int) -> Truth:
    """Compute what the complete protocol reveals, with dense matrices."""
    noise = [k for k, step in enumerate(p.steps) if step.op == "noise"]
    own = [k for k, step in enumerate(p.steps) if step.op == "grad" and step.owner == node]
    columns = {k: at for at, k in enumerate([*noise, *own])}
    forms = np.zeros((len(p.steps), len(columns)))
    observed: list[np.ndarray] = []
    seen = True
    for k, step in enumerate(p.steps):
        combined = np.zeros(len(columns))
        for place, value in step.terms.items():
            combined = combined + float(value) * forms[place]
        if step.op in ("grad", "noise"):
            if k in columns:
                forms[k, columns[k]] = step.std or 1.0
            if k in own:
                seen = seen and _spans(np.array(observed).reshape(-1, len(columns)), combined)
        else:
            forms[k] = float(step.channel) * combined
        if _observes(adversary, step):
            observed.append(forms[k])
    rows = np.array(observed).reshape(-1, len(columns))
    phi = rows[:, : len(noise)]
    psi = rows[:, len(noise) :]
    leaks = _hidden(phi, psi)
    constant = _mu(phi, psi, np.ones(len(own)))
    signs = max(
        (_mu(phi, psi, np.array(d)) for d in itertools.product((1.0, -1.0), repeat=len(own))),
        default=0.0,
    )
    reacts = max(_reacting(p, adversary, node, bend) for bend in (-1.0, 0.5))
    return Truth(constant, signs, _limit(phi, psi), leaks, seen, reacts)


def _reacting(p: Program, adversary: Adversary, node: int, bend: float) -> float:
    """Return mu of a record that moves the node's gradients by a vector of length 1.

    All losses have the curvature `bend`.
    """
    noise = [k for k, step in enumerate(p.steps) if step.op == "noise"]
    columns = {k: at for at, k in enumerate(noise)}
    forms = np.zeros((len(p.steps), len(noise) + 1))  # the last column is the change
    observed: list[np.ndarray] = []
    for k, step in enumerate(p.steps):
        for place, value in step.terms.items():
            forms[k] += float(value) * forms[place]
        if step.op == "grad":
            forms[k] *= bend
            forms[k, -1] += step.owner == node
        elif step.op == "noise":
            forms[k, columns[k]] = step.std
        forms[k] *= float(step.channel)
        if _observes(adversary, step) and (step.op != "grad" or step.owner != node):
            observed.append(forms[k])
    rows = np.array(observed).reshape(-1, len(noise) + 1)
    return _mu(rows[:, :-1], rows[:, -1:], np.ones(1))


def _observes(adversary: Adversary, step: Step) -> bool:
    window = adversary.window
    if window is not None and step.round >= window.stop:
        return False
    if not adversary.corrupt.isdisjoint((step.owner, *step.held)):
        return True
    if step.op != "send" or (window is not None and step.round not in window):
        return False
    if adversary.corrupt.intersection(step.dst):
        return True
    if step.secure or adversary.hears == "none":
        return False
    if adversary.hears == "all":
        return True
    return any((step.owner, dst) in adversary.hears for dst in step.dst)


def _rank(rows: np.ndarray) -> int:
    return int(np.linalg.matrix_rank(rows, tol=1e-9)) if rows.size else 0


def _spans(rows: np.ndarray, form: np.ndarray) -> bool:
    if not np.abs(form).max(initial=0) > 0:
        return True
    return _rank(np.vstack([rows, form])) == _rank(rows)


def _hidden(phi: np.ndarray, psi: np.ndarray) -> bool:
    """Return whether a combination of observations contains gradients but no noise."""
    return _rank(np.hstack([phi, psi])) > _rank(phi)


def _limit(phi: np.ndarray, psi: np.ndarray) -> float:
    """Return the root of the sum of |M| over all pairs of gradients; inf if something leaks."""
    if _hidden(phi, psi):
        return math.inf
    if not phi.size:
        return 0.0
    shifts = np.linalg.lstsq(phi, psi, rcond=1e-12)[0]
    return math.sqrt(float(np.abs(shifts.T @ shifts).sum()))


def _mu(phi: np.ndarray, psi: np.ndarray, change: np.ndarray) -> float:
    """Return the length of the least noise that looks like a change; inf if none does."""
    if not phi.size and not psi.size:
        return 0.0
    moved = psi @ change
    if not np.abs(moved).max(initial=0) > 1e-12:
        return 0.0
    if not phi.size:
        return math.inf
    shift, *_ = np.linalg.lstsq(phi, moved, rcond=1e-12)
    if np.abs(phi @ shift - moved).max() > 1e-9 * np.abs(moved).max():
        return math.inf
    return float(np.linalg.norm(shift))


HOW = ("equation", "name", "node", "kind", "constant", "noise", "secret")


class Missing:
    """What a declaration leaves out, drawn at random.

    An equation, all equations of one name, all of one node such as a server, the content of one
    kind of messages, the constants of an equation, the law of noise, or that a secret depends on
    anything.
    """

    def __init__(self, p: Program, rng: np.random.Generator) -> None:
        self.how = str(rng.choice(HOW))
        self.vague: set[int] = set()  # steps of which only the inputs are declared
        self.bare: set[int] = set()  # steps of which nothing is declared
        self.secret: set[int] = set()  # steps that are declared as secrets
        op = {"kind": "send", "noise": "noise"}.get(self.how, "state")
        some = [k for k, step in enumerate(p.steps) if step.op == op and (step.terms or step.std)]
        if not some:
            return
        first = p.steps[int(rng.choice(some))]
        for k in some:
            step = p.steps[k]
            same = step is first
            if self.how in ("name", "kind"):
                same = step.name == first.name
            elif self.how == "node":
                same = step.owner == first.owner
            elif self.how == "constant":
                same = step.name == first.name and step.owner == first.owner
            if same:
                kinds = {"constant": self.vague, "secret": self.secret}
                kinds.get(self.how, self.bare).add(k)


def declare(p: Program, rounds: int, missing: Missing | None) -> Relations:
    """Declare a protocol, completely or not."""
    made = Relations(p.graph)
    public = made.public("w0")
    vectors: dict[int, Expression] = {}

    def written(terms: Terms) -> Expression:
        total = 0 * public
        for k, value in terms.items():
            total = total + value * vectors[k]
        return total

    def sent(step: Step, content: Expression) -> Expression:
        std = 0.1 if step.channel != 1 else 0.0
        return made.send(
            step.owner,
            step.dst,
            content or public,
            step.name,
            std=std,
            secure=step.secure,
            index=step.index,
        )

    todo = iter(enumerate(p.steps))
    waiting = next(todo, None)
    for t in made.rounds(rounds):
        while waiting is not None and waiting[1].round == t:
            k, step = waiting
            bare = missing is not None and k in missing.bare
            if step.op == "grad":
                at = written(step.terms) if step.terms else public
                vectors[k] = made.grad(step.owner, at, step.index, step.name)
            elif missing is not None and k in missing.secret:
                vectors[k] = made.secret(step.name, step.owner, step.index)
            elif bare:
                vectors[k] = made.state(f"{step.name}?", step.owner, step.index)
                if step.op == "send":
                    content = vectors[k]
                    vectors[k] = sent(step, content)
            elif step.op == "noise":
                vectors[k] = made.noise(step.name, step.std, step.owner, step.index)
            elif missing is not None and k in missing.vague:
                vectors[k] = made.state(step.name, step.owner, step.index)
                inputs = [vectors[one] for one in step.terms]
                made.opaque(vectors[k], inputs)
            elif step.op == "state":
                vectors[k] = made.state(step.name, step.owner, step.index, eq=written(step.terms))
            else:
                vectors[k] = sent(step, written(step.terms))
            waiting = next(todo, None)
    return made


class Given(Victim):
    """A victim with a given declaration."""

    def __init__(self, p: Program, missing: Missing | None) -> None:
        self.p = p
        self.missing = missing

    __hash__ = None  # type: ignore[assignment]

    def run(self, *args: object) -> None:
        """Only the declaration is used."""

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        return declare(self.p, rounds, self.missing)


def drawn(p: Program, rounds: int, rng: np.random.Generator) -> tuple[Adversary, int]:
    """Draw an adversary, perhaps with a window, and a node that computes gradients."""
    holders = sorted({step.owner for step in p.steps if step.op == "grad"})
    node = int(rng.choice(holders))
    others = [i for i in range(p.graph.nodes) if i != node]
    window = None
    if rng.random() < 0.4:
        first, last = sorted(rng.integers(1, rounds + 1, size=2).tolist())
        window = range(first, last + 1)
    kind = int(rng.integers(5))
    arcs = p.graph.arcs
    chosen = rng.choice(len(arcs), size=min(2, len(arcs)), replace=False)
    some = frozenset(arcs[int(k)] for k in chosen)
    corrupt = frozenset(rng.choice(others, size=int(rng.integers(1, 3)), replace=False).tolist())
    if kind == 0:
        return Adversary(window=window), node
    if kind == 1:
        return Adversary(some, window=window), node
    if kind == 2:
        return Adversary(some, corrupt, window), node
    return Adversary("none", corrupt, window), node


@dataclass(frozen=True)
class Case:
    """One node in one view of one protocol."""

    p: Program
    rounds: int
    adversary: Adversary
    node: int
    missing: Missing
    truth: Truth

    def bound(self, missing: Missing | None) -> ViewBound:
        protocol = Protocol(Given(self.p, missing), self.p.graph, self.rounds, {})
        (found,) = view_bounds(protocol, self.adversary, [self.node])
        return found


def cases(count: int, seed: int) -> Iterator[Case]:
    """Draw cases, each from its own seed."""
    for k in range(count):
        rng = np.random.default_rng([seed, k])
        made = Maker(rng)
        adversary, node = drawn(made.p, made.rounds, rng)
        missing = Missing(made.p, rng)
        yield Case(made.p, made.rounds, adversary, node, missing, truth(made.p, adversary, node))


def judged(case: Case, found: ViewBound) -> str:
    """Return what a bound says, after checking it against the truth."""
    real = case.truth
    if found.attained is not None:
        assert found.attained <= real.most * (1 + CLOSE)
    if found.linear is not None and not found.leaking:
        assert found.linear <= real.constant * (1 + CLOSE)
    if found.mu is None:
        assert found.refused or found.basis is not None
        return "no bound"
    if found.leaking:
        assert real.leaks
        return "right"
    assert found.mu >= real.mu * (1 - CLOSE)
    if found.holds == "exact":
        lower = max(found.attained or 0.0, found.linear or 0.0)
        assert found.mu == pytest.approx(lower, rel=1e-5)
        return "right"
    return "at most"


@pytest.mark.parametrize(
    "part", [pytest.param(k, marks=[pytest.mark.slow] if k else []) for k in (0, 1)]
)
def test_no_mu_is_below_the_truth(
    part: int,
    fresh_cases: Callable[[int], int],
    fresh_seed: int,
    record_property: Callable[[str, object], None],
) -> None:
    """Right, at most, or no bound; the complete declarations are right as well."""
    usual = ALL if part else QUICK
    said = Counter[str]()
    complete = Counter[str]()
    for case in cases(fresh_cases(usual), SEED + fresh_seed + part):
        complete[judged(case, case.bound(None))] += 1
        said[judged(case, case.bound(case.missing))] += 1
    record_property("under-declared", dict(said))
    record_property("complete", dict(complete))
    assert complete["no bound"] < complete.total()
    assert said["no bound"] > complete["no bound"]
    assert min(said["right"], said["at most"]) > 0


RING = Graph(4, ((0, 1), (0, 3), (1, 2), (2, 3)))
PATH = Graph(4, ((0, 1), (1, 2), (2, 3)))
STAR_OF_FOUR = Graph(4, ((0, 3), (1, 3), (2, 3)))
NOISED = "g[i] = grad(w[i])\nm[i -> neighbours] = g[i] + noise(1)\n"
ERROR = "w[i] = w[i] - grad(w[i])\nsecure m[i -> neighbours] = w[i] + rounding(1)\n"
MASKED = (
    "m[i -> neighbours] = grad(w[i]) + sum(j in neighbours: z[i,j]) - sum(j in neighbours: z[j,i])"
)
SECRET = "s[i] = secret()\nn[i -> neighbours] = s[i]\n"
SERVER = "w[server -> clients] = w[server]\nu[i] = w[server -> i] - grad(w[server -> i])\n"


def written(equations: str, graph: Graph, who: str, start: str = "w[i] = w0") -> ViewBound:
    """Return the bound of node 0 in three rounds of a protocol file."""
    kind = "server" if graph is STAR_OF_FOUR else "any"
    text = f'name = "own"\ngraph = "{kind}"\nstart = "{start}"\nround = """\n{equations}\n"""\n'
    (found,) = view_bounds(Protocol(victim(text)(), graph, 3, {}), Adversary.parse(who), [0])
    return found


@pytest.mark.parametrize(
    ("equations", "graph", "who", "mu", "says"),
    [
        (f"{NOISED}w[i] = opaque(w[i], g[i])", RING, "eavesdropper", None, "changes the models"),
        (f"{NOISED}s[i] = secret()\nw[i] = w[i] + s[i]", RING, "eavesdropper", None, "influences"),
        (f"{ERROR}h[i -> neighbours] = w[i] - m[i -> i]", RING, "eavesdropper", None, "rounded"),
        (f"{SECRET}{NOISED}", RING, "eavesdropper", None, "does not say how s[0,1]"),
        (f"z[i,j] = noise(9)\n{MASKED}", PATH, "node:1", math.inf, "without noise"),
        (f"z[i,j] = noise(9)\n{MASKED}", PATH, "node:2", 0.0, "no message"),
        (
            f"z[i] = noise(9)\n{MASKED.replace('[i,j]', '[i]').replace('[j,i]', '[j]')}",
            PATH,
            "node:2",
            None,
            "node 0 uses z[1,1] of node 1, but no message carries it to node 0",
        ),
        (
            f"{SERVER}w[server] = mean(i in clients: u[i]) + noise(1)",
            STAR_OF_FOUR,
            "eavesdropper",
            None,
            "node 3 uses u[0,1] of node 0, but no message carries it",
        ),
        (
            f"{SERVER}v[server] = u[0]\nw[server] = w[server] + noise(1)",
            STAR_OF_FOUR,
            "node:3",
            None,
            "node 3 uses u[0,1] of node 0, but no message carries it",
        ),
    ],
)
def test_what_a_node_hides_or_holds_is_never_known_to_be_harmless(
    equations: str, graph: Graph, who: str, mu: float | None, says: str
) -> None:
    start = "w[server] = w0" if graph is STAR_OF_FOUR else "w[i] = w0"
    found = written(equations, graph, who, start)
    assert found.mu == mu
    assert says in f"{found.refused} {found.basis}"


TASK = la.TaskSpec("logistic", shape=(5,), classes=3)
STAR = la.Graph(3, ((0, 2), (1, 2)))
CONSTANTS: dict[str, Json] = {**registry.values(registry.get("victims", "fedavg")()), "samples": 1}


def recorded(folder: Path, **constants: Json) -> la.Trace:
    """Record two rounds of a program with a server, under a declaration."""
    rng = np.random.default_rng(0)
    params = {**CONSTANTS, **constants}
    path = folder / "trace.pt"
    with la.Recorder(
        str(path), protocol="fedavg", task=TASK, graph=STAR, params=params, rounds=2
    ) as recorder:
        w = rng.normal(size=18)
        for t in (1, 2):
            recorder.send(round=t, src=2, dst=[0, 1], kind="w", value=w)
            models = rng.normal(size=(2, 18))
            for i in (0, 1):
                recorder.send(round=t, src=i, dst=2, kind="up", value=models[i])
            w = models.mean(0)
    return la.load(path)


def test_an_unknown_server_may_send_anything(tmp_path: Path) -> None:
    """Without noise there is no bound, and with noise that of the server itself."""
    trace = recorded(tmp_path, server="unknown", sigma=0.0)
    (silent,) = la.bound(trace, "node:1", nodes=[0])
    assert (silent.bound.mu, silent.bound.epsilon) == (None, None)
    assert "does not say how w[2,1] is computed" in silent.bound.refused

    noisy = recorded(tmp_path, server="unknown", sigma=0.5)
    (client,) = la.bound(noisy, "node:1", nodes=[0], sensitivity=1.0)
    (server,) = la.bound(noisy, "node:2", nodes=[0], sensitivity=1.0)
    assert client.bound.mu == pytest.approx(server.bound.mu) == pytest.approx(math.sqrt(8))
    assert (client.bound.holds, server.bound.holds) == ("at most", "exact")
    assert client.to_json()["weakest"] == "server: unknown (it may send anything that it knows)"


@pytest.mark.parametrize(
    ("server", "headline", "code"),
    [
        ("unknown", "node 0: not understood: {refused}", 3),
        ("mean", "node 0: of 2 gradients, 1 gradient is determined", 0),
    ],
)
def test_a_headline_says_no_more_than_the_bound(
    server: str, headline: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = recorded(tmp_path, server=server, sigma=0.0)
    (bound,) = la.bound(trace, "node:1", nodes=[0])
    path = str(tmp_path / "trace.pt")
    assert main(["explain", path, "--as", "node:1", "-q"]) == code
    refused = bound.bound.refused.removesuffix(", also data of this node without noise")
    assert capsys.readouterr().out.startswith(headline.format(refused=refused))
    leaks = la.leaks(trace, "node:1", [0])
    assert leaks.not_understood == (frozenset() if bound.bound.mu else {0})


def test_a_state_may_contain_what_its_owner_heard_before_a_window(tmp_path: Path) -> None:
    trace = recorded(tmp_path, server="unknown", sigma=0.5)
    last = Adversary.parse("node:2", window=range(2, 3))
    (late,) = la.bound(trace, last, nodes=[0], sensitivity=1.0)
    assert late.bound.mu == pytest.approx(math.sqrt(8))
    assert late.bound.holds is Holds.AT_MOST


def test_messages_of_an_undeclared_kind_have_no_bound(tmp_path: Path) -> None:
    trace = recorded(tmp_path, server="mean", sigma=0.5)
    tables = []
    for table in trace.messages:
        kinds = tuple("aux" if kind == "up" else kind for kind in table.kinds)
        tables.append(replace(table, kinds=kinds))
    (found,) = la.bound(replace(trace, messages=tuple(tables)), "node:2", nodes=[0])
    assert found.bound.mu is None
    assert "aux" in found.bound.refused


def test_a_step_size_that_nobody_stated_is_no_number(tmp_path: Path) -> None:
    """Neither its default nor one that switches something off is used where it sets the bound."""
    trace = recorded(tmp_path, server="mean", sigma=0.5)
    for dropped in ("lr", "momentum"):
        without = {name: value for name, value in trace.params.items() if name != dropped}
        (found,) = la.bound(replace(trace, params=without), "node:1", nodes=[0])
        assert found.bound.mu is None
        assert f"does not state {dropped}" in found.bound.refused


def test_evidence_in_a_recording_only_weakens(tmp_path: Path) -> None:
    trace = recorded(tmp_path, server="mean", sigma=0.5, clip=1.0)
    says: dict[str, Any] = {
        "noise": ["VERIFIED", "so it says"],
        "sensitivity": ["CONTRADICTED", "norm 33"],
    }
    said = replace(trace, provenance={**trace.provenance, "evidence": says})
    (found,) = la.bound(said, "node:2", nodes=[0])
    origins = {one.subject: one.origin.name for one in found.rests}
    assert (origins["noise"], origins["sensitivity"]) == ("DECLARED", "CONTRADICTED")
    assert "contradicted by the recording (norm 33)" in str(found.to_json()["weakest"])
    for reached, origin in (([], "CONTRADICTED"), ([66.0], "CONTRADICTED"), ([65.0], "ASSUMED")):
        says["sensitivity"] = ["CONTRADICTED", "norm 33", *reached]  # the largest value it voids
        (asked,) = la.bound(said, "node:2", nodes=[0], sensitivity=66.0)
        assert {one.subject: one.origin.name for one in asked.rests}["sensitivity"] == origin
