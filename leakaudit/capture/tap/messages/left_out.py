"""Whether the parameters that were left out follow the step that the recorded ones show.

The sketch of a vector is linear, and so are the steps of SGD with momentum and weight decay: the
sketches of the models then follow the same steps, with the sketches of the gradients.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from leakaudit.capture.fitting import stepping
from leakaudit.capture.fitting.sketch import ModelSketch, RunningSketch
from leakaudit.capture.tap.messages.layouts import ParameterPlace
from leakaudit.capture.tap.messages.streams import LoggedMessage

ROUNDINGS = 4  # of a sketch's sums, in units of the format; measured: 1 to 2


def follow(
    found: stepping.Stepping,
    models: Sequence[LoggedMessage],
    gradients: Sequence[Sequence[LoggedMessage]],
    slices: Sequence[ParameterPlace],
    scale: float,
) -> bool | None:
    """Return whether the sketches show the step that was found for the recorded parameters.

    Args:
        slices: place of each parameter in the model's vector, in the order of a message.

    Returns:
        The answer; None if there are no sketches, or if the optimiser is not linear.
    """
    if not found.optimiser.is_linear or found.scaling != stepping.StepScaling():
        return None
    common = [message.sketched() for of_round in gradients for message in of_round]
    first = common[0] if common else None
    if first is None:
        return None
    _, seed, places = first
    sketch = ModelSketch([place.stop - place.start for place in slices], seed)
    values: list[Tensor] = []
    means: list[Tensor] = []
    for model in models:
        value = _sketch(model, sketch, places, slices)
        if value is None:
            return None
        values.append(value)
    for of_round in gradients:
        held = [_sketch(message, sketch, places, slices) for message in of_round]
        known = [value for value in held if value is not None]
        if len(known) < len(held):
            return None
        means.append(torch.stack(known).mean(0) * scale)
    moves = [before - after for before, after in itertools.pairwise(values)]
    rounding = ROUNDINGS * torch.finfo(models[0].dtype).eps
    return found.predicts(stepping.observed(values[:-1], moves, means, rounding))


def _sketch(
    message: LoggedMessage,
    sketch: ModelSketch,
    places: Sequence[int],
    slices: Sequence[ParameterPlace],
) -> Tensor | None:
    """Return the sketch of some parameters of a message, recorded or computed; None if unknown."""
    recorded = message.sketched()
    if recorded is not None:
        total, seed, others = recorded
        return total.reshape(-1) if (seed, set(others)) == (sketch.seed, set(places)) else None
    whole = message.whole(slices)
    if whole is None or any(place.axes for place in slices):
        return None
    running = RunningSketch(sketch)
    for place in places:
        running.add(place, whole[slices[place].start : slices[place].stop])
    taken = running.take()
    return None if taken is None else taken[0].double().reshape(-1)
