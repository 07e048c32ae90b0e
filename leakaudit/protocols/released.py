"""What EXTRA and NIDS share: private starts, an l1 prox, noise that fades."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from leakaudit.errors import LeakauditError
from leakaudit.protocols.local import above, common, least, normal

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem
    from leakaudit.traces.recorder import Recorder


def ranges(name: str, l1: float, spread: float, sigma: float, fade: float) -> None:
    """Refuse an l1 weight, a spread or a noise below 0, and noise that grows."""
    above(name, fade=fade)
    least(name, l1=l1, spread=spread, sigma=sigma)
    if fade > 1:
        raise LeakauditError(f"{name}: expected fade <= 1, got {fade}")


class Released:
    """Adds noise of standard deviation sigma fade^t, which is offered to the recorder as ``xi``."""

    def __init__(self, sigma: float, fade: float, recorder: Recorder, generator: Generator) -> None:
        self.sigma, self.fade, self.recorder, self.generator = sigma, fade, recorder, generator

    def __call__(self, t: int, value: Tensor) -> Tensor:
        """Return value (N, d) with the noise of round t."""
        if not self.sigma:
            return value
        noise = normal(value, self.sigma * self.fade**t, self.generator)
        self.recorder.state("xi", t, noise)
        return value + noise


def start(problem: Problem, recorder: Recorder, generator: Generator, spread: float) -> Tensor:
    """Return the start models (N, d): the common one, plus private normal vectors of standard deviation `spread`."""
    w = common(recorder, problem)
    return w + normal(w, spread, generator) if spread else w


def shrink(v: Tensor, by: float | Tensor) -> Tensor:
    """Return the prox of ``by |.|_1``: every coordinate moved towards zero by at most `by`."""
    return v if isinstance(by, float) and by == 0 else v.sign() * torch.clamp(v.abs() - by, min=0)
