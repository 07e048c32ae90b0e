"""How far a changed record moves every noise of a node, release by release.

With a view held fixed, each message of a node determines its noise: n = message - what the data
give. If the data change, so does n, by a vector whose length `shifts` bounds. A release is then as
private as its noise under a shift of that length, whatever the law of the noise, and releases
compose one by one (`theory.bounds.releases`).

This requires that every message contains one noise that no earlier one contains. Given the
messages before it, the message is then a function of the data, plus fresh noise: adaptive
composition applies, although the state of the node, on which the function depends, is never sent.
Messages of several such noises count as if the others were known.

The view is that of one who observes all messages of the node, and knows all other secrets
(`record.alone`). A node's state is bounded in order of time, as a form in atoms of bounded size:

- a gradient moves by the sensitivity at the same model, and L times as far as its model;
- a firmly nonexpansive step F (a prox) is (a + N(a)) / 2 with a nonexpansive N = 2 F - I, so N
  moves at most as far as a. This is tighter than a bound on F, where F(a) - a is sent;
- the prox of the node's own convex loss, with step g, also moves at the same input, by at most g
  times the sensitivity: monotonicity of the gradients gives |v - v'|^2 <= g <v - v', change of the
  gradient at v'>, so that N moves by twice as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.relations.account import sensitivities, unexplained
from leakaudit.theory.relations.expression import SECRET, Expression, labels, places
from leakaudit.theory.relations.knowledge import Knowledge

Form = Mapping[int, Fraction]  # atom -> coefficient
HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Shifts:
    """How far the noise of each release moves, and what this assumes."""

    of_noise: Mapping[int, float]  # noise -> largest Euclidean norm of its shift
    # whether a prox of the node's own loss is used, which must be convex
    convex: bool
    smooth: bool  # whether gradients move with their models, by the smoothness
    # noise -> its shift if all targets change by one vector of length 1, without the sensitivity:
    # what constant gradients attain. None if a nonlinear step lies between.
    of_constant: Mapping[int, float] | None


def shifts(
    knowledge: Knowledge,
    targets: Sequence[Expression],
    sensitivity: float | Sequence[float],
    smoothness: float | None = None,
    *,
    anywhere: bool = False,
) -> Shifts:
    """Return how far each noise of a node moves if its targets change, with the view held fixed.

    Args:
        knowledge: Of one who observes all messages of the node (`record.alone`).
        sensitivity: Largest change of each target, in Euclidean norm, at the same model; one for
            all, or (T,).
        smoothness: Lipschitz constant of the gradients; None if it is unknown, so that no model may
            move.
        anywhere: Whether the sensitivity is that of gradients at any two models.

    Raises:
        LeakauditError: A message contains a changed vector without fresh noise, or a state cannot
            be bounded.
    """
    moves = sensitivities(targets, sensitivity)
    same_model = dict(zip(places(targets), map(float, moves), strict=True))
    bounds = _Bounds(knowledge, same_model, smoothness, anywhere=anywhere)
    bounds.run()
    return Shifts(bounds.of_noise, bounds.convex, bounds.smooth, bounds.of_constant)


class _Bounds:
    """Forms and bounds of the vectors of a node, from its relations in order."""

    def __init__(
        self,
        knowledge: Knowledge,
        same_model: Mapping[int, float],
        smoothness: float | None,
        *,
        anywhere: bool,
    ) -> None:
        self.declared = knowledge.declared
        self.vectors = knowledge.declared.vectors
        self.knowledge = knowledge
        self.same_model = same_model
        self.smoothness = smoothness
        self.anywhere = anywhere
        self.of_noise: dict[int, float] = {}
        self.of_constant: dict[int, float] | None = {}
        self.convex = False
        self.smooth = False
        # atom -> bound; the reflection N of step k has the number -1 - k
        self._size: dict[int, float] = {}
        self._forms: dict[int, Form] = {}
        drawn = self.declared.drawn
        secrets = {k for k, v in enumerate(self.vectors) if v.kind in SECRET and k not in drawn}
        self._known = set(knowledge.known | (secrets - same_model.keys()))
        # No relation defines these: they are functions of other vectors.
        self._steps = self.declared.firmly.keys() | self.declared.opaques.keys()

    def run(self) -> None:
        missing = unexplained(self.knowledge, self.same_model)
        if missing is not None:
            raise missing
        waiting: list[Form] = []
        for relation in self.knowledge.relations:
            waiting.append(relation.terms)
            solved = True
            while solved:
                left = [terms for terms in waiting if not self._take(terms)]
                solved = len(left) < len(waiting) and bool(left)
                waiting = left
        if waiting:
            raise LeakauditError(
                f"the relation between {labels(self.vectors, waiting[0])} does not determine a "
                "vector by those before it"
            )

    def _take(self, terms: Form) -> bool:
        """Use a relation, unless it contains several vectors that nothing defines yet."""
        for k in terms:
            self._resolve(k, terms)
        open_ = [k for k in terms if not self._has_bound(k)]
        if len(open_) > 1 or any(k in self._steps for k in open_):
            return False
        if open_:
            (k,) = open_
            rest = self._expand({j: c for j, c in terms.items() if j != k})
            self._define(k, {atom: -c / terms[k] for atom, c in rest.items()})
        else:
            self._release(self._expand(terms))
        return True

    def _has_bound(self, k: int) -> bool:
        if k in self._known or k in self._forms or k in self._size:
            return True
        return self.vectors[k].kind == "noise" or k in self.same_model

    def _resolve(self, k: int, terms: Form) -> None:
        """Define a nonlinear step when a relation first uses it, if its input is defined."""
        if k in self._known or k in self._forms or k in self._size:
            return
        if k in self.declared.firmly:
            of, by = self.declared.firmly[k]
            if all(map(self._has_bound, of.terms)):
                self._firm(k, of.terms, by)
        elif k in self.declared.opaques:
            for part in self.declared.opaques[k]:
                if not all(map(self._has_bound, part.terms)):
                    return
                if self._moves(part.terms):
                    raise LeakauditError(
                        f"{self.vectors[k].label} is a nonlinear function of {part}, which a "
                        "changed record moves"
                    )
            self._forms[k] = {}

    def _firm(self, k: int, of: Form, by: Expression | None) -> None:
        """Define F(a) as (a + N(a)) / 2."""
        size = self._moves(of)
        if by is not None:
            (gradient, step), *others = by.terms.items()
            if others or gradient not in self.same_model:
                raise LeakauditError(f"{self.vectors[k].label}: expected a step of one gradient")
            size += 2 * abs(float(step)) * self.same_model[gradient]
            self.convex = True
        self._size[-1 - k] = size
        form = {atom: HALF * c for atom, c in self._expand(of).items()}
        form[-1 - k] = HALF
        self._forms[k] = form
        if by is not None:  # the gradient is (a - F(a)) / step
            rest = dict(self._expand(of))
            _add(rest, form, Fraction(-1))
            self._forms[gradient] = {atom: c / step for atom, c in rest.items() if c}

    def _expand(self, terms: Form) -> Form:
        """Return a form over atoms, without known vectors."""
        total: dict[int, Fraction] = {}
        for k, c in terms.items():
            if k in self._known:
                continue
            if k in self._forms:
                _add(total, self._forms[k], c)
                continue
            if k in self.same_model and k not in self._size:
                self._size[k] = self._gradient(k)
            _add(total, {k: Fraction(1)}, c)
        for k in list(total):  # noise that a message has determined since a state was defined
            if k in self._forms:
                _add(total, self._forms[k], total.pop(k))
        return {k: c for k, c in total.items() if c and k not in self._known}

    def _moves(self, terms: Form) -> float:
        """Return how far a form moves; LeakauditError if it contains noise that hides it."""
        total = 0.0
        for atom, c in self._expand(terms).items():
            if atom not in self._size:
                raise LeakauditError(
                    f"{self.vectors[atom].label} is noise that no message determines"
                )
            total += abs(float(c)) * self._size[atom]
        return total

    def _gradient(self, k: int) -> float:
        """Return how far a gradient moves: Delta + L |change of its model|."""
        point = self.declared.points[k].terms
        if not all(map(self._has_bound, point)):
            raise LeakauditError(
                f"the model of {self.vectors[k].label} is not determined by earlier vectors"
            )
        moved = self._moves(point)
        if self.anywhere or not moved:
            return self.same_model[k]
        if self.smoothness is None:
            raise LeakauditError(
                f"a changed record moves the model of {self.vectors[k].label}; specify --smoothness"
            )
        self.smooth = True
        return self.same_model[k] + self.smoothness * moved

    def _define(self, k: int, form: Form) -> None:
        """Define a state; one that contains reflections becomes an atom, so that forms stay short.

        What cancels between two rounds is then not credited.
        """
        if any(atom < 0 for atom in form) and all(atom in self._size for atom in form):
            self._size[k] = sum(abs(float(c)) * self._size[atom] for atom, c in form.items())
        else:
            self._forms[k] = form

    def _release(self, form: Form) -> None:
        """Bound the fresh noise of what a message reveals."""
        noise = [atom for atom in form if atom >= 0 and self.vectors[atom].kind == "noise"]
        if not noise:
            if any(self._size[atom] for atom in form):
                shown = labels(self.vectors, [atom for atom in form if atom >= 0])
                raise LeakauditError(f"a combination of {shown} is sent without fresh noise")
            return
        fresh = max(noise, key=lambda k: abs(float(form[k])) * self.vectors[k].std)
        self._known.update(k for k in noise if k != fresh)
        rest = {}
        for atom, c in form.items():
            if atom != fresh and atom not in self._known:
                rest[atom] = -c / form[fresh]
        self._forms[fresh] = rest
        self.of_noise[fresh] = sum(abs(float(c)) * self._size[atom] for atom, c in rest.items())
        if self.of_constant is not None and rest.keys() <= self.same_model.keys():
            self.of_constant[fresh] = abs(float(sum(rest.values())))
        else:
            self.of_constant = None


def _add(total: dict[int, Fraction], form: Form, factor: Fraction) -> None:
    for atom, c in form.items():
        total[atom] = total.get(atom, Fraction(0)) + factor * c
