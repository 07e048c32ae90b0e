"""Data sets and how their records are dealt out to the nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from leakaudit.errors import LeakauditError, suggest
from leakaudit.tasks import data_files, data_sources
from leakaudit.tasks.data_files import Records
from leakaudit.trace import Json, TaskSpec

NAMES = {
    "faces": "100 faces, 25x25 gray, each a class of its own (scikit-image, no download); the default",
    "faces-detect": "100 faces and 100 other cut-outs, 25x25 gray (scikit-image, no download)",
    "photos": "32x32 RGB tiles of six photographs (scikit-image, no download)",
    "mnist": "MNIST, below --data-root",
    "fashion": "Fashion-MNIST, below --data-root",
    "cifar10": "CIFAR-10, below --data-root",
    "gaussians": "two Gaussians in the plane, 1000 records; gaussians:N for another number",
    "npz:FILE": "arrays x (n, h, w[, c]) uint8 or (n, p), and y (n,)",
    "images:FOLDER": "PNG or JPEG files of one size; subfolders are classes",
    "libsvm:FILE": "LIBSVM text, plain, .bz2 or .gz",
}
FILES = {
    "npz": data_files.read_npz,
    "images": data_files.read_folder,
    "libsvm": data_files.read_libsvm,
}
MOST_GAUSSIANS = 10_000_000


@dataclass(frozen=True, eq=False)
class Dataset:
    """Records with what a task needs to know of them.

    x: (s, *shape) float32, images (c, h, w) in [0, 1] or features (p,). y: (s,) int64 classes 0..classes-1,
    or float32 targets. levels: 255 where x is k/255, else 0. labels: names of the classes, may be empty.
    mean, std: the model sees (x - mean) / std; 0.5 and 0.5 a channel for images, 0 and 1 for features.
    """

    x: Tensor
    y: Tensor
    name: str
    classes: int
    levels: int
    labels: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        """Number of records s."""
        return len(self.x)

    @property
    def is_image(self) -> bool:
        """Whether a record is (channels, height, width)."""
        return self.x.dim() == 4

    def spec(
        self, model: str, args: Mapping[str, Json] | None = None, loss: str | None = None
    ) -> TaskSpec:
        """Describe the training of `model` on these records.

        loss: where None, ``squared`` for real targets and for model ``linear``, ``binary`` for ``logistic`` on two
        classes, else ``cross_entropy``.
        """
        if loss is None:
            squared = self.y.is_floating_point() or model == "linear"
            loss = (
                "squared"
                if squared
                else "binary"
                if model == "logistic" and self.classes == 2
                else "cross_entropy"
            )
        return TaskSpec(
            model=model,
            args=dict(args or {}),
            loss=loss,
            shape=tuple(self.x.shape[1:]),
            classes=1 if loss == "squared" else self.classes,
            mean=self.mean,
            std=self.std,
            levels=self.levels,
            data=self.name,
            labels=self.labels,
        )


def load(
    name: str, root: Path | None = None, download: bool = False, generator: Generator | None = None
) -> Dataset:
    """Load a data set by one of `NAMES`.

    root: where torchvision's data sets lie. download: whether anything may be fetched; never by itself.
    generator: for ``gaussians``. Raises LeakauditError for unknown names and data that cannot be used.
    """
    kind, colon, rest = name.partition(":")
    if colon and kind in FILES:
        path = Path(rest).expanduser()
        return _dataset(
            f"{kind}:{path.name}", FILES[kind](path)
        )  # the folders above it are nobody's business
    if re.fullmatch(r"gaussians(:\d{1,9})?", name):
        count = int(rest or 1000)
        if not 2 <= count <= MOST_GAUSSIANS:
            raise LeakauditError(f"gaussians: expected 2 to {MOST_GAUSSIANS} records, got {count}")
        return _dataset(kind, data_sources.gaussians(count, generator))
    if name in ("faces", "faces-detect"):
        return _dataset(name, data_sources.faces(name == "faces-detect", download))
    if name == "photos":
        return _dataset(name, data_sources.photos(download))
    if name in data_sources.TORCHVISION:
        return _dataset(name, data_sources.from_torchvision(name, root, download))
    raise LeakauditError(f"there is no data set {name!r}{suggest(name, NAMES)}")


def _dataset(name: str, records: Records) -> Dataset:
    x, y, labels, levels = records
    if bad := int((~torch.isfinite(x)).sum()) + int((~torch.isfinite(y)).sum()):
        raise LeakauditError(
            f"data {name}: {bad} values are not finite numbers; remove those records"
        )
    image = x.dim() == 4
    if image and (float(x.min()) < 0 or float(x.max()) > 1):
        raise LeakauditError(
            f"data {name}: expected images in [0, 1], or uint8, got {float(x.min()):g} to {float(x.max()):g}"
        )
    classes = 1 if y.is_floating_point() else int(y.max()) + 1
    mean, std = ((0.5,) * x.shape[1],) * 2 if image else ((0.0,), (1.0,))
    return Dataset(x, y, name, classes, levels, labels, mean, std)


def split(dataset: Dataset, nodes: int, samples: int, how: str, generator: Generator) -> Tensor:
    """Deal `samples` records to each of `nodes`, none twice; returns rows of the data set (nodes, samples) int64.

    how: ``iid``; ``classes:C``, every node holds equally many records (up to one) of exactly C classes of its own choice;
    ``dirichlet:A``, every node draws its class shares from a symmetric Dirichlet distribution (A small: few classes),
    and takes other classes once one has run out.
    Raises LeakauditError where there are too few records.
    """
    need, kind = (
        nodes * samples,
        re.fullmatch(r"(iid)|classes:(\d{1,6})|dirichlet:(\d*\.?\d+(?:e-?\d+)?)", how),
    )
    if nodes < 1 or samples < 1 or need > len(dataset):
        raise LeakauditError(
            f"split: {nodes} nodes x {samples} samples need {need} records, {dataset.name} has {len(dataset)}; use fewer"
        )
    if kind is None:
        raise LeakauditError(f"split: expected iid, classes:C or dirichlet:A, got {how!r}")
    if kind[1]:
        return (
            torch.randperm(len(dataset), generator=generator, device=generator.device)
            .cpu()[:need]
            .reshape(nodes, samples)
        )
    if dataset.y.is_floating_point():
        raise LeakauditError(f"split {how} needs classes, {dataset.name} has real targets; use iid")
    rng = np.random.default_rng(
        int(torch.randint(2**62, (), generator=generator, device=generator.device))
    )
    have = np.bincount(dataset.y.numpy(), minlength=dataset.classes)
    counts = (
        _by_classes(have, nodes, samples, int(kind[2]), rng)
        if kind[2]
        else _by_dirichlet(have, nodes, samples, float(kind[3]), rng)
    )
    return _deal(dataset.y.numpy(), counts, rng)


def _deal(y: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> Tensor:
    """Turn counts (nodes, classes) into rows: each class is shuffled and cut in the order of the nodes."""
    parts: list[list[np.ndarray]] = [[] for _ in counts]
    for c in range(counts.shape[1]):
        cuts = np.cumsum(counts[:, c])
        if cuts[-1]:
            for part, rows in zip(
                parts, np.split(rng.permutation(np.flatnonzero(y == c)), cuts), strict=False
            ):
                part.append(rows)
    return torch.from_numpy(
        np.stack([rng.permutation(np.concatenate(part)) for part in parts]).astype(np.int64)
    )


def _by_classes(
    have: np.ndarray, nodes: int, samples: int, wanted: int, rng: np.random.Generator
) -> np.ndarray:
    """Counts (nodes, classes) with exactly `wanted` classes a node: chosen freely, or the fullest first where that fails."""
    most = min(samples, int((have > 0).sum()))
    if not 1 <= wanted <= most:
        raise LeakauditError(
            f"split classes:{wanted}: expected 1 to {most} classes for {samples} samples a node"
        )
    share = np.full(wanted, samples // wanted)
    share[: samples % wanted] += 1
    for attempt in range(20):
        left, counts = have.copy(), np.zeros((nodes, len(have)), np.int64)
        for row in counts:
            free = rng.permutation(np.flatnonzero(left >= share[-1]))
            pick = (free if attempt < 19 else free[np.argsort(-left[free], kind="stable")])[:wanted]
            pick = pick[np.argsort(-left[pick], kind="stable")]
            if len(pick) < wanted or (left[pick] < share).any():
                break
            row[pick] = share
            left[pick] -= share
        else:
            return counts
    hold = f"the classes hold {have.min()} to {have.max()} records"
    raise LeakauditError(
        f"split classes:{wanted}: {nodes} nodes x {samples} samples do not fit, {hold}; use fewer"
    )


def _by_dirichlet(
    have: np.ndarray, nodes: int, samples: int, concentration: float, rng: np.random.Generator
) -> np.ndarray:
    """Counts (nodes, classes), each row multinomial in Dirichlet shares and cut to what is left."""
    if not 0 < concentration < 1e6:
        raise LeakauditError(
            f"split dirichlet: expected a concentration above 0 and below 1e6, got {concentration:g}"
        )
    left, counts = have.copy(), np.zeros((nodes, len(have)), np.int64)
    for row in counts:
        shares = rng.dirichlet(np.full(len(have), concentration))
        while (missing := samples - int(row.sum())) > 0:
            weight = np.where(left > 0, shares, 0.0)
            weight = weight if weight.sum() > 1e-12 else (left > 0).astype(float)
            take = np.minimum(rng.multinomial(missing, weight / weight.sum()), left)
            row += take
            left -= take
    return counts
