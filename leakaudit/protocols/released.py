"""Shared parts of EXTRA and NIDS: private initial models, the prox of an l1 norm, fading noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.protocols.local import above, least, normal

if TYPE_CHECKING:
    from leakaudit.protocols.simulation import Simulation


def ranges(name: str, l1: float, spread: float, sigma: float, fade: float) -> None:
    """Check the constants that EXTRA and NIDS share."""
    above(name, fade=fade)
    least(name, l1=l1, spread=spread, sigma=sigma)
    if fade > 1:
        raise LeakauditError(f"{name}: expected fade <= 1, got {fade}")


def noisy_release(sigma: float, fade: float, sim: Simulation) -> Callable[[int, Tensor], Tensor]:
    """Return a function that adds noise of standard deviation sigma fade^t, recorded as ``xi``."""

    def release(t: int, value: Tensor) -> Tensor:
        if not sigma:
            return value
        noise = normal(value, sigma * fade**t, sim.generator)
        sim.recorder.state("xi", t, noise)
        return value + noise

    return release


def start(sim: Simulation, spread: float) -> Tensor:
    """Return initial models (N, d): the common one, plus private normal vectors of std `spread`."""
    w = sim.common
    if not spread:
        return w
    return w + normal(w, spread, sim.generator)


def shrink(v: Tensor, by: float | Tensor) -> Tensor:
    """Return the prox of ``by |.|_1``: every coordinate moves towards zero by at most `by`.

    Args:
        v: The vectors, (N, d).
        by: A number, or one per node, (N, 1).
    """
    if isinstance(by, float) and by == 0:
        return v
    return v.sign() * torch.clamp(v.abs() - by, min=0)
