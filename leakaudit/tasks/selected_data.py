"""The data set of a run: some of its classes, with rows and labels in the form that is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.tasks import data
from leakaudit.tasks.data import Dataset
from leakaudit.tasks.selection import Selection


def load(
    wanted: Selection,
    root: Path | None = None,
    download: bool = False,
    generator: Generator | None = None,
) -> Dataset:
    """Load the data set, and select.

    Raises:
        LeakauditError: It cannot be read, or has no such classes, rows or labels.
    """
    found = data.load(wanted.data, root, download, generator, wanted.held)
    if wanted.classes not in ("all", ""):
        found = _of_classes(found, wanted.classes)
    if wanted.rows != "raw":
        found = _scaled(found, wanted.rows)
    if wanted.labels != "classes":
        found = _as_targets(found, wanted.labels)
    return found


def _of_classes(source: Dataset, wanted: str) -> Dataset:
    """Keep the records of some classes, which are renumbered in the order in which they stand."""
    if source.y.is_floating_point() or source.tokens:
        raise LeakauditError(f"classes {wanted}: the records of {source.name} have no classes")
    names = [*map(str, range(source.classes)), *source.labels]
    chosen = []
    for word in wanted.split(","):
        if word.strip() not in names:
            raise LeakauditError(
                f"classes {wanted}: {source.name} has the classes 0 to {source.classes - 1}, "
                f"got {word.strip()!r}{suggest(word.strip(), source.labels)}"
            )
        chosen.append(names.index(word.strip()) % source.classes)
    if len(set(chosen)) < len(chosen):
        raise LeakauditError(f"classes {wanted}: expected each class once")
    number = torch.full((source.classes,), -1)
    number[chosen] = torch.arange(len(chosen))

    def kept(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        inside = number[y] >= 0
        return x[inside], number[y[inside]]

    x, y = kept(source.x, source.y)
    owners = source.owners
    if owners is not None:
        owners = owners[number[source.y] >= 0]
    labels = tuple(source.labels[c] for c in chosen) if source.labels else tuple(map(str, chosen))
    held = None if source.held is None else kept(*source.held)
    return replace(source, x=x, y=y, labels=labels, classes=len(chosen), held=held, owners=owners)


def _scaled(source: Dataset, rows: str) -> Dataset:
    """Scale records; the model then receives them as they are."""
    if source.tokens:
        raise LeakauditError(f"rows {rows}: the records of {source.name} are tokens")
    low = source.x.amin(0)
    width = source.x.amax(0) - low
    width = torch.where(width > 0, width, torch.ones_like(width))

    def scaled(x: Tensor) -> Tensor:
        if rows == "range":
            return (x - low) / width
        norms = x.flatten(1).double().norm(dim=1).clamp_min(torch.finfo(torch.float32).tiny)
        unit: Tensor = x.flatten(1).double() / norms[:, None]
        return unit.to(x).reshape(x.shape)

    held = None
    if source.held is not None:
        held = scaled(source.held[0]), source.held[1]
    x = scaled(source.x)
    return replace(source, x=x, held=held, levels=0, mean=(0.0,), std=(1.0,), planted=None)


def _as_targets(source: Dataset, labels: str) -> Dataset:
    """Turn classes into real targets."""
    if source.y.is_floating_point() or source.tokens:
        raise LeakauditError(f"labels {labels}: the records of {source.name} have no classes")
    if labels == "signs" and source.classes != 2:
        raise LeakauditError(
            f"labels signs: expected two classes, but {source.name} has {source.classes}; choose "
            "two of them by classes"
        )

    def targets(y: Tensor) -> Tensor:
        if labels == "signs":
            return 2.0 * y - 1
        return F.one_hot(y, source.classes).float()

    held = None
    if source.held is not None:
        held = source.held[0], targets(source.held[1])
    names = source.labels or tuple(map(str, range(source.classes)))
    return replace(source, y=targets(source.y), groups=source.y, held=held, labels=names)
