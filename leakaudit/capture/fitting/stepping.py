"""Name the optimiser behind a sequence of models, from the gradients at them."""

# An optimiser with given constants computes the direction of every step from the gradients and
# models so far; the model then moves along it by the step size. The constants are fitted to the
# first moves. What is named must predict the other moves, which were held back, up to the rounding
# of the models.

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from leakaudit._util.plural import counted
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
ALL_DIGITS = 17  # reproduce every float exactly
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


def shortest(value: float, near: float) -> float:
    """Return a value with the fewest digits that agree with a measurement, as programs use them."""
    for digits in range(1, ALL_DIGITS):
        rounded = float(f"{value:.{digits}g}")
        if abs(rounded - value) <= near * abs(value):
            return rounded
    return float(f"{value:.{ALL_DIGITS}g}")


@dataclass(frozen=True)
class ModelMoves:
    """Models, their moves and gradients in successive rounds, at the coordinates that move most."""

    models: Tensor  # (T, c) float64, the models from which the steps start
    moves: Tensor  # (T, c) float64, what the steps subtract from them
    gradients: Tensor  # (T, c) float64
    norms: Tensor  # (T,) norms of the complete gradients
    floor: float  # the miss that rounding explains, relative to the smallest move
    rounding: float = 0.0  # only that of the number formats
    # (c,) places of the coordinates in a model
    columns: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))

    def before(self, stop: int) -> ModelMoves:
        """Return the moves of the rounds before one."""
        return replace(
            self,
            models=self.models[:stop],
            moves=self.moves[:stop],
            gradients=self.gradients[:stop],
            norms=self.norms[:stop],
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
    miss: float  # largest miss of a move that was held back, relative to the move
    clip: float = 0.0  # norm to which larger gradients are scaled down before a step; 0 for none
    # whether every gradient is scaled to norm 1, as it appears if all are clipped
    normalised: bool = False

    @property
    def scaled(self) -> bool:
        """Whether gradients are scaled before a step."""
        return self.clip > 0 or self.normalised

    def predicts(self, moves: ModelMoves) -> bool:
        """Return whether the optimiser and its constants explain the moves of another node."""
        rates = torch.tensor(self.rates[: len(moves.moves)], dtype=torch.float64)
        misses = self._residuals(moves, rates) / moves.moves.norm(dim=1)
        return float(misses.max()) < ROUNDINGS * max(moves.floor, self.miss)

    def first_miss_of(self, moves: ModelMoves) -> int | None:
        """Return the first move of a run that a constant step size does not explain, if any."""
        # Moves that are rounded more coarsely than `COARSE` show nothing.
        rates = torch.full((len(moves.moves),), self.rates[0], dtype=torch.float64)
        sizes = moves.moves.norm(dim=1).clamp_min(1e-300)
        misses = self._residuals(moves, rates) / sizes
        floors = moves.floor * sizes.min() / sizes
        allowed = ROUNDINGS * floors.clamp_min(max(self.miss, moves.rounding))
        wrong = ((misses > allowed) & (floors < COARSE)).nonzero()
        return int(wrong[0]) if len(wrong) else None

    def _residuals(self, moves: ModelMoves, rates: Tensor) -> Tensor:
        """Return the lengths (T,) of what steps of these sizes (T,) do not explain of the moves."""
        direction = _directions(moves, self.optimiser, self.clip, self.normalised)
        residuals: Tensor = (moves.moves - rates[:, None] * direction).norm(dim=1)
        return residuals

    def shrinkage(self, base: Tensor, index: int) -> Tensor:
        """Return what weight decay adds to a step, with the last step size that is known."""
        rate = self.rates[min(index, len(self.rates) - 1)]
        return rate * self.optimiser.decay * base

    @property
    def rate(self) -> float | None:
        """The step size; None if it changes, or is known only up to the norm of gradients."""
        low = min(self.rates)
        high = max(self.rates)
        unscaled = self.optimiser.is_linear and self.normalised
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
        elif self.normalised:
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
        if self.normalised:
            said.append("every gradient clipped")
        if self.clip:
            said.append(f"gradients clipped to norm {self.clip:g}")
        return ", ".join(said)


def observed(
    models: Sequence[Tensor],
    moves: Sequence[Tensor],
    gradients: Sequence[Tensor],
    rounding: float,
    of_gradients: float = 0.0,
    most: int = MOST,
) -> ModelMoves:
    """Return models and gradients (d,) of successive rounds at the coordinates that move most.

    moves: (d,) what the step of every round subtracts; rounding: distance from 1 to the next number
    in the format of the models.
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
        columns=some,
    )


def first_miss(moves: ModelMoves) -> float:
    """Return the miss of the first move as a sum of gradient and weight decay."""
    # The first step of every kind of SGD has this form.
    u = moves.moves[0]
    columns = torch.stack([moves.gradients[0], moves.models[0]], dim=1)
    fitted = torch.linalg.lstsq(columns, u[:, None], driver="gelsd").solution
    return float((u - (columns @ fitted)[:, 0]).norm() / u.norm())


def identify(moves: ModelMoves, linear: bool = False) -> Stepping | None:
    """Name the simplest optimiser of `protocols.optimiser` that predicts the held-back moves.

    None if there is none, too few moves, or too coarse a rounding.
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
class OptimiserFamily:
    """Optimisers that differ only in the values of their constants."""

    names: tuple[str, ...] = ()  # the constants to fit: momentum, decay or clip; the others are 0
    nesterov: bool = False  # whether its momentum is Nesterov's
    kind: Kind = "sgd"
    normalised: bool = False  # whether every gradient is scaled to norm 1

    @property
    def least(self) -> int:
        """Moves to which its constants and the step size are fitted, at least."""
        return 1 + len(self.names) + (self.kind != "sgd")

    def at(self, values: Sequence[float]) -> Optimiser | None:
        """Return the optimiser; None if a value is out of range."""
        held = dict(zip(self.names, values, strict=True))
        momentum = held.get("momentum", 0.0)
        if min(values, default=0.0) < 0 or momentum >= 1 or (self.nesterov and not momentum):
            return None
        return Optimiser(self.kind, momentum, self.nesterov, held.get("decay", 0.0))

    def clip(self, values: Sequence[float]) -> float:
        """Return the norm to which gradients are clipped; 0 if they are not."""
        return dict(zip(self.names, values, strict=True)).get("clip", 0.0)


def _families(constant: bool) -> list[OptimiserFamily]:
    # A step size that is not constant explains gradients of any norm, so clipping is then not
    # considered.
    found: list[OptimiserFamily] = []
    for decay, scaling in itertools.product((False, True), ("", "normalised", "clip")):
        if scaling and not constant:
            continue
        names: tuple[str, ...] = ("decay",) * decay + ("clip",) * (scaling == "clip")
        kinds: list[Kind] = ["adam", "adamw", "adagrad"] if decay else ["adam", "adagrad"]
        tried = [
            OptimiserFamily(names),
            OptimiserFamily(("momentum", *names)),
            OptimiserFamily(("momentum", *names), nesterov=True),
            *(OptimiserFamily(names, kind=kind) for kind in kinds),  # without decay, AdamW is Adam
        ]
        found += [replace(family, normalised=scaling == "normalised") for family in tried]
    return sorted(found, key=lambda family: (len(family.names), family.normalised))


def _fitted(moves: ModelMoves, family: OptimiserFamily, constant: bool) -> Stepping | None:
    """Return the member of a family that explains the first moves best; None if there is none."""
    many = moves.fitted
    first = moves.before(many)
    low = float(moves.norms.min())
    high = float(moves.norms.max())

    def miss(values: Sequence[float]) -> float:
        # A norm that clips all gradients, or none, would explain nothing.
        if "clip" in family.names and not low <= family.clip(values) < high:
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
    miss_of_held_back = float(misses[many:].max())
    clip = family.clip(values)
    return Stepping(member, tuple(rates.tolist()), miss_of_held_back, clip, family.normalised)


def _searched(
    moves: ModelMoves, family: OptimiserFamily, miss: Callable[[Sequence[float]], float]
) -> list[float]:
    """Return the constants of a family with the smallest miss, with as few digits as explain it."""
    # Empty if usual constants do not explain the moves even approximately.
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
    starts = STARTS[name]
    if name != "clip":
        return starts
    return tuple(moves.norms.quantile(torch.tensor(starts, dtype=torch.float64)).tolist())


def _stepping(
    moves: ModelMoves, family: OptimiserFamily, values: Sequence[float], constant: bool, many: int
) -> tuple[Tensor, Tensor] | None:
    """Return the step sizes (T,) of an optimiser and its misses (T,), relative to the moves."""
    # The step size is fitted to the first `many` moves, or, if it is not constant, to each.
    optimiser = family.at(values)
    if optimiser is None:
        return None
    u = moves.moves
    d = _directions(moves, optimiser, family.clip(values), family.normalised)
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


def _directions(moves: ModelMoves, optimiser: Optimiser, clip: float, normalised: bool) -> Tensor:
    """Return the directions (T, c) of the steps, for step size 1."""
    memory = OptimiserState()
    factors = torch.ones_like(moves.norms)
    if normalised:
        factors = moves.norms.reciprocal()
    elif clip:
        factors = (clip / moves.norms).clamp(max=1.0)
    directions: list[Tensor] = []
    for w, g in zip(moves.models, factors[:, None] * moves.gradients, strict=True):
        directions.append(w - optimiser.step(memory, 1.0, w, g.clone()))
    return torch.stack(directions)
