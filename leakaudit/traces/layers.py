"""Choose what is recorded of every message: layers by name, and a sketch of the others."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.core.payload import StoredColumns
from leakaudit.core.trace import Layout

ALL = "all"
FIRST = "first"
LAST = "last"
SKETCH = "sketch"


def kept(
    layers: str | Sequence[str],
    layout: Layout,
    first: Sequence[str | None] | None = None,
    last: Sequence[str | None] | None = None,
) -> StoredColumns:
    """Return what is recorded of a message.

    Args:
        layers: ``all``; or ``first``, ``last`` and names of parameters or modules, with ``*`` for
            any characters, and ``sketch`` or ``sketch:SEED`` for a sketch of everything; separated
            by commas.
    """
    words = [w.strip() for w in (layers.split(",") if isinstance(layers, str) else layers)]
    seed: int | None = None
    names: list[str] = []
    for word in words:
        start, colon, text = word.partition(":")
        if start == SKETCH:
            seed = _seed(text) if colon else 0
        elif word == FIRST:
            names += [n for n in first or _module(layout, layout.names[0]) if n]
        elif word == LAST:
            names += [n for n in last or _module(layout, layout.names[-1]) if n]
        elif word == ALL:
            names += layout.names
        else:
            names += _matching(layout, word)
    if not names:
        raise LeakauditError(
            "layers: a sketch verifies other parameters and is nothing to attack; "
            "name some to record, e.g. first,last,sketch"
        )
    spans = [(layout.slices[name].start, layout.slices[name].stop) for name in names]
    return StoredColumns.joined(layout.size, [span for span in spans if span[0] < span[1]], seed)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise LeakauditError(f"layers: expected sketch:SEED with a whole number, got {text!r:.40}")
    return int(text)


def _module(layout: Layout, name: str) -> list[str]:
    module = name.rpartition(".")[0]
    return [other for other in layout.names if other.rpartition(".")[0] == module]


def _matching(layout: Layout, pattern: str) -> list[str]:
    found = []
    for name in layout.names:
        module = name.rpartition(".")[0]
        if fnmatchcase(name, pattern) or (module and fnmatchcase(module, pattern)):
            found.append(name)
    if not found:
        raise LeakauditError(
            f"layers: the model has no parameter {pattern!r}{suggest(pattern, layout.names)}"
        )
    return found
