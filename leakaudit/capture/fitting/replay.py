"""Predict models with torch's own optimiser, from constants that a program states."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from leakaudit.capture.fitting.stepping import COARSE, ROUNDINGS, ModelMoves

Constant: TypeAlias = bool | int | float | str | None
# Optimisers of torch that compute each coordinate on its own.
KINDS = (
    "SGD",
    "Adam",
    "AdamW",
    "Adagrad",
    "RMSprop",
    "NAdam",
    "RAdam",
    "Adamax",
    "Adadelta",
)
# Above so many times what rounding explains, a miss contradicts a statement. In between, nothing
# is decided: an adaptive optimiser enlarges the rounding of small gradients. A choice.
CONTRADICTS = 10.0
AFTER_CLIPPING = 1e-6  # torch adds it to the norm


@dataclass(frozen=True)
class GroupConstants:
    """The constants of one group of parameters."""

    size: int  # numbers in its parameters
    constants: Mapping[str, Constant]
    members: tuple[int, ...] = ()  # places of its parameters in the model; empty for one group


@dataclass(frozen=True)
class OptimiserStep:
    """One step of an optimiser, as a program states it."""

    number: int  # of the optimiser in its process
    kind: str  # its class
    groups: tuple[GroupConstants, ...]

    @property
    def size(self) -> int:
        """Numbers in all parameters."""
        return sum(group.size for group in self.groups)

    @property
    def common(self) -> Mapping[str, Constant] | None:
        """The constants if all groups have the same ones."""
        first = self.groups[0].constants
        if all(group.constants == first for group in self.groups):
            return first
        return None


@dataclass(frozen=True)
class StatedMove:
    """What a program states about the move from one model to the next."""

    steps: tuple[OptimiserStep, ...]
    clip_norm: float = 0.0  # norm to which the whole gradient is clipped; 0 if it is not
    clip_value: float = 0.0  # the same for each number
    factor: float = 1.0  # of the gradient that travels, over that of the step


@dataclass(frozen=True)
class Replay:
    """How far the stated optimiser misses the recorded models."""

    miss: float  # the largest one, relative to the move
    moves: int
    agrees: bool | None  # None if the messages do not decide


@dataclass
class _Running:
    """The optimisers of a replay, which keep their state from step to step."""

    columns: list[Tensor]  # of each group
    parameters: list[torch.nn.Parameter]
    known: dict[int, Any] = field(default_factory=dict)


def replay(
    moves: ModelMoves, stated: Sequence[StatedMove], starts: Sequence[int] = ()
) -> Replay | None:
    """Predict every model from the one before it; None if a step cannot be predicted.

    starts: first column of each parameter of the model, to tell groups with other constants apart.
    """
    count = min(len(moves.gradients), len(stated))
    if not count:
        return None
    running: _Running | None = None
    misses: list[float] = []
    for t in range(count):
        move = stated[t]
        after = moves.models[t]
        if len(move.steps) > 1:
            return None
        for step in move.steps:
            if running is None:
                columns = _columns(step, moves.columns, starts)
                if columns is None:
                    return None
                running = _Running(columns, [_parameter(len(one)) for one in columns])
            predicted = _predicted(running, step, moves.models[t], _gradient(moves, t, move))
            if predicted is None:
                return None
            after = predicted
        missed = moves.moves[t] - (moves.models[t] - after)
        misses.append(float(missed.norm()))
    return _judged(moves, torch.tensor(misses, dtype=torch.float64))


def _judged(moves: ModelMoves, missed: Tensor) -> Replay:
    sizes = moves.moves[: len(missed)].norm(dim=1).clamp_min(1e-300)
    smallest = moves.moves.norm(dim=1).min().clamp_min(1e-300)
    allowed = ROUNDINGS * moves.floor * smallest / sizes
    misses = missed / sizes
    clear = allowed < COARSE
    still = missed == 0
    agrees: bool | None = None
    if bool(((misses > CONTRADICTS * allowed) & clear).any()):
        agrees = False
    elif bool(((misses <= allowed) | still).all()) and bool(clear.any()):
        agrees = True
    shown = misses[clear] if bool(clear.any()) else misses
    return Replay(float(shown.max()), len(missed), agrees)


def _gradient(moves: ModelMoves, t: int, move: StatedMove) -> Tensor:
    gradient = moves.gradients[t] / move.factor
    if move.clip_norm:
        norm = moves.norms[t] / move.factor
        gradient = gradient * (move.clip_norm / (norm + AFTER_CLIPPING)).clamp_max(1.0)
    if move.clip_value:
        gradient = gradient.clamp(-move.clip_value, move.clip_value)
    return gradient


def _columns(step: OptimiserStep, chosen: Tensor, starts: Sequence[int]) -> list[Tensor] | None:
    """Return, for each group, which of the chosen columns belong to it."""
    if step.common is not None:
        return [torch.arange(len(chosen))]
    place = torch.bucketize(chosen, torch.tensor(starts, dtype=torch.long), right=True) - 1
    found: list[Tensor] = []
    for group in step.groups:
        members = torch.tensor(group.members, dtype=torch.long)
        found.append(torch.isin(place, members).nonzero()[:, 0])
    if sum(map(len, found)) != len(chosen):
        return None
    return found


def _parameter(count: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(count, dtype=torch.float64))


def _predicted(
    running: _Running, step: OptimiserStep, model: Tensor, gradient: Tensor
) -> Tensor | None:
    """Return the model (c,) after a step; None if torch has no such optimiser."""
    groups = [step.groups[0].constants] if step.common else [g.constants for g in step.groups]
    if step.kind not in KINDS or len(groups) != len(running.columns):
        return None
    kind = getattr(torch.optim, step.kind)
    for parameter, columns in zip(running.parameters, running.columns, strict=True):
        parameter.data = model[columns].clone()
        parameter.grad = gradient[columns].clone()
    try:
        chosen = [_arguments(kind, constants) for constants in groups]
        optimiser = running.known.get(step.number)
        if optimiser is None:
            held = [
                {"params": [parameter], **constants}
                for parameter, constants in zip(running.parameters, chosen, strict=True)
            ]
            optimiser = kind(held, foreach=False)
            running.known[step.number] = optimiser
        for group, constants in zip(optimiser.param_groups, chosen, strict=True):
            group.update(constants)
        optimiser.step()
    except (TypeError, ValueError, RuntimeError, KeyError):
        return None
    after = model.clone()
    for parameter, columns in zip(running.parameters, running.columns, strict=True):
        after[columns] = parameter.detach()
    return after


def _arguments(kind: Any, constants: Mapping[str, Constant]) -> dict[str, Any]:
    known = inspect.signature(kind.__init__).parameters
    found: dict[str, Any] = {}
    for name in known:
        pair = f"{name}0", f"{name}1"
        if constants.keys() >= set(pair):
            found[name] = tuple(constants[one] for one in pair)
        elif name in constants:
            found[name] = constants[name]
    return found
