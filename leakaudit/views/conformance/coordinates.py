"""A sample of the recorded columns, and sums of all of them, read in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from leakaudit.core import mapping
from leakaudit.core.sketch import ROWS, WIDTH, Sketch, signs
from leakaudit.core.trace import Layout, Messages, Trace

# A relation between messages is linear and holds in every column, so it holds in a sample of the
# columns and for a sum of columns with random signs. The sample misses a message that differs in a
# few other columns; each of the sums contains such a difference. The sums are those of a sketch
# (`core.sketch`), of which neighbouring columns are added, with random signs as well, until few
# numbers are left.

SUMS = 4 * ROWS  # sums of a vector, every column being part of ROWS of them: a choice
SEED = 0
AT_ONCE = 1 << 22  # numbers of several messages that are copied at once: 16 MiB in float32


def reduced(trace: Trace, last: int, most: int) -> tuple[Trace, Trace]:
    """Return two recordings whose messages follow the relations of the run, in float64.

    The model and the messages of the first are some of the recorded columns of all spans, evenly
    spaced; those of the second are sums of all recorded columns.

    Args:
        most: Largest number of columns in the sample, and of sums, at least `ROWS`.
    """
    spans = trace.spans
    columns = sum(stop - start for start, stop in spans)
    chosen = torch.linspace(0, columns - 1, min(most, columns)).round().long()
    sketch = Sketch(columns, SEED)
    count = ROWS
    while 2 * count <= min(most, SUMS):
        count *= 2

    def sampled(values: Tensor) -> Tensor:
        return values[:, chosen].double()

    def summed(values: Tensor) -> Tensor:
        return _sums(sketch, values, count)

    widths = (len(chosen), count)
    tables: list[list[Messages]] = [[], []]
    for table in trace.messages:
        numbers = table.payload
        if table.stored is not None:
            numbers = table.stored[:, :columns]
        early = table.round <= last
        used, row = table.row[early].unique(return_inverse=True)
        payloads = [torch.empty(len(used), width, dtype=torch.float64) for width in widths]
        at = 0
        for part in _some(numbers, used):
            payloads[0][at : at + len(part)] = sampled(part)
            payloads[1][at : at + len(part)] = summed(part)
            at += len(part)
        kept = replace(
            table,
            round=table.round[early],
            src=table.src[early],
            dst=table.dst[early],
            kind=table.kind[early],
            row=row.int(),
            secure=table.secure[early],
            stored=None,
        )
        for found, payload in zip(tables, payloads, strict=True):
            found.append(replace(kept, payload=payload))
    return _recording(trace, last, tables[0], sampled), _recording(trace, last, tables[1], summed)


def _recording(
    trace: Trace, last: int, tables: list[Messages], reduce: Callable[[Tensor], Tensor]
) -> Trace:
    """Return a recording with reduced messages, and public models to match.

    A relation may use a constant of the protocol as a vector of equal numbers, so constants become
    public vectors.
    """
    columns = sum(stop - start for start, stop in trace.spans)
    ones = reduce(torch.ones(1, columns))[0]
    public = {
        name: value * ones for name, value in trace.params.items() if isinstance(value, int | float)
    }
    for name, tensor in trace.public.items():
        public[name] = tensor
        if tensor.shape == (trace.layout.size,) and tensor.is_floating_point():
            model = torch.cat([tensor[slice(*span)] for span in trace.spans])
            public[name] = reduce(model[None])[0]
    return replace(
        trace,
        layout=Layout(("coordinates",), ((len(ones),),)),
        columns=(0, len(ones)),
        rounds=min(trace.rounds, last),
        messages=tuple(tables),
        public=public,
        kept=None,
    )


def _some(numbers: Tensor, rows: Tensor) -> Iterator[Tensor]:
    """Yield rows of a matrix, a few at once; their pages are given back afterwards."""
    together = max(1, AT_ONCE // max(1, numbers.shape[1]))
    for some in rows.long().split(together):
        if len(some) == 1:  # as a view: a single message may be large
            yield numbers[int(some)][None]
        else:
            yield numbers[some]
        for row in some.tolist():
            mapping.release(numbers[row])


def _sums(sketch: Sketch, values: Tensor, count: int) -> Tensor:
    """Return sums (n, count) of vectors (n, d)."""
    found = sketch.of(values)[0].view(-1, ROWS, WIDTH)
    width = WIDTH
    while ROWS * width > count:
        width //= 2
        drawn = signs(SEED + 1, 1, width)[0].double()
        found = found[..., :width] + drawn * found[..., width:]
    return found.flatten(1)
