"""What a recording keeps of every message: columns, a sketch of all columns, and the norm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from leakaudit.core.errors import LeakauditError
from leakaudit.core.sketch import NUMBERS, Sketch

if TYPE_CHECKING:
    from torch import Tensor

GATHERED = 1 << 22  # numbers of several rows that are copied at once: 16 MiB in float32, a choice
Span = tuple[int, int]


@dataclass(frozen=True)
class StoredColumns:
    """The numbers that are stored of one message of length d.

    These are the recorded columns, span by span; with a sketch, also the sketch of the whole
    message and its norm.
    """

    size: int  # length d of a message
    # (start, stop) of the recorded columns, in order, with gaps between them
    spans: tuple[Span, ...]
    seed: int | None = None  # seed of the sketch; None without a sketch

    def __post_init__(self) -> None:
        ends = [place for span in self.spans for place in span]
        inside = bool(ends) and ends[0] >= 0 and ends[-1] <= self.size
        if not inside or any(a >= b for a, b in pairwise(ends)):
            raise LeakauditError(
                f"columns: expected (start, stop) within a model of {self.size} parameters, "
                f"in order and with gaps between them, got {', '.join(map(str, self.spans))!s:.60}"
            )

    @classmethod
    def joined(cls, size: int, spans: Iterable[Span], seed: int | None = None) -> StoredColumns:
        """Return what is kept for spans in any order, which may overlap.

        If the rest is not larger than a sketch, everything is recorded instead of a sketch.
        """
        found: list[Span] = []
        for start, stop in sorted(spans):
            if found and start <= found[-1][1]:
                found[-1] = (found[-1][0], max(stop, found[-1][1]))
            else:
                found.append((start, stop))
        raw = sum(stop - start for start, stop in found)
        if seed is not None and size - raw <= NUMBERS:
            return cls(size, ((0, size),))
        return cls(size, tuple(found), seed)

    @property
    def columns(self) -> Span:
        """The first span."""
        return self.spans[0]

    @property
    def is_plain(self) -> bool:
        """Whether nothing but one span is kept."""
        return len(self.spans) == 1 and self.seed is None

    @property
    def raw(self) -> int:
        """Number of recorded columns."""
        return sum(stop - start for start, stop in self.spans)

    @property
    def linear(self) -> int:
        """Number of stored numbers that are linear in a message: all but its norm."""
        return self.raw + (0 if self.seed is None else NUMBERS)

    @property
    def width(self) -> int:
        """Number of stored numbers."""
        return self.linear + (self.seed is not None)

    @cached_property
    def sketch(self) -> Sketch | None:
        """The map of the sketch; None without a sketch."""
        return None if self.seed is None else Sketch(self.size, self.seed)

    @property
    def places(self) -> dict[Span, slice]:
        """Span -> its part of a stored row."""
        found = {}
        at = 0
        for start, stop in self.spans:
            found[start, stop] = slice(at, at + stop - start)
            at += stop - start
        return found

    def project(self, values: Tensor) -> Tensor:
        """Return what is stored of vectors (n, d) but their norms, a linear map to (n, linear)."""
        if self.is_plain:
            return values[:, slice(*self.columns)]
        return self.cut(values)[:, : self.linear]

    def cut(self, values: Tensor, out: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """Return what is stored of vectors (m, d), as (n, width).

        Args:
            out: Receives the result; allocated if None.
            rows: (n,) which of the vectors to use; None for all.
        """
        count = len(values) if rows is None else len(rows)
        if out is None:
            out = values.new_empty(count, self.width)
        for span, place in self.places.items():
            part = values[:, slice(*span)]
            if rows is not None:
                part = values[rows.to(values.device), slice(*span)]
            out[:, place] = part
        if self.sketch is None:
            return out
        at = 0
        for some in _gathered(values, rows):
            sums, norms = self.sketch.of(some)
            target = out[at : at + len(some)]
            target[:, self.raw : self.linear] = sums
            target[:, self.linear] = norms
            at += len(some)
        return out

    def sketched(self, values: Tensor) -> Tensor:
        """Return the sketches (n, NUMBERS) of vectors (n, d), in their format."""
        if self.sketch is None:
            raise LeakauditError("the recording has no sketch; record with --layers first,sketch")
        return self.sketch.of(values)[0].to(values.dtype)


def _gathered(values: Tensor, rows: Tensor | None) -> Iterator[Tensor]:
    if rows is None:
        yield values
        return
    together = GATHERED // max(1, values.shape[1])
    if together <= 1:
        for row in rows.tolist():
            yield values[row : row + 1]
        return
    import torch

    for some in rows.to(values.device).split(together):
        yield torch.index_select(values, 0, some)
