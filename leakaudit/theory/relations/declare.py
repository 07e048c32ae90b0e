"""A protocol as linear relations between named vectors, written as in its paper."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.core.progress import expired
from leakaudit.core.trace import Graph, Training
from leakaudit.theory.relations.expression import (
    LAWS,
    ONE,
    TRUNCATED,
    Expression,
    Form,
    Kind,
    Law,
    Vector,
)
from leakaudit.theory.relations.modular import Staircase, modular

# Every coordinate of the model obeys the same relations, so one scalar coefficient represents a
# whole vector (docs/relations.md: sum_c E[r, c] u_c = 0).

# A declaration follows numbers of a file, such as its rounds and local steps. Both limits are
# choices: ten million parts take about a minute and several GB.
LARGEST = 10_000_000
TERMS = 20  # terms for each vector that `at_most` allows; the bundled victims have 3 at most
# Binary digits before the point of a coefficient; it is converted to a float of at most 1024.
DIGITS = 1000
# How many times as many vectors may be outlined as declared; it takes about as long then.
OUTLINED = 2
TIMED = 1 << 16  # parts between two looks at the deadline, which take about a second
Classes = Sequence[tuple[Vector, Sequence[int]]]  # one of a class, and the places of all
_OUTLINE: ContextVar[bool] = ContextVar("outline", default=False)
# The most that a declaration may contain: the number of vectors, with `TERMS` times as many terms;
# the number of vectors in rounds that are not busy; and the busy rounds, of which messages were
# recorded.
Limits: TypeAlias = tuple[int, int, frozenset[int]]
_MOST: ContextVar[Limits | None] = ContextVar("most", default=None)
_TIMES: ContextVar[int] = ContextVar("times", default=1)


@dataclass(frozen=True, slots=True)
class Relation:
    """``lhs = rhs``, as ``sum of terms = 0``."""

    terms: Mapping[int, Fraction]  # place of a vector -> coefficient, without zeros
    round: int
    lhs: Form  # left-hand side, as written
    rhs: Form  # right-hand side, as written

    @property
    def text(self) -> str:
        """The relation as it was written."""
        return f"{self.lhs} = {self.rhs}"


class _MessageOutline(Expression):
    """Any form over a declaration of which only the messages are kept."""

    __slots__ = ()

    def __neg__(self) -> _MessageOutline:
        return self

    def _with(self, other: object) -> _MessageOutline:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _with

    @property
    def vector(self) -> int:
        return 0


@contextmanager
def outline() -> Iterator[None]:
    """Inside, a declaration keeps only its messages, without their content: enough to count them.

    This is about ten times faster.
    """
    token = _OUTLINE.set(True)
    try:
        yield
    finally:
        _OUTLINE.reset(token)


def outlined() -> bool:
    """Return whether declarations made now keep only their messages (`outline`)."""
    return _OUTLINE.get()


@contextmanager
def at_most(most: Limits | None) -> Iterator[None]:
    """Inside, a larger declaration is rejected; None allows any size.

    Constants of a file that a stranger made, such as a number of inner steps, must not keep a
    declaration busy for hours.
    """
    token = _MOST.set(most)
    try:
        yield
    finally:
        _MOST.reset(token)


@contextmanager
def gradients_times(count: int) -> Iterator[None]:
    """Inside, a protocol's gradients are so many times those of the mean over a node's records.

    A protocol whose f_i are sums over `count` records is declared by the equations of its paper.
    """
    token = _TIMES.set(count)
    try:
        yield
    finally:
        _TIMES.reset(token)


class Relations:
    """The declaration of one protocol; its methods return vectors to calculate with.

    Every vector has a name, an owner (the node that holds it) and the round in which it was
    declared; `index` distinguishes vectors that share all three.

    Args:
        graph: If given, nodes and edges that are not in it are rejected.
    """

    def __init__(self, graph: Graph | None = None) -> None:
        self.graph = graph
        self.round = 0
        self.vectors: list[Vector] = []
        self.relations: list[Relation] = []
        self.points: dict[int, Expression] = {}  # gradient -> where it was evaluated
        self.before: dict[int, int] = {}  # gradient -> number of relations declared before it
        self.opaques: dict[int, tuple[Expression, ...]] = {}
        self.hides: dict[int, str] = {}  # opaque vector -> what it hides of its inputs
        # state -> the vector of which it is a firmly nonexpansive function, and the step times the
        # gradient by which that function differs between data sets, if it does (`firm`)
        self.firmly: dict[int, tuple[Expression, Expression | None]] = {}
        self.omits: dict[int, int] = {}  # omitted part -> message that holds the rest
        # opaque vector that is a change by local steps -> the model before them, and the steps
        self.changes: dict[int, tuple[Expression, Training]] = {}
        self.sent: dict[int, int] = {}  # message -> the relation that defines its content
        # vector -> other nodes whose equations use it, although no message to them is the vector
        self.shares: dict[int, set[int]] = {}
        # Whether rounds after the last one would be declared like it; False if they would not.
        self.settled = True
        self.drawn: set[int] = set()  # secrets of rounds
        # States that nothing explains so far, and relations between several of them.
        self._free: set[int] = set()
        self._between: list[Mapping[int, Fraction]] = []
        self._places: dict[tuple[object, ...], int] = {}
        self._gradients = defaultdict[int | None, list[int]](list)  # owner -> places
        self._classes: dict[tuple[bool, int], Classes] = {}
        self._ended = False
        self._parts = 0
        self._made = self._idle = 0  # vectors of all rounds, and of those without messages
        self._terms = 0
        self._outline = _OUTLINE.get()
        self._times = _TIMES.get()
        self._most = _MOST.get()
        if self._most is not None and self._outline:
            vectors, idle, busy = self._most
            self._most = (OUTLINED * vectors, OUTLINED * idle, busy)
        self._any = _MessageOutline(self.vectors, {})

    def rounds(self, count: int) -> Iterator[int]:
        """Iterate over rounds 1 to count; everything declared inside belongs to the round.

        A declaration has one such loop.
        """
        if self._ended or self.round:
            raise LeakauditError(
                "a declaration has only one rounds(…) loop, but this is the second; "
                "put the relations of both loops into one"
            )
        for t in range(1, count + 1):
            self.round = t
            self._grow()
            yield t
        self._ended = True

    def secret(self, name: str, owner: int, index: int | None = None) -> Expression:
        """Return a private vector, such as data, about which nothing is known beforehand.

        One of a round is `unexplained`: it may contain data, and what its owner received.
        """
        x = self._new("secret", name, owner, index)
        if self.round and not self._outline:
            self.drawn.add(x.vector)
        return x

    def grad(
        self, owner: int, at: Expression, index: int | None = None, name: str = "g"
    ) -> Expression:
        """Return an unknown gradient of the owner's loss, evaluated at a model.

        The vector is the gradient of the mean over the owner's records; what is returned is so many
        times this vector as `gradients_times` says.
        """
        self._same(at)
        self._count(at)
        self.uses(owner, at)
        g = self._new("gradient", name, owner, index)
        self.points[g.vector] = at
        self.before[g.vector] = len(self.relations)
        return g * self._times

    def noise(
        self,
        name: str,
        std: float,
        owner: int,
        index: int | None = None,
        *,
        law: Law = "gaussian",
        width: float = math.inf,
    ) -> Expression:
        """Return fresh noise; use the vector twice if one draw is used twice.

        Args:
            std: Standard deviation per coordinate.
            law: Its distribution, with mean 0. Estimates require only the std; `account` accepts
                Gaussian noise and rejects the others, which `shifts` covers.
            width: Of a truncated law, the largest absolute value of a coordinate; inf if it is
                unknown.
        """
        what = f"noise {name!r} of node {owner}"
        if not 0 < std < math.inf:
            raise LeakauditError(
                f"{what}: expected a finite std > 0, got {std!r}; omit the noise if there is none"
            )
        if law not in LAWS:
            raise LeakauditError(f"{what}: expected a law out of {', '.join(LAWS)}, got {law!r}")
        if not width > 0 or (width < math.inf and law not in TRUNCATED):
            raise LeakauditError(
                f"{what}: expected a width above 0, and only of a truncated law, got {width!r}"
            )
        return self._new("noise", name, owner, index, std=float(std), law=(law, width))

    def public(self, name: str, index: int | None = None) -> Expression:
        """Return a vector, or a constant of the protocol, that is known to everybody."""
        return self._new("public", name, None, index)

    def state(
        self,
        name: str,
        owner: int | None = None,
        index: int | None = None,
        *,
        eq: Form | None = None,
    ) -> Expression:
        """Return a vector that is known only through relations.

        Args:
            eq: Its definition, if any. Without one, and unless `relate` or `opaque` explain it
                later, it is `unexplained`.
        """
        if eq is not None:
            self._same(eq)
        x = self._new("state", name, owner, index)
        if eq is not None:
            self._add(x, eq)
            self.uses(owner, eq)
        elif not self._outline:
            self._free.add(x.vector)
        return x

    @property
    def unexplained(self) -> frozenset[int]:
        """States and secrets that may be any function of what their owner knows at that time.

        The declaration neither defines them nor names their inputs. They protect nothing: what they
        contain of messages and gradients is not known (`account`). A start value that does not
        depend on data is a `secret` instead.
        """
        while self._between:
            left = []
            for terms in self._between:
                some = [k for k in terms if k in self._free]
                if len(some) == 1:
                    self._free.remove(some[0])
                elif some:
                    left.append(terms)
            if len(left) == len(self._between):
                # Each relation explains the last of its states that no other relation explains.
                stairs = Staircase()
                for terms in left:
                    free = {k: v for k, v in terms.items() if k in self._free}
                    stairs.add(modular(free))
                self._free -= stairs.pivots.keys()
                left = []
            self._between = left
        return frozenset(self.drawn | self._free)

    def relate(self, lhs: Form, rhs: Form = 0) -> None:
        """Declare ``lhs = rhs``; if it contains a noise vector, this is a prior."""
        terms = self._add(lhs, rhs)
        free = self._free.intersection(terms)
        if free:
            self._between.append(terms)
        if len(free) == 1:  # its owner solves for it
            owner = self.vectors[next(iter(free))].owner
            self.uses(owner, lhs)
            self.uses(owner, rhs)

    def uses(self, node: int | None, form: Form) -> None:
        """Record that a node uses a form in an equation, or keeps it."""
        if node is None or self._outline or not isinstance(form, Expression):
            return
        for k in form.terms:
            vector = self.vectors[k]
            if vector.owner in (None, node):
                continue
            if vector.kind != "message" or (vector.dst is not None and node not in vector.dst):
                self.shares.setdefault(k, set()).add(node)

    def _add(self, lhs: Form, rhs: Form) -> Mapping[int, Fraction]:
        """Add a relation, and return its terms; none in an outline."""
        self._grow()
        if self._outline:
            return {}
        difference = lhs - rhs
        if not isinstance(difference, Expression) or not difference.terms:
            raise LeakauditError(
                f"round {self.round}: the relation {lhs} = {rhs} is trivial; "
                "expected at least one vector that does not cancel"
            )
        self._same(difference)
        self._count(difference)
        self.relations.append(Relation(difference.terms, self.round, lhs, rhs))
        return difference.terms

    def send(
        self,
        src: int,
        dst: int | Iterable[int] | None,
        expr: Form,
        name: str = "m",
        *,
        std: float = 0.0,
        secure: bool = False,
        index: int | None = None,
    ) -> Expression:
        """Declare that a node sends a vector, and return the message as it was received.

        Args:
            dst: One node, several that receive the same copy, or None: everybody reads it, as on a
                public board.
            std: Error that the channel adds on top of rounding, for example q / sqrt(12) for a
                dithered quantiser of width q.
            secure: Whether an outsider sees only that the message was sent, not its content.

        Raises:
            LeakauditError: It is addressed to its sender, to nobody, or along an edge that is not
                in the graph.
        """
        to = _receivers(dst)
        self._grow()
        if self._outline:
            self._fits(self.round)
            self.vectors.append(Vector("message", name, src, self.round, index, std, to, secure))
            return self._any
        what = f"round {self.round}: message {name!r} of node {src}"
        if to is not None and (not to or src in to):
            whom = "nobody"
            if to:
                whom = "itself"
            raise LeakauditError(
                f"{what} is addressed to {whom}; name another node, or dst=None for everybody"
            )
        if self.graph and to:
            near = self.graph.neighbours[self._node(src)]
            for receiver in to:
                if receiver not in near:
                    raise LeakauditError(
                        f"{what} is addressed to node {receiver}, but they share no edge; "
                        f"the neighbours of node {src} are {near}"
                    )
        if not isinstance(expr, Expression):
            raise LeakauditError(f"{what}: expected a vector to send, got the number {expr!r}")
        if not 0 <= std < math.inf:
            raise LeakauditError(f"{what}: expected a channel error with std >= 0, got {std!r}")
        m = self._new("message", name, src, index, std=std, dst=to, secure=secure)
        self.sent[m.vector] = len(self.relations)
        self._add(m, expr)
        self.uses(src, expr)
        return m

    def opaque(self, out: Expression, of: Sequence[Expression], hides: str = "") -> None:
        """Declare that a state is a nonlinear function of vectors, such as clipping or a prox.

        What is determined or estimated remains a valid lower bound; a mu is available only if the
        view determines every input.

        Args:
            hides: What it hides of them, for the reader of a trace in which nothing is determined.
        """
        if self._outline:
            return
        if not of or self.vectors[out.vector].kind != "state":
            raise LeakauditError(
                f"opaque({out}): expected a state without eq=, and the vectors of=[…] from which "
                "it is computed"
            )
        for part in of:
            self._same(part)
            self.uses(self.vectors[out.vector].owner, part)
        self.opaques[out.vector] = tuple(of)
        self._free.discard(out.vector)
        if hides:
            self.hides[out.vector] = hides

    def firm(self, out: Expression, of: Expression, by: Expression | None = None) -> None:
        """Declare that a state is a firmly nonexpansive function of a vector.

        Such is prox_{gR} for a convex R (Moreau 1965): |F(a) - F(b)|^2 <= <F(a) - F(b), a - b>.
        This bounds how far the state moves with its input, and adds nothing to what is determined.

        Args:
            out: A state.
            of: The vector a.
            by: If F is the prox of the owner's own convex loss, its step times the gradient at the
                result: of - out = by. None if F does not depend on data.
        """
        if self._outline:
            return
        if self.vectors[out.vector].kind != "state":
            raise LeakauditError(f"firm({out}): expected a state")
        self._same(of)
        self.firmly[out.vector] = (of, by)

    def omit(self, left: Expression, message: Expression) -> None:
        """Declare that a message holds some coordinates of a vector, and a state the omitted ones.

        Where the message is not zero, the omitted part is. Whoever observes the message therefore
        knows the omitted part there, and nothing about it elsewhere.
        """
        if self._outline:
            return
        kinds = (self.vectors[left.vector].kind, self.vectors[message.vector].kind)
        if kinds != ("state", "message"):
            raise LeakauditError(
                f"omit({left}, {message}): expected a state and a message, "
                f"got a {kinds[0]} and a {kinds[1]}"
            )
        self.omits[left.vector] = message.vector

    def trained(self, change: Expression, at: Expression, by: Training) -> None:
        """Declare that an opaque state is what local steps changed, as it is sent.

        Attacks that read such changes receive it, although no gradient is determined.

        Args:
            change: The model before the steps (`at`) minus the one after them, rounded if it is
                sent so.
        """
        if self._outline:
            return
        if change.vector not in self.opaques:
            raise LeakauditError(
                f"trained({change}): expected a state that was declared opaque before"
            )
        self._same(at)
        self.changes[change.vector] = (at, by)

    def find(
        self, name: str, owner: int | None = None, round: int = 0, index: int | None = None
    ) -> Expression:
        """Return a vector by its name; messages are excluded.

        Raises:
            LeakauditError: It is not declared.
        """
        wanted = Vector("state", name, owner, round, index)
        if (place := self.place(wanted)) is None:
            raise LeakauditError(
                f"vector {wanted.label} does not exist in this "
                f"declaration{suggest(wanted.label, (v.label for v in self.vectors))}"
            )
        return self._form(place)

    def place(self, vector: Vector, by: int = 0) -> int | None:
        """Return the place of the vector with the same name, owner, round and index; None if none.

        It may be a vector of another declaration, and `by` rounds later; vectors of round 0 stay.
        """
        return self._places.get(self._key(vector, by))

    def adopt(self, vector: Vector, by: int = 0) -> int:
        """Do the same, and add the vector if it is missing."""
        place = self.place(vector, by)
        if place is None:
            moved = later(vector, by)
            self.round = max(self.round, moved.round)
            self._fits(moved.round)
            place = self._places[self._key(vector, by)] = len(self.vectors)
            self.vectors.append(moved)
            if vector.kind == "gradient":
                self._gradients[vector.owner].append(place)
        return place

    def carry(self, place: int) -> None:
        """Record that an adopted vector is unexplained in its own declaration."""
        self._free.add(place)

    def classes(self, *, by_round: bool) -> Classes:
        """Return the vectors in classes of which an adversary knows all or none.

        Those of a class differ only in index, in round unless `by_round`, and in name unless
        public.
        """
        key = (by_round, len(self.vectors))
        if key not in self._classes:
            found = defaultdict[Hashable, list[int]](list)
            for k, v in enumerate(self.vectors):
                name = v.name if v.kind == "public" else ""
                of_round = v.round if by_round else 0
                found[v.kind, v.owner, v.dst, v.secure, name, of_round].append(k)
            self._classes[key] = [(self.vectors[some[0]], some) for some in found.values()]
        return self._classes[key]

    def select(
        self, kind: Kind | None = None, owner: int | None = None, name: str | None = None
    ) -> list[Expression]:
        """Return all vectors of a kind, owner and name (None: any), in the order of declaration."""
        found = []
        for k, vector in enumerate(self.vectors):
            if kind is not None and vector.kind != kind:
                continue
            if owner is not None and vector.owner != owner:
                continue
            if name is not None and vector.name != name:
                continue
            found.append(self._form(k))
        return found

    def gradients(self, node: int) -> list[Expression]:
        """Return the gradients of one node, in the order of declaration."""
        return [self._form(k) for k in self._gradients.get(node, ())]

    @staticmethod
    def _key(vector: Vector, by: int = 0) -> tuple[object, ...]:
        """Return what identifies a vector; those of round 0 are the same in every round."""
        round_ = vector.round
        if round_:
            round_ += by
        if vector.kind == "message":
            return (True, vector.name, vector.owner, round_, vector.index, vector.dst)
        return (False, vector.name, vector.owner, round_, vector.index, None)

    def _form(self, place: int) -> Expression:
        return Expression(self.vectors, {place: ONE})

    def _new(
        self,
        kind: Kind,
        name: str,
        owner: int | None,
        index: int | None,
        *,
        std: float = 0.0,
        dst: tuple[int, ...] | None = None,
        secure: bool = False,
        law: tuple[Law, float] = ("gaussian", math.inf),
    ) -> Expression:
        if owner is not None:
            owner = self._node(owner)
        self._grow()
        self._fits(self.round)
        if self._outline:
            return self._any
        vector = Vector(kind, name, owner, self.round, index, std, dst, secure, *law)
        if self.place(vector) is not None:
            raise LeakauditError(
                f"{vector.label} is declared twice; reuse the first, or give the second another "
                "name or index="
            )
        self._places[self._key(vector)] = len(self.vectors)
        self.vectors.append(vector)
        if kind == "gradient":
            self._gradients[owner].append(len(self.vectors) - 1)
        return self._form(len(self.vectors) - 1)

    def _count(self, form: Expression) -> None:
        """Count the terms of a form; reject too many, and coefficients beyond all floats."""
        self._terms += len(form.terms)
        if self._most is not None and self._terms > TERMS * self._most[0]:
            raise self._excess(f"{TERMS * self._most[0]} terms")
        for place, factor in form.terms.items():
            digits = factor.numerator.bit_length()
            if digits > DIGITS and digits - factor.denominator.bit_length() > DIGITS:
                raise LeakauditError(
                    f"round {self.round}: the coefficient of {self.vectors[place].label} is beyond "
                    "all floating-point numbers; check the constants of the protocol"
                )

    def require_room(self, vectors: int) -> None:
        """Reject a loop before it begins if a recording of this size cannot have its vectors."""
        if self._most is not None and self._made + vectors > self._most[0]:
            raise self._excess(f"{self._most[0]} vectors")

    def _fits(self, round: int) -> None:
        """Count one more vector of a round; reject more than a recording of this size can have."""
        if self._most is None:
            return
        self.require_room(1)
        self._made += 1
        _, idle, busy = self._most
        if round not in busy:
            self._idle += 1
        if self._idle > idle:
            raise self._excess(f"{idle} vectors without a recorded message")

    def _excess(self, what: str) -> LeakauditError:
        return LeakauditError(
            f"the declared protocol has more than {what} up to round {self.round}, "
            "far more than a recording of this size can have; check its constants"
        )

    def _grow(self) -> None:
        """Count one more part; end a declaration that is too large or takes too long."""
        self._parts += 1
        if self._parts % TIMED:
            return
        if self._parts > LARGEST:
            raise LeakauditError(
                f"the protocol's declaration has more than {LARGEST:,} relations and vectors at "
                f"round {self.round}: the numbers of nodes, rounds and local steps are too large"
            )
        if expired():
            raise LeakauditError(
                f"the time limit was reached at round {self.round} of the protocol's declaration, "
                "before anything was attacked; allow more time with --max-seconds"
            )

    def _node(self, node: int) -> int:
        if node < 0 or (self.graph and node >= self.graph.nodes):
            text = f"node {node} does not exist"
            if self.graph:
                text += f" (the graph has nodes 0-{self.graph.nodes - 1})"
            raise LeakauditError(text)
        return node

    def _same(self, form: Form) -> None:
        if isinstance(form, Expression) and form.home is not self.vectors:
            raise LeakauditError(
                f"{form} belongs to another declaration; use only vectors of this one"
            )


def _receivers(dst: int | Iterable[int] | None) -> tuple[int, ...] | None:
    if dst is None:
        return None
    if isinstance(dst, int):
        return (dst,)
    return tuple(dst)


def later(vector: Vector, by: int) -> Vector:
    """Return the vector of the same name, some rounds later; those of round 0 stay."""
    if not (vector.round and by):
        return vector
    v = vector  # written out, because `replace` takes three times as long
    moved = (v.kind, v.name, v.owner, v.round + by)
    return Vector(*moved, v.index, v.std, v.dst, v.secure, v.law, v.width)
