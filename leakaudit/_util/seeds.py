"""The one rule by which a seed becomes independent streams of random numbers."""

from __future__ import annotations

import numpy as np
from numpy.random import SeedSequence
from torch import Generator


def generator(seed: int, node: int) -> Generator:
    """Return one node's random numbers, which do not depend on the other nodes that are attacked.

    Args:
        seed: Seed of the run.
        node: The node.

    Returns:
        A generator on the CPU.
    """
    return Generator().manual_seed(child(seed, node))


def generators(seed: int, *names: str) -> dict[str, Generator]:
    """Return independent generators.

    Args:
        seed: Seed of the run.
        names: What each generator is for. Its stream depends on its place in the list, not on
            its name.

    Returns:
        A generator on the CPU by name.
    """
    return {name: nth_generator(seed, place) for place, name in enumerate(names)}


def nth_generator(seed: int, place: int) -> Generator:
    """Return one of the generators that `generators` returns, without making the others.

    Args:
        seed: Seed of the run.
        place: Its place in the list of names, from 0.

    Returns:
        A generator on the CPU.
    """
    return Generator().manual_seed(_word(SeedSequence(seed, spawn_key=(place,))))


def child(*numbers: int) -> int:
    """Return a seed that is independent of those of other numbers.

    Args:
        numbers: A seed and what tells its uses apart, for example a node or a repetition.
    """
    return _word(SeedSequence(list(numbers)))


def _word(stream: SeedSequence) -> int:
    """Return 63 bits of a stream: torch takes a seed as a signed number of 64 bits."""
    return int(stream.generate_state(1, np.uint64)[0] >> 1)
