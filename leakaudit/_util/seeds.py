"""Derivation of independent random streams from a seed."""

from __future__ import annotations

import numpy as np
from numpy.random import SeedSequence
from torch import Generator

from leakaudit.core.errors import LeakauditError


def generator(seed: int, node: int) -> Generator:
    """Return one node's random numbers, independent of which other nodes are attacked."""
    return Generator().manual_seed(child(seed, node))


def generators(seed: int, *names: str) -> dict[str, Generator]:
    """Return independent generators."""
    return {name: nth_generator(seed, place) for place, name in enumerate(names)}


def nth_generator(seed: int, place: int) -> Generator:
    """Return one of the generators that `generators` returns, without making the others."""
    if seed < 0:
        raise LeakauditError(f"seed: expected a whole number >= 0, got {seed}")
    return Generator().manual_seed(_word(SeedSequence(seed, spawn_key=(place,))))


def child(*numbers: int) -> int:
    """Return a seed that is independent of those of other numbers: a seed, a node, a repetition."""
    if min(numbers) < 0:
        raise LeakauditError(f"seed: expected a whole number >= 0, got {min(numbers)}")
    return _word(SeedSequence(list(numbers)))


def _word(stream: SeedSequence) -> int:
    """Return 63 bits of a stream: torch takes a seed as a signed 64-bit number."""
    return int(stream.generate_state(1, np.uint64)[0]) >> 1
