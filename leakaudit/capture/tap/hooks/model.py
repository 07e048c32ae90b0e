"""The messages of a model whose parameters a hook logs by their places in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leakaudit.capture.tap.log.capture import Capture, Notes
from leakaudit.capture.tap.log.layers import NOTE, REST, PartialStream

if TYPE_CHECKING:
    from torch import Tensor

NAMES = 100_000  # characters of all names of parameters that are logged: a choice


class HookedModel:
    """The parameters of one model, which the first rank logs, and the gradients of each rank.

    op: the word for a gradient in a log; layers: see `layers.select`.
    """

    def __init__(
        self,
        capture: Capture,
        named: Iterable[tuple[str, Any]],
        ranks: Sequence[int],
        op: str,
        layers: Sequence[str] | None,
        notes: Notes,
    ) -> None:
        self.capture = capture
        self.named = list(named)
        self.names = [name for name, _ in self.named]
        self.sizes = [p.numel() for _, p in self.named]
        self.trained = [k for k, (_, p) in enumerate(self.named) if p.requires_grad]
        self.ranks = ranks
        self.is_first = capture.rank == ranks[0]
        self.notes: Notes = {**notes, "of": len(self.named)}
        what = str(notes["lane"]) if self.is_first else ""
        self.selection = capture.selection(self.names, self.sizes, layers, self.trained, what)
        if self.selection is not None:
            self.notes[NOTE] = True
        self.step = 0
        self._streams = {
            "model": PartialStream(self.selection, capture.first, whole=True),
            op: PartialStream(self.selection, capture.first, whole=False),
        }

    def log(self, op: str, parts: Mapping[int, Tensor], last: bool, **facts: Any) -> None:
        """Log some parameters or gradients of a step, by place; facts: what to note beside them."""
        for value, notes in self._streams[op].split(parts, self.step, last):
            if REST not in notes:
                if not (notes["parameters"] or last):
                    continue
                notes |= facts
            self.capture.event(op, value, at=self.step, **self.notes, **notes)

    @property
    def facts(self) -> Notes:
        """The sizes of all parameters, and in the first step the names of those that travel."""
        notes: Notes = {"sizes": self.sizes}
        if not self.step and sum(map(len, self.names)) <= NAMES:
            frozen = sorted(set(range(len(self.named))) - set(self.trained))
            notes |= {"names": self.names, "frozen": [self.names[k] for k in frozen]}
        return notes
