"""Write proved equations as a protocol file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from leakaudit.capture.equations import steps
from leakaudit.capture.equations.linear import Equation
from leakaudit.capture.equations.streams import SenderStreams, Term
from leakaudit.capture.fitting import min_rank
from leakaudit.capture.fitting.fit import recomputed
from leakaudit.core.errors import LeakauditError
from leakaudit.protocols.equations.check import WORDS
from leakaudit.protocols.equations.syntax import FUNCTIONS, GROUPS
from leakaudit.tasks.task import Task

NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
MATRICES = "ABCDEFGH"


def protocol_file(
    streams: SenderStreams, task: Task, equations: Sequence[Equation], name: str
) -> str:
    """Return the text of a protocol file, if it can state how the first rounds differ."""
    return _EquationWriter(streams, task, equations).text(name)


class _EquationWriter:
    def __init__(self, streams: SenderStreams, task: Task, equations: Sequence[Equation]) -> None:
        self.streams = streams
        self.task = task
        self.equations = _ordered(streams, equations)
        self.kinds = [one.kind for one in self.equations]
        for kind in self.kinds:
            taken = kind in WORDS or kind in FUNCTIONS or kind in GROUPS or kind in MATRICES
            if taken or not NAME.fullmatch(kind):
                raise LeakauditError(
                    f"messages of kind {kind!r} cannot have this name in a protocol file"
                )
        self.constants: dict[str, Fraction] = {}
        self.matrices: dict[str, list[list[Fraction]]] = {}

    def text(self, name: str) -> str:
        streams = self.streams
        start: list[str] = []
        first: list[str] = []
        round: list[str] = []
        early: list[str] = []  # what the server does at the beginning of a round, and at its end
        late: list[str] = []
        for one in self.equations:
            if one.senders == (streams.server,):
                head, tail = self._of_server(one)
                start.append(self._start_of_server(one))
                early.append(head)
                late.append(tail)
                continue
            body, state = self._body(one)
            begin, opening = self._beginning(one, body, state)
            start.extend(begin)
            round.extend(body)
            first.extend(opening or body)
        lines = [f'name = "{name}"', 'summary = "Equations that were fitted to a recording."']
        if streams.server is not None:
            lines.append('graph = "server"')
        blocks = [("start", start), ("round", [*early, *round, *late])]
        if first != round:
            blocks.insert(1, ("first", [*early, *first, *late]))
        for key, some in blocks:
            if some:
                lines += ["", f'{key} = """', *some, '"""']
        if self.constants:
            lines += ["", "[constants]"]
            lines += [f"{key} = {_number(value)}" for key, value in self.constants.items()]
        if self.matrices:
            lines += ["", "[matrices]"]
            for key, rows in self.matrices.items():
                written = ", ".join(
                    "[" + ", ".join(f'"{value}"' for value in row) + "]" for row in rows
                )
                lines.append(f"{key} = [{written}]")
        return "\n".join(lines) + "\n"

    # --- one round ---

    def _body(self, one: Equation) -> tuple[list[str], list[str]]:
        kind = one.kind
        lines: list[str] = []
        state: list[str] = []
        combined = self._combination(one)
        if one.form:
            if one.point is None:
                lines.append(f"mixed_{kind}[i] = {combined}")
                combined = f"mixed_{kind}[i]"
            gradient = f"grad({self._point(kind, one.point)})"
            if one.form == "momentum":
                beta = self._constant("beta", one.other)
                lines.append(f"velocity_{kind}[i] = {beta} * velocity_{kind}[i] + {gradient}")
                state.append(f"velocity_{kind}[i] = 0")
                gradient = f"velocity_{kind}[i]"
            if one.form == "difference":
                lines.append(f"gradient_{kind}[i] = {gradient}")
                gradient = f"gradient_{kind}[i]"
            combined = self._plus(combined, one.rate, "alpha", gradient)
            if one.form == "difference":
                combined = self._plus(combined, one.other, "alpha", f"gradient_{kind}[i,t-1]")
        lines.append(f"{kind}[i] = {combined or '0'}")
        lines.append(self._send(kind))
        return lines, state

    def _send(self, kind: str) -> str:
        receivers = "neighbours" if self.streams.server is None else "server"
        return f"{kind}[i -> {receivers}] = {kind}[i]"

    def _point(self, kind: str, point: Term | None) -> str:
        if point is None:
            return f"mixed_{kind}[i]"
        if point.who == "server":
            return f"{point.kind}[server -> i]"
        return self._vector(point.kind, "i", point.lag)

    def _vector(self, kind: str, node: str, lag: int) -> str:
        if lag == 0:
            return f"{kind}[{node}]"
        return f"{kind}[{node},t-{lag}]"

    def _constant(self, name: str, value: Fraction) -> str:
        chosen = name
        number = 2
        while chosen in self.kinds or self.constants.get(chosen, value) != value:
            chosen = f"{name}{number}"
            number += 1
        self.constants[chosen] = value
        return chosen

    def _plus(self, before: str, factor: Fraction, name: str, vector: str) -> str:
        sign = "-" if factor < 0 else "+"
        term = vector
        if abs(factor) != 1:
            term = f"{self._constant(name, abs(factor))} * {vector}"
        if not before:
            return term if factor > 0 else f"-{term}"
        return f"{before} {sign} {term}"

    def _combination(self, one: Equation) -> str:
        groups: dict[tuple[str, int, bool], dict[tuple[int, int], Fraction]] = {}
        for (term, node, sender), weight in one.weights.items():
            key = (term.kind, term.lag, term.who == "server")
            groups.setdefault(key, {})[node, sender] = weight
        said = ""
        for (kind, lag, of_server), weights in groups.items():
            if not any(weights.values()):
                continue
            if of_server:
                common = _common(weights)
                if common is None:
                    raise LeakauditError("clients use the server's messages with other factors")
                said = self._plus(said, common, "c", f"{kind}[server -> i]")
                continue
            own = {(i, j): value for (i, j), value in weights.items() if i == j}
            common = _common(own)
            unmixed = not any(value for (i, j), value in weights.items() if i != j)
            if common is not None and unmixed:
                said = self._plus(said, common, "c", self._vector(kind, "i", lag))
                continue
            if self.streams.server is not None:
                raise LeakauditError("clients use their own earlier messages with other factors")
            matrix = self._matrix(weights)
            older = self._vector(kind, "j", lag)
            average = f"sum(j in closed_neighbours: {matrix}[i,j] * {older})"
            said = self._plus(said, Fraction(1), "", average)
        return said

    def _matrix(self, weights: dict[tuple[int, int], Fraction]) -> str:
        nodes = self.streams.graph.nodes
        rows = [[weights.get((i, j), Fraction(0)) for j in range(nodes)] for i in range(nodes)]
        for name, known in self.matrices.items():
            if known == rows:
                return name
        name = MATRICES[len(self.matrices)]
        self.matrices[name] = rows
        return name

    # --- the server ---

    def _of_server(self, one: Equation) -> tuple[str, str]:
        kind = one.kind
        said = ""
        for (term, _, sender), weight in one.weights.items():
            if weight == 0:
                continue
            if sender == -1:
                clients = self.streams.graph.nodes - 1
                body = f"mean(i in clients: {term.kind}[i -> server])"
                said = self._plus(said, weight * clients, "rate", body)
            elif term.lag == 1:
                said = self._plus(said, weight, "c", f"{kind}[server]")
            else:
                raise LeakauditError("the server uses models that are older than the last one")
        return f"{kind}[server -> clients] = {kind}[server]", f"{kind}[server] = {said}"

    def _start_of_server(self, one: Equation) -> str:
        history = self.streams.sent[one.kind, self._server]
        value = "secret()"
        if self.streams.start is not None and torch.equal(
            history[min(history)], self.streams.start
        ):
            value = "w0"
        return f"{one.kind}[server] = {value}"

    @property
    def _server(self) -> int:
        return self.streams.graph.nodes - 1

    # --- the beginning ---

    def _beginning(
        self, one: Equation, body: list[str], state: list[str]
    ) -> tuple[list[str], list[str] | None]:
        kind = one.kind
        sends_at_start = any(0 in self.streams.sent[kind, node] for node in one.senders)
        oldest = max((term.lag for term in one.terms), default=0)
        difference = one.form == "difference"
        if oldest == 0 and not difference:
            return state, None
        if sends_at_start:
            return self._sent_at_start(one, state), None
        if self._holds_from_start(one):
            return [f"{kind}[i] = w0", *state], None
        if not state and self._first_step(one):
            gradient = f"grad({kind}[i,t-1])"
            lines = [self._send(kind)]
            if difference:
                lines.insert(0, f"gradient_{kind}[i] = {gradient}")
                gradient = f"gradient_{kind}[i]"
            said = self._plus(f"{kind}[i,t-1]", one.rate, "alpha", gradient)
            lines.insert(len(lines) - 1, f"{kind}[i] = {said}")
            return [f"{kind}[i] = w0"], lines
        if oldest > 1 or state or difference:
            raise LeakauditError(
                f"the first messages of kind {kind!r} do not follow the equation of later ones, "
                "and it contains older messages"
            )
        return [], [f"{kind}[i] = secret()", self._send(kind)]

    def _sent_at_start(self, one: Equation, state: list[str]) -> list[str]:
        kind = one.kind
        if one.form == "difference":
            if not self._begins(one, 0, torch.zeros(())):
                raise LeakauditError(f"the first messages of kind {kind!r} are not gradients")
            gradient = f"gradient_{kind}[i]"
            said = self._plus("", one.rate, "alpha", gradient)
            begin = [f"{gradient} = grad({self._point_at_start(one)})", f"{kind}[i] = {said}"]
            return [*begin, self._send(kind)]
        if state:
            raise LeakauditError(f"messages of kind {kind!r} have momentum before the first round")
        return [f"{kind}[i] = secret()", self._send(kind)]

    def _point_at_start(self, one: Equation) -> str:
        point = one.point
        if point is None or point.lag != 0:
            raise LeakauditError("the first gradients are not those of the public model")
        return f"{point.kind}[i]"

    def _holds_from_start(self, one: Equation) -> bool:
        """Return whether the first round follows the equation if all nodes start at the model."""
        if one.form == "difference":
            return False
        return _confirmed(self._follows(one, node, 1) for node in one.senders)

    def _first_step(self, one: Equation) -> bool:
        """Return whether the first message is the public model and a step from it.

        The rounds after it, whose older messages are that model, have to follow the equation.
        """
        start = self.streams.start
        if one.point != Term(one.kind, 1, "own") or start is None:
            return False
        for t in range(2, one.rounds[0]):
            if not _confirmed(self._follows(one, node, t) for node in one.senders):
                return False
        return self._begins(one, 1, start)

    def _follows(self, one: Equation, node: int, t: int) -> bool | None:
        """Return whether a round follows an equation with the public model.

        None if messages are lost.
        """
        combined = one.of(node, t)
        message = self.streams.value(one.kind, node, t)
        if combined is None or message is None:
            return None
        if not one.form:
            size = float(message.norm() + combined.norm())
            away = float((message - combined).norm())
            return away <= min_rank.FLOORS * self.streams.eps * size
        models: list[Tensor] = []
        for moment in (t, t - 1) if one.form == "difference" else (t,):
            theta = steps.model(one, one.point, node, moment)
            if theta is None:
                return None
            models.append(theta)
        return self._is_step(one, node, message - combined, models, message)

    def _begins(self, one: Equation, t: int, base: Tensor) -> bool:
        """Return whether the first messages are a vector and a step at the public model."""
        start = self.streams.start
        if not one.form or start is None:
            return False
        begun: list[bool] = []
        for node in one.senders:
            message = self.streams.sent[one.kind, node].get(t)
            if message is not None:
                begun.append(self._is_step(one, node, message - base, [start], message))
        return _confirmed(begun)

    def _is_step(
        self, one: Equation, node: int, rest: Tensor, models: Sequence[Tensor], message: Tensor
    ) -> bool:
        """Return whether the rest of a message is the gradient at a model times the rate.

        models: that one, and another whose gradient is subtracted.
        """
        expected = torch.zeros_like(rest)
        for sign, theta in zip((1, -1), models, strict=False):
            gradient = recomputed(self.task, *one.records[node], theta)
            if gradient is None:
                return False
            expected = expected + sign * float(one.rate) * gradient
        size = float(rest.norm())
        eps = self.streams.eps
        noise = eps * float(message.norm()) / max(size, 1e-300)
        return float((rest - expected).norm()) < steps.allowed(2 * noise, eps) * size


def _confirmed(nodes: Iterable[bool | None]) -> bool:
    """Return whether some nodes confirm a start, and none whose messages arrived contradicts it."""
    seen = [one for one in nodes if one is not None]
    return bool(seen) and all(seen)


def _ordered(streams: SenderStreams, equations: Sequence[Equation]) -> list[Equation]:
    waiting = list(equations)
    found: list[Equation] = []
    while waiting:
        ready = [one for one in waiting if not _needs(one, waiting)]
        if not ready:
            raise LeakauditError("the messages of a round depend on each other")
        found.extend(ready)
        waiting = [one for one in waiting if one not in ready]
    return found


def _needs(one: Equation, waiting: Sequence[Equation]) -> bool:
    used = {term.kind for term in one.terms if term.lag == 0 and term.who != "server"}
    point = one.point
    if point is not None and point.lag == 0 and point.who != "server":
        used.add(point.kind)
    return any(other.kind in used for other in waiting if other is not one)


def _common(weights: dict[tuple[int, int], Fraction]) -> Fraction | None:
    values = set(weights.values())
    if len(values) == 1:
        return values.pop()
    return None


def _number(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    return repr(float(value))
