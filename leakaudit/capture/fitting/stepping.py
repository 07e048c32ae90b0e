"""Name the optimiser behind a sequence of models, from the gradients at them.

An optimiser with given constants computes the direction of every step from the gradients and models
so far; the model then moves along it by the step size. The constants are fitted to the first moves.
What is named must predict the other moves, which were held back, up to the rounding of the models.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from leakaudit._util.plural import counted
from leakaudit.capture.fitting.digits import shortest
from leakaudit.protocols.optimiser import Kind, Optimiser, OptimiserState
from leakaudit.tasks.task import Task

LEAST = 2  # moves without which nothing is named: one to fit the step size, one to predict
HELD = 2  # moves that are held back, if there are four or more: a choice
MOST = 8  # moves that are compared: a choice that bounds the time
COORDINATES = 1024  # coordinates that are compared: also a choice
EVALUATIONS = 60  # of the miss, for each constant and start of a search: also a choice

# The miss of the correct optimiser, in units of what rounding explains, was .1 to .4; that of a
# wrong one 5 or more, and of most 1000 or more (tests/reference/test_tap_stepping.py). The exact
# value in between is a choice.
ROUNDINGS = 2.0
# Rounding above which nothing is named: with that of bfloat16 (4e-3), different optimisers explain
# the same moves, as RMSprop and Adagrad do up to 2.7e-3 in three rounds.
COARSE = 1e-4
BETTER = 3.0  # an optimiser with more constants is named only if it misses by so much less
SPREAD = 1e-3  # relative difference up to which step sizes are one constant
DIGITS = 7  # more than a constant in a program has
WORSE = 1.1  # factor by which a constant may worsen the miss when it is simplified

# Miss at usual constants above which constants are not searched. With the correct optimiser and
# usual constants it was below .3; Adam's directions miss those of SGD by .8 or more. A choice.
NEAR = 0.5
OUTSIDE = 2.0  # the miss of constants out of range: more than any other

SCALER = (
    "or, as it does so in powers of two, what was sent are multiples of gradients: a loss scale "
    "that changes, as that of GradScaler"
)
TESTED = (  # constants beside the step size -> an optimiser with so many
    "a step size only",
    "momentum",
    "momentum and weight decay",
    "momentum, weight decay and clipping",
)

# Values that programs use, from which the constants are searched.
STARTS = {
    "momentum": (0.9, 0.5),
    "decay": (1e-3,),
    "clip": (0.8, 0.4),  # quantiles of the norms of the gradients
}


def obstacle(task: Task, dtype: torch.dtype) -> str:
    """Return why no equation can be fitted to messages; empty if there is no reason."""
    if task.first_linear is None or task.first_linear[1] is None:
        return "the model has no fully connected first layer with a bias"
    if torch.finfo(dtype).eps > COARSE:
        return f"messages in {dtype} are rounded too coarsely"
    return ""


@dataclass(frozen=True)
class StepScaling:
    """How gradients are scaled before a step."""

    clip: float = 0.0  # norm to which larger gradients are scaled down; 0 for none
    # whether every gradient is scaled to norm 1, as it appears if all are clipped
    normalised: bool = False

    def factors(self, norms: Tensor) -> Tensor:
        """Return the factors (T,) of gradients with these norms (T,)."""
        if self.normalised:
            return norms.reciprocal()
        if not self.clip:
            return torch.ones_like(norms)
        return (self.clip / norms).clamp(max=1.0)


@dataclass(frozen=True)
class ModelMoves:
    """Models, their moves and gradients in successive rounds, at the coordinates that move most."""

    models: Tensor  # (T, c) float64, the models from which the steps start
    moves: Tensor  # (T, c) float64, what the steps subtract from them
    gradients: Tensor  # (T, c) float64
    norms: Tensor  # (T,) norms of the complete gradients
    floor: float  # the miss that rounding explains, relative to the smallest move
    rounding: float = 0.0  # only that of the number formats

    def before(self, stop: int) -> ModelMoves:
        """Return the moves of the rounds before one."""
        return ModelMoves(
            models=self.models[:stop],
            moves=self.moves[:stop],
            gradients=self.gradients[:stop],
            norms=self.norms[:stop],
            floor=self.floor,
            rounding=self.rounding,
        )

    @property
    def fitted(self) -> int:
        """The number of moves to which constants are fitted; one or two are held back."""
        return _fitted_of(len(self.gradients))


@dataclass(frozen=True)
class Stepping:
    """An optimiser that explains all moves."""

    optimiser: Optimiser
    rates: tuple[float, ...]  # the step size of every move
    scaling: StepScaling  # how gradients are scaled before the step
    miss: float  # largest miss of a move that was held back, relative to the move

    def predicts(self, moves: ModelMoves) -> bool:
        """Return whether the optimiser and its constants explain the moves of another node."""
        direction = _directions(moves, self.optimiser, self.scaling.factors(moves.norms))
        rates = torch.tensor(self.rates[: len(direction)], dtype=torch.float64)
        misses = (moves.moves - rates[:, None] * direction).norm(dim=1) / moves.moves.norm(dim=1)
        return float(misses.max()) < ROUNDINGS * max(moves.floor, self.miss)

    def first_miss_of(self, moves: ModelMoves) -> int | None:
        """Return the first move of a whole run that a constant step size does not explain, if any.

        Moves that are rounded more coarsely than `COARSE` show nothing.
        """
        direction = _directions(moves, self.optimiser, self.scaling.factors(moves.norms))
        sizes = moves.moves.norm(dim=1).clamp_min(1e-300)
        misses = (moves.moves - self.rates[0] * direction).norm(dim=1) / sizes
        floors = moves.floor * sizes.min() / sizes
        allowed = ROUNDINGS * floors.clamp_min(max(self.miss, moves.rounding))
        wrong = ((misses > allowed) & (floors < COARSE)).nonzero()
        return int(wrong[0]) if len(wrong) else None

    def shrinkage(self, base: Tensor, index: int) -> Tensor:
        """Return the part of a step of SGD without momentum that weight decay adds.

        Args:
            index: Its position; the last step size that is known stands for later ones.
        """
        rate = self.rates[min(index, len(self.rates) - 1)]
        return rate * self.optimiser.decay * base

    @property
    def rate(self) -> float | None:
        """The step size; None if it changes, or is known only up to the norm of gradients."""
        low = min(self.rates)
        high = max(self.rates)
        unscaled = self.optimiser.is_linear and self.scaling.normalised
        if unscaled or high - low > SPREAD * high:
            return None
        return shortest(float(np.median(self.rates)), max(self.miss, SPREAD / 10))

    @property
    def _doubles(self) -> bool:
        """Whether the step size changes in powers of two, as it seems if gradients are scaled."""
        powers = np.log2(np.array(self.rates) / self.rates[0])
        return bool(np.abs(powers - powers.round()).max() < SPREAD)

    @property
    def text(self) -> str:
        """The optimiser and its constants in words."""
        chosen = self.optimiser
        said: list[str] = [chosen.kind]
        if self.rate is not None:
            said.append(f"step size {self.rate:g}")
        elif self.scaling.normalised:
            said.append(f"step size times clipping norm {self.rates[0]:.4g}")
        else:
            some = ", ".join(f"{rate:.3g}" for rate in self.rates[:4])
            changes = "it changes"
            if self._doubles:
                changes = f"{changes}; {SCALER}"
            said.append(f"step size {some}, … ({changes})")
        if chosen.momentum:
            kind = "Nesterov momentum" if chosen.nesterov else "momentum"
            said.append(f"{kind} {chosen.momentum:g}")
        if chosen.decay:
            said.append(f"weight decay {chosen.decay:g}")
        if self.scaling.normalised:
            said.append("every gradient clipped")
        if self.scaling.clip:
            said.append(f"gradients clipped to norm {self.scaling.clip:g}")
        return ", ".join(said)


def observed(
    models: Sequence[Tensor],
    moves: Sequence[Tensor],
    gradients: Sequence[Tensor],
    rounding: float,
    of_gradients: float = 0.0,
    most: int = MOST,
) -> ModelMoves:
    """Return models and gradients at the coordinates that move most, for `identify`.

    Args:
        models: The models (d,) of T successive rounds, the first one before any step.
        moves: What the step of every round subtracts from the model, (d,).
        gradients: The gradients (d,) of every round.
        rounding: Distance from 1 to the next number in the number format of the models.
    """
    count = min(len(gradients), most)
    moved = torch.stack([move.double() for move in moves[:count]])
    some = moved.abs().sum(0).topk(min(COORDINATES, moved.shape[1])).indices
    of_model = torch.stack([model[some].double() for model in models[:count]])
    of_gradient = torch.stack([gradient[some].double() for gradient in gradients[:count]])
    size = float(of_model.norm(dim=1).max())
    smallest = float(moved[:, some].norm(dim=1).min().clamp_min(1e-300))
    return ModelMoves(
        models=of_model,
        moves=moved[:, some],
        gradients=of_gradient,
        norms=torch.stack([gradient.double().norm() for gradient in gradients[:count]]),
        floor=max(rounding, of_gradients) + rounding * size / smallest,
        rounding=max(rounding, of_gradients),
    )


def first_miss(moves: ModelMoves) -> float:
    """Return the miss of the first move as a sum of gradient and weight decay, by least squares.

    The first step of every kind of SGD has this form.
    """
    u = moves.moves[0]
    columns = torch.stack([moves.gradients[0], moves.models[0]], dim=1)
    fitted = torch.linalg.lstsq(columns, u[:, None], driver="gelsd").solution
    return float((u - (columns @ fitted)[:, 0]).norm() / u.norm())


def identify(moves: ModelMoves, linear: bool = False) -> Stepping | None:
    """Name the optimiser that explains the moves.

    Returns:
        The simplest optimiser that predicts the held-back moves; None if none of those in
        `leakaudit.protocols.optimiser` does, if there are too few moves, or if they are rounded too
        coarsely.
    """
    if len(moves.gradients) < LEAST or not bool(moves.moves.norm(dim=1).all()):
        return None
    if moves.floor > COARSE:
        return None
    limit = ROUNDINGS * moves.floor
    for constant in (True, False):
        best: Stepping | None = None
        for family in _families(constant):
            if linear and family.kind != "sgd":
                continue
            if moves.fitted < family.least:
                continue
            found = _fitted(moves, family, constant)
            if found is None or found.miss > limit:
                continue
            if best is None or found.miss * BETTER < best.miss:
                best = found
            if best.miss < moves.floor:
                return best
        if best is not None:
            return best
    return None


def untested(moves: ModelMoves) -> str:
    """Return the optimisers that so few moves cannot identify, and the rounds that it takes."""
    steps = len(moves.gradients)
    found: list[str] = []
    for least in sorted({family.least for family in _families(constant=True)}):
        if moves.fitted >= least and steps >= LEAST:
            continue
        count = next(n for n in range(LEAST, MOST + 1) if _fitted_of(n) >= least)
        # A round shows a gradient, and the next one the model after its step.
        found.append(f"{TESTED[least - 1]} (record at least {count + 1} rounds)")
    if not found:
        return ""
    few = f"{counted(steps, 'step')} {'is' if steps == 1 else 'are'} too few"
    return f"{few} to test an optimiser with {', '.join(found)}"


def _fitted_of(count: int) -> int:
    """Return to how many moves constants are fitted; one or two are held back."""
    return count - min(HELD, count - 1, max(1, count - 2))


@dataclass(frozen=True)
class _Family:
    """Optimisers that differ only in the values of their constants."""

    kind: Kind
    nesterov: bool  # whether its momentum is Nesterov's
    names: tuple[str, ...]  # the constants to fit: momentum, decay or clip. The others are 0.
    normalised: bool  # whether every gradient is scaled to norm 1

    @property
    def least(self) -> int:
        """Moves to which its constants and the step size are fitted, at least."""
        return 1 + len(self.names) + (self.kind != "sgd")

    def at(self, values: Sequence[float]) -> tuple[Optimiser, StepScaling] | None:
        """Return the optimiser and the scaling of gradients; None if a value is out of range."""
        held = dict(zip(self.names, values, strict=True))
        momentum = held.get("momentum", 0.0)
        if min(values, default=0.0) < 0 or momentum >= 1 or (self.nesterov and not momentum):
            return None
        optimiser = Optimiser(self.kind, momentum, self.nesterov, held.get("decay", 0.0))
        return optimiser, StepScaling(held.get("clip", 0.0), self.normalised)


def _families(constant: bool) -> list[_Family]:
    """Return all families, those with fewer constants first.

    Args:
        constant: Whether the step size is constant. A step size that may differ in every round
            explains gradients of any norm, so clipping is then not considered.
    """
    found = []
    for decay, scaling in itertools.product((False, True), ("", "normalised", "clip")):
        if scaling and not constant:
            continue
        names: list[str] = ["decay"] * decay + ["clip"] * (scaling == "clip")
        normalised = scaling == "normalised"
        found.append(_Family("sgd", False, tuple(names), normalised))
        for nesterov in (False, True):
            found.append(_Family("sgd", nesterov, ("momentum", *names), normalised))
        found.append(_Family("adam", False, tuple(names), normalised))
        if decay:  # otherwise AdamW is Adam
            found.append(_Family("adamw", False, tuple(names), normalised))
        found.append(_Family("adagrad", False, tuple(names), normalised))
    return sorted(found, key=lambda family: (len(family.names), family.normalised))


def _fitted(moves: ModelMoves, family: _Family, constant: bool) -> Stepping | None:
    """Return the member of a family that explains the first moves best; None if there is none."""
    many = moves.fitted
    first = moves.before(many)
    # A norm that clips all gradients, or none, would explain nothing.
    low = float(moves.norms.min())
    high = float(moves.norms.max())

    def miss(values: Sequence[float]) -> float:
        clip = dict(zip(family.names, values, strict=True)).get("clip", low)
        if not low <= clip < high:
            return OUTSIDE
        found = _stepping(first, family, values, constant, many)
        if found is None:
            return OUTSIDE
        return float(found[1].max())

    values: list[float] = []
    if family.names:
        values = _searched(moves, family, miss)
        if not values:
            return None
    found = _stepping(moves, family, values, constant, many)
    member = family.at(values)
    if found is None or member is None:
        return None
    rates, misses = found
    if float(rates.min()) <= 0:
        return None
    return Stepping(member[0], tuple(rates.tolist()), member[1], float(misses[many:].max()))


def _searched(
    moves: ModelMoves, family: _Family, miss: Callable[[Sequence[float]], float]
) -> list[float]:
    """Return the constants of a family with the smallest miss, with as few digits as explain it.

    Empty if usual constants do not explain the moves even approximately.
    """
    options = {"maxfev": EVALUATIONS * len(family.names), "xatol": 1e-7, "fatol": 1e-9}
    best: list[float] = []
    for start in itertools.product(*(_starts(moves, name) for name in family.names)):
        if miss(start) > NEAR:
            continue
        found = minimize(miss, start, method="Nelder-Mead", options=options).x.tolist()
        if not best or miss(found) < miss(best):
            best = found
    for k, value in enumerate(best):
        limit = max(WORSE * miss(best), moves.floor / 2)
        for digits in range(DIGITS):
            trial = best.copy()
            trial[k] = float(f"{value:.{digits}g}") if digits else 0.0
            if miss(trial) <= limit:
                best = trial
                break
    return best


def _starts(moves: ModelMoves, name: str) -> tuple[float, ...]:
    """Return values of a constant from which to search."""
    starts = STARTS[name]
    if name != "clip":
        return starts
    return tuple(moves.norms.quantile(torch.tensor(starts, dtype=torch.float64)).tolist())


def _stepping(
    moves: ModelMoves, family: _Family, values: Sequence[float], constant: bool, many: int
) -> tuple[Tensor, Tensor] | None:
    """Return the step sizes (T,) of an optimiser and its misses (T,), relative to the moves.

    The step size is fitted to the first `many` moves, or, if it is not constant, to each of them.
    """
    member = family.at(values)
    if member is None:
        return None
    optimiser, scaling = member
    u = moves.moves
    d = _directions(moves, optimiser, scaling.factors(moves.norms))
    # By least squares, u = rate d in every round, or in all rounds with the same rate. In the sum
    # over rounds, each is divided by the length of its move, so that every move counts equally.
    along = (u * d).sum(1)
    square = d.square().sum(1).clamp_min(1e-300)
    rates = along / square
    if constant:
        weight = u[:many].square().sum(1).reciprocal()
        rate = (weight * along[:many]).sum() / (weight * square[:many]).sum()
        rates = rate.expand(len(u))
    misses = (u - rates[:, None] * d).norm(dim=1) / u.norm(dim=1)
    return rates, misses


def _directions(moves: ModelMoves, optimiser: Optimiser, factors: Tensor) -> Tensor:
    """Return the directions (T, c) of the steps, for step size 1."""
    memory = OptimiserState()
    gradients = factors[:, None] * moves.gradients
    directions = []
    for w, g in zip(moves.models, gradients, strict=True):
        directions.append(w - optimiser.step(memory, 1.0, w, g.clone()))
    return torch.stack(directions)
