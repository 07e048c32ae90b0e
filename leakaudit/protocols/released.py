"""Shared parts of EXTRA and NIDS: private initial models, the prox of an l1 norm, fading noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.protocols.local import above, common, least, normal

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem
    from leakaudit.traces.recorder import Recorder


def ranges(name: str, l1: float, spread: float, sigma: float, fade: float) -> None:
    """Check the constants that EXTRA and NIDS share.

    Args:
        l1: Weight of the l1 norm.
        sigma: Standard deviation of the noise in round 0.
    """
    above(name, fade=fade)
    least(name, l1=l1, spread=spread, sigma=sigma)
    if fade > 1:
        raise LeakauditError(f"{name}: expected fade <= 1, got {fade}")


class NoisyRelease:
    """Adds noise of standard deviation sigma fade^t and offers it to the recorder as ``xi``."""

    def __init__(self, sigma: float, fade: float, recorder: Recorder, generator: Generator) -> None:
        """Prepare the noise of a run.

        Args:
            sigma: Standard deviation in round 0; 0 adds no noise.
        """
        self.sigma = sigma
        self.fade = fade
        self.recorder = recorder
        self.generator = generator

    def __call__(self, t: int, value: Tensor) -> Tensor:
        """Return value (N, d) with the noise of round t."""
        if not self.sigma:
            return value
        noise = normal(value, self.sigma * self.fade**t, self.generator)
        self.recorder.state("xi", t, noise)
        return value + noise


def start(problem: Problem, recorder: Recorder, generator: Generator, spread: float) -> Tensor:
    """Return the initial models (N, d): the common one, plus private normal vectors.

    Args:
        recorder: Holds the common initial model ``w0``.
        spread: Standard deviation of the private vectors; 0 for none.
    """
    w = common(recorder, problem)
    if not spread:
        return w
    return w + normal(w, spread, generator)


def shrink(v: Tensor, by: float | Tensor) -> Tensor:
    """Return the prox of ``by |.|_1``: every coordinate moves towards zero by at most `by`.

    Args:
        v: The vectors, (N, d).
        by: A number, or one per node, (N, 1).
    """
    if isinstance(by, float) and by == 0:
        return v
    return v.sign() * torch.clamp(v.abs() - by, min=0)
