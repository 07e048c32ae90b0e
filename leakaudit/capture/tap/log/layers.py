"""Choose the parameters of which a tap keeps the values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate

from leakaudit.capture.fitting.sketch import NUMBERS, ModelSketch, RunningSketch

NOTE = "layers"  # the note of an event with only the chosen parameters
REST = "rest"  # the note of an event that stands for the others; its value is WHOLE or SKETCH
WHOLE = "whole"  # all their numbers, of the first message of a channel
SKETCH = "sketch"  # in REST, and among the layers: a sketch of the others is recorded
SEED = "seed"  # the note of a sketch's seed
ALL = "all"  # among the layers: everything
# A model of this size takes 4 MB per message in float32. Writing whole messages cost 12 % of the
# time of a step at .8 and at 11 million parameters (bench/tap.py), so that the limit is a choice
# between that cost and the attacks that need all parameters.
LARGE = 1_000_000
# Messages of a channel, from the first one on, that are sketched. The tap looks for an optimiser in
# nine models and the gradients between them (`fitting.stepping`), and no later sketch is used. Each
# costs a pass over all numbers, about 1 % of a step of ResNet-18 with 32 images.
SKETCHED = 16
SHOWN = 6  # names of parameters in one line
DEFAULT = ("first", "last", SKETCH)  # for models with more than LARGE parameters


@dataclass(frozen=True)
class Selection:
    """The parameters of one model that are kept."""

    names: tuple[str, ...]  # names of all parameters, in the order in which they are sent
    sizes: tuple[int, ...]
    kept: frozenset[int]  # the places of the chosen ones
    sketch: ModelSketch | None = (
        None  # the sketch of the others; None if nothing of them is recorded
    )

    @property
    def numbers(self) -> int:
        """Numbers that are kept of a message; with a sketch, the first one is kept whole."""
        count = sum(self.sizes[place] for place in self.kept)
        if self.sketch is not None:
            count += NUMBERS
        return count

    def running(self) -> RunningSketch | None:
        """Return an empty sketch of one message; None if none is recorded."""
        if self.sketch is None:
            return None
        return RunningSketch(self.sketch)


def select(
    names: Sequence[str],
    sizes: Sequence[int],
    layers: Sequence[str] | None,
    seed: int = 0,
    trained: Sequence[int] | None = None,
) -> Selection | None:
    """Return the parameters of a model to keep.

    Args:
        names: names of all parameters, in the order in which they are sent.
        layers: the layers as in `chosen`, ``sketch`` for a sketch of all others, or ``all``. None
            keeps a model of up to LARGE parameters, and DEFAULT of a larger one.
        trained: places of the parameters that travel; None for all.

    Returns:
        The selection; None if everything is kept.
    """
    sent = list(range(len(sizes)) if trained is None else trained)
    if layers is None:
        layers = DEFAULT if sum(sizes[place] for place in sent) > LARGE else (ALL,)
    if ALL in layers:
        return None
    found = chosen([names[place] for place in sent], layers)
    kept = frozenset(sent[k] for k in found)
    rest = sum(sizes[place] for place in sent if place not in kept)
    if not rest:
        return None
    if SKETCH not in layers:
        return Selection(tuple(names), tuple(sizes), kept)
    if rest <= NUMBERS:  # not more than the sketch itself
        return None
    return Selection(tuple(names), tuple(sizes), kept, ModelSketch(sizes, seed))


def described(selection: Selection | None, numbers: int) -> str:
    """Return what is recorded of the messages of a model, and what that excludes, in words.

    Args:
        selection: the parameters that are kept; None for all.
    """
    if selection is None:
        return f"all {numbers:,} parameters are recorded"
    kept = [selection.names[place] for place in sorted(selection.kept)]
    count = sum(selection.sizes[place] for place in selection.kept)
    said = f"{count:,} of {numbers:,} parameters are recorded ({shortened(kept)})"
    if selection.sketch is not None:
        said += f", all of the first model, and {NUMBERS:,} sums of the others to verify them"
    return f"{said}; attacks that match whole gradients need --layers all"


def megabytes(selection: Selection | None, numbers: int) -> str:
    """Return the size of a message in float32, in words.

    Args:
        selection: the parameters that are kept; None for all.
    """
    if selection is not None:
        numbers = selection.numbers
    return f"{4 * numbers / 1e6:.3g} MB"


def shortened(names: Sequence[str]) -> str:
    """Return names in one line, the first and the last of them if there are many."""
    if not names:
        return "none"
    if len(names) <= SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[: SHOWN - 1])}, ... {names[-1]}"


def chosen(names: Sequence[str], layers: Sequence[str]) -> frozenset[int]:
    """Return the places of the parameters to keep.

    Args:
        names: names of all parameters, in the model's order.
        layers: ``first``, ``last`` (all parameters of the first or last module that has any), or
            names of parameters or modules, with ``*`` for any characters.
    """
    found: set[int] = set()
    for layer in layers:
        pattern = layer
        if layer in ("first", "last") and names:
            pattern = module(names[0] if layer == "first" else names[-1])
        for place, name in enumerate(names):
            if fnmatchcase(name, pattern) or fnmatchcase(module(name), pattern):
                found.add(place)
    return frozenset(found)


def module(name: str) -> str:
    """Return the name of the module of a parameter; its own name if it has none."""
    return name.rpartition(".")[0] or name


def place_of(sizes: Sequence[int], sent: int, length: int) -> int | None:
    """Return the place of a parameter that is sent by itself.

    Returns:
        The place; None if no parameter of this length begins there.
    """
    starts = [0, *accumulate(sizes)]
    for place, start in enumerate(starts[:-1]):
        if start == sent and sizes[place] == length:
            return place
    return None
