"""The rounds of a protocol as one adversary sees them, for `recursion`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from leakaudit.theory.relations.expression import ONE
from leakaudit.theory.relations.forward import ForwardModel
from leakaudit.theory.relations.modular import Staircase, modular

# A round receives hidden vectors of earlier rounds, adds noise and gradients, passes hidden vectors
# on, and shows others to the adversary. If all rounds of a protocol are alike, the first few of a
# declaration and one more for all others describe a run of any length.

LinearForm = Mapping[int, Fraction]

# Largest number of hidden vectors that a round passes on, whose covariance then takes 290 MB.
PASSED = 6_000


class UnlikeRounds(Exception):
    """A view that a recursion over rounds does not cover, so that other methods decide."""


@dataclass(frozen=True)
class Round:
    """One round; its results are forms over earlier vectors, noise and gradients."""

    earlier: Sequence[int]  # the hidden vectors of earlier rounds that it receives
    noise: Sequence[int]
    gradients: Sequence[int]
    passed: Sequence[LinearForm]  # what it passes to the next round
    observed: Sequence[LinearForm]  # what is observed, in the order of declaration
    relations: Sequence[int]  # the relation that defines each observation
    # where each of its gradients is evaluated; without terms if this point is known. Empty if
    # points are not described.
    points: Sequence[LinearForm]

    @cached_property
    def columns(self) -> dict[int, int]:
        """The vectors that its forms contain -> their columns, in the order of the attributes."""
        return {k: c for c, k in enumerate([*self.earlier, *self.noise, *self.gradients])}


class Rounds:
    """The first rounds of a protocol, and the one that all later rounds are like.

    With `points`, those of gradients are described as well, for which more vectors may have to be
    passed on.
    """

    def __init__(
        self, model: ForwardModel, same: range, known: Collection[int], *, points: bool = True
    ) -> None:
        self.model = model
        self.same = same
        self._with_points = points
        self.declared = model.declared
        self._vectors = model.declared.vectors
        # As in `repeat.extend`: the very last round may lack what a next one would define.
        self._last = self.declared.round - 1
        if len(same) < 3:
            raise UnlikeRounds
        self.known = implied(model, known)
        self._defined = defaultdict[int, list[int]](list)
        for k, r in zip(model.defined, model.made_by.tolist(), strict=True):
            at = self._vectors[k].round
            if self.declared.relations[r].round != at:
                raise UnlikeRounds
            self._defined[at].append(k)
        self._noise = self._by_round(model.noise)
        self._gradients = self._by_round(model.gradients)
        # Every state and message, over noise and gradients of its round and earlier vectors.
        self.forms: dict[int, LinearForm] = {}
        self._of_round = defaultdict[int, dict[int, LinearForm]](dict)  # the same by round
        for t in range(self._last + 1):
            for k in self._defined[t]:
                self.forms[k] = self._reduced(model.definition(k), t)
                self._of_round[t][k] = self.forms[k]
        received = self._received()
        if max(map(len, received)) > PASSED:
            raise UnlikeRounds
        # Rounds 0 to n - 1, and round n, which stands for all after it but the last. In the last
        # round, nothing is known that only a next one shows, such as a model that is sent at its
        # start.
        self.first = [self._round(t, received[t], received[t + 1]) for t in range(self._last)]
        after = [self._after(k) for k in received[-1]]
        self.later = self._round(self._last, received[-1], after)
        self.final = self._round(self._last, received[-1], after, self._known_at_the_end)

    @cached_property
    def own_points(self) -> list[bool]:
        """Which points of the later round are functions of the view and of their owner's gradients.

        It follows by one definition at a time, in any run.
        """
        follow = implied(self.model, self.known, own=True)
        found = []
        for k in self.later.gradients:
            hidden = self.declared.points[k].terms.keys() - self.known
            owners = {self._vectors[j].owner for j in hidden}
            found.append(hidden <= follow and owners <= {self.owner(k)})
        return found

    def owner(self, k: int) -> int:
        """Return the owner of a gradient."""
        owner = self._vectors[k].owner
        assert owner is not None
        return owner

    def _by_round(self, places: Iterable[int]) -> Mapping[int, list[int]]:
        found = defaultdict[int, list[int]](list)
        for k in places:
            if k not in self.known:
                found[self._vectors[k].round].append(k)
        return found

    def _reduced(self, form: LinearForm, t: int) -> LinearForm:
        """Write a form over noise and gradients of a round, and hidden vectors of earlier ones."""
        hidden = {k: value for k, value in form.items() if not self._counts_as_known(k)}
        return substituted(hidden, self._of_round[t])

    def _counts_as_known(self, k: int) -> bool:
        """Return whether a vector is known; in the worst case, all secrets but the targets are."""
        return k in self.known or self._vectors[k].kind in ("public", "secret")

    def _points(self, t: int) -> list[LinearForm]:
        if not self._with_points:
            return []
        points = self.declared.points
        return [self._reduced(points[k].terms, t) for k in self._gradients[t]]

    def _uses(self, t: int) -> set[int]:
        forms = [*(self.forms[k] for k in self._defined[t]), *self._points(t)]
        return {k for form in forms for k in form if self._vectors[k].round < t}

    def _received(self) -> list[list[int]]:
        needed = self._uses(self._last)
        pending = list(needed)
        while pending:
            # What is used again a round later is passed on.
            after = self._after(pending.pop())
            if self._vectors[after].round < self._last and after not in needed:
                needed.add(after)
                pending.append(after)
        received = [sorted(needed)]
        for t in reversed(range(self._last)):
            needed = {k for k in needed if self._vectors[k].round < t} | self._uses(t)
            received.append(sorted(needed))
        received.reverse()
        return received

    def _after(self, k: int) -> int:
        after = self.declared.place(self._vectors[k], 1)
        if after is None or self._counts_as_known(after):
            raise UnlikeRounds
        return after

    @cached_property
    def _known_at_the_end(self) -> frozenset[int]:
        """Return the vectors of round `_last` of which those in the last declared one are known."""
        before, last, end = (self._known_roles(self._last + by) for by in (-1, 0, 1))
        # Noise that only the next round shows would be hidden in the last one.
        missing = last.keys() - end.keys()
        if before.keys() != last.keys() or end.keys() - last.keys():
            raise UnlikeRounds
        if any(self._vectors[last[role]].kind == "noise" for role in missing):
            raise UnlikeRounds
        return frozenset(last[role] for role in end)

    def _known_roles(self, t: int) -> dict[Hashable, int]:
        """Return the known vectors of a round by what distinguishes them from others."""
        found: dict[Hashable, int] = {}
        for k in (*self._defined[t], *(k for k in self.model.noise if self._vectors[k].round == t)):
            if k in self.known:
                v = self._vectors[k]
                found[v.kind, v.name, v.owner, v.index, v.dst] = k
        return found

    def _round(
        self,
        t: int,
        earlier: Sequence[int],
        to_next: Sequence[int],
        known: Collection[int] | None = None,
    ) -> Round:
        if known is None:
            known = self.known
        passed: list[LinearForm] = []
        for k in to_next:
            is_new = self._vectors[k].round == t and k in self.forms
            passed.append(self.forms[k] if is_new else {k: Fraction(1)})
        # Observations that follow from earlier ones of this round show nothing.
        stairs = Staircase()
        seen = []
        for k in self._defined[t]:
            if k in known and stairs.add(modular(self.forms[k])):
                seen.append(k)
        made_by = [int(self.model.made_by[self.model.place[k]]) for k in seen]
        made = Round(
            earlier,
            self._noise[t],
            self._gradients[t],
            passed,
            [self.forms[k] for k in seen],
            made_by,
            self._points(t),
        )
        for form in (*made.passed, *made.observed, *made.points):
            if not form.keys() <= made.columns.keys():
                raise UnlikeRounds
        return made


def substituted(form: LinearForm, definitions: Mapping[int, LinearForm]) -> LinearForm:
    """Replace vectors of a form by their definitions."""
    total = defaultdict[int, Fraction](Fraction)
    for k, value in form.items():
        for source, share in definitions.get(k, {k: ONE}).items():
            total[source] += value * share
    return {k: value for k, value in total.items() if value}


def implied(model: ForwardModel, known: Collection[int], *, own: bool = False) -> frozenset[int]:
    """Return the known vectors, and those that follow from them by one definition each.

    A message without noise, for example, shows the state that is sent.

    Args:
        own: Whether vectors of a node may also follow from gradients of the same node; these are
            used only for others of this node.
    """
    declared = model.declared
    vectors = declared.vectors
    found = set(known)
    found.update(k for k, v in enumerate(vectors) if v.kind in ("public", "secret"))
    users = defaultdict[int, list[int]](list)
    hidden: dict[int, set[int]] = {}
    pending: list[int] = []
    for r in model.made_by.tolist():
        left = {k for k in declared.relations[r].terms if k not in found}
        if own and len({vectors[k].owner for k in left}) == 1:
            left = {k for k in left if vectors[k].kind != "gradient"}
        hidden[r] = left
        for k in left:
            users[k].append(r)
        if len(left) == 1:
            pending.append(r)
    while pending:
        for k in hidden[pending.pop()]:
            if vectors[k].kind == "gradient":
                raise UnlikeRounds
            found.add(k)
            for r in users[k]:
                if own and len({vectors[j].owner for j in hidden[r]}) > 1:
                    continue
                hidden[r] = hidden[r] - {k}
                if len(hidden[r]) == 1:
                    pending.append(r)
    return frozenset(found)
