"""Choose the parameters of which a tap keeps the values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from leakaudit.capture.fitting.sketch import NUMBERS, ModelSketch

if TYPE_CHECKING:
    from torch import Tensor

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

    names: tuple[str, ...]  # of all parameters, in the order in which they are sent
    sizes: tuple[int, ...]
    kept: frozenset[int]  # the places of the chosen ones
    sketch: ModelSketch | None = None  # of the others; None if nothing of them is recorded

    @property
    def numbers(self) -> int:
        """Numbers that are kept of a message; with a sketch, the first one is kept whole."""
        count = sum(self.sizes[place] for place in self.kept)
        if self.sketch is not None:
            count += NUMBERS
        return count


class PartialStream:
    """The messages of one channel, of which only the selected parameters are kept.

    first: position of the first message that is kept; whole: whether its other parameters are kept
    as well, not only sketched.
    """

    def __init__(self, selection: Selection | None, first: int, whole: bool) -> None:
        self._selection = selection
        self._first = first
        self._whole = whole
        self._at = -1  # position of the message that is being sketched
        self._total: Tensor | None = None  # its sketch so far ...
        self._places: list[int] = []  # ... of these parameters

    def split(
        self, parts: Mapping[int, Tensor], at: int, last: bool, sketched: bool = True
    ) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        """Yield what to log of parameters, by place, of a message, and its notes."""
        # What stands for the parameters that are not selected comes before the others: their
        # numbers, or, with the last of them, their sketch.
        import torch

        selection = self._selection
        kept = list(parts)
        if selection is not None:
            kept = [place for place in parts if place in selection.kept]
            if selection.sketch is not None and sketched:
                others = {k: part for k, part in parts.items() if k not in selection.kept}
                yield from self._rest(selection.sketch, others, at, last)
        held = [parts[k] for k in kept]
        if not held:
            held = [next((part.reshape(-1)[:0] for part in parts.values()), torch.empty(0))]
        yield flat(held), {"parameters": kept, "last": last}

    def _rest(
        self, sketch: ModelSketch, others: Mapping[int, Tensor], at: int, last: bool
    ) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        if self._whole and at == self._first:
            if others:
                notes = {REST: WHOLE, "parameters": list(others), "last": False}
                yield flat(others.values()), notes
            return
        if not self._first <= at < self._first + SKETCHED:
            return
        if at != self._at:  # also drops that of an aborted pass
            self._at = at
            self._total = None
            self._places = []
        for place, values in others.items():
            self._total = sketch.added(self._total, place, values)
            self._places.append(place)
        if last and self._total is not None:
            about = {REST: SKETCH, SEED: sketch.seed, "parameters": self._places, "last": False}
            self._at = -1
            yield self._total, about


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """Return tensors as one vector, without a copy if they follow each other in memory."""
    import torch

    parts = [t.detach().reshape(-1) for t in tensors]
    first = parts[0]
    if len(parts) == 1:
        return first
    place = first.storage_offset()
    for part in parts:
        same = part.untyped_storage()._cdata == first.untyped_storage()._cdata
        if not same or part.storage_offset() != place or not part.is_contiguous():
            return torch.cat(parts)
        place += len(part)
    return first.as_strided((place - first.storage_offset(),), (1,))


def select(
    names: Sequence[str],
    sizes: Sequence[int],
    layers: Sequence[str] | None,
    seed: int = 0,
    trained: Sequence[int] | None = None,
) -> Selection | None:
    """Return the parameters of a model to keep, of those that travel; None if all are kept.

    layers: as in `chosen`, ``sketch`` for a sketch of all others, or ``all``. None keeps a model of
    up to LARGE parameters, and DEFAULT of a larger one.
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
    """Return what is recorded of the messages of a model, and what that excludes, in words."""
    if selection is None:
        return f"all {numbers:,} parameters are recorded"
    kept = [selection.names[place] for place in sorted(selection.kept)]
    count = sum(selection.sizes[place] for place in selection.kept)
    said = f"{count:,} of {numbers:,} parameters are recorded ({shortened(kept)})"
    if selection.sketch is not None:
        said += f", all of the first model, and {NUMBERS:,} sums of the others to verify them"
    return f"{said}; attacks that match whole gradients need --layers all"


def shortened(names: Sequence[str]) -> str:
    """Return names in one line, the first and the last of them if there are many."""
    if not names:
        return "none"
    if len(names) <= SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[: SHOWN - 1])}, ... {names[-1]}"


def chosen(names: Sequence[str], layers: Sequence[str]) -> frozenset[int]:
    """Return the places of the parameters to keep.

    layers: ``first``, ``last`` (all parameters of the first or last module that has any), or names
    of parameters or modules, with ``*`` for any characters.
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
    """Return the place of a parameter that is sent by itself; None if none has this length."""
    starts = [0, *accumulate(sizes)]
    for place, start in enumerate(starts[:-1]):
        if start == sent and sizes[place] == length:
            return place
    return None
