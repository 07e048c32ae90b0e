"""Data sets, and the distribution of their records to the nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.core.trace import Json, TaskSpec
from leakaudit.tasks import data_files, data_sources
from leakaudit.tasks.data_files import Records

NAMES = {
    "faces": ("100 faces, 25x25 gray, one class per face (scikit-image, no download); the default"),
    "faces-detect": "100 faces and 100 other crops, 25x25 gray (scikit-image, no download)",
    "photos": "32x32 RGB tiles of six photographs (scikit-image, no download)",
    "mnist": "MNIST, as downloaded, in the folder --data-root or a subfolder",
    "fashion": "Fashion-MNIST, as downloaded, in the folder --data-root or a subfolder",
    "cifar10": "CIFAR-10, as downloaded, in the folder --data-root or a subfolder",
    "ijcnn1": "ijcnn1 of LIBSVM, 22 features, 2 classes, as downloaded, in the folder --data-root "
    "or a subfolder",
    "text": "sentences of Python's own documentation, 32 bytes each; text:N for another length",
    "gaussians": "two Gaussians in the plane, 1000 records; gaussians:N for another number",
    "regression": "features A of N(0, 1), targets A x*, 1000 records with 10 features; "
    "regression:N,P for other numbers, regression:N,P,SD with noise",
    "classification": "features A of N(0, 1), classes by the logistic model of A x*, 1000 records "
    "with 10 features; classification:N,P for other numbers",
    "npz:FILE": "arrays x (n, h, w[, c]) uint8 or (n, p), and y (n,); and optionally owner (n,), "
    "x_test and y_test",
    "images:FOLDER": "PNG or JPEG files of the same size; subfolders are classes",
    "libsvm:FILE": "LIBSVM text, plain, .bz2 or .gz",
}
FILES = {
    "npz": data_files.read_npz,
    "images": data_files.read_folder,
    "libsvm": data_files.read_libsvm,
}
MOST_GAUSSIANS = 10_000_000  # records, 80 MB of features; a choice
PLANTED = ("regression", "classification")
MOST_NUMBERS = 100_000_000  # features of all records, 400 MB; a choice
RANDOM = re.compile(
    r"gaussians(:\d{1,9})?|classification(:\d{1,9},\d{1,6})?"
    r"|regression(:\d{1,9},\d{1,6}(,\d*\.?\d+(e-?\d{1,2})?)?)?"
)
SPLITS = re.compile(r"(iid)|(owners)|classes:(\d{1,6})|dirichlet:(\d*\.?\d+(?:e-?\d+)?)")
# Attempts to assign exact numbers of classes. Nodes choose freely in all but the last, in which
# they choose the largest classes first, which succeeds more often. A choice.
ATTEMPTS = 20


@dataclass(frozen=True, eq=False)
class Dataset:
    """Records, with the properties that a task needs."""

    x: Tensor  # (s, *shape) float32, images (c, h, w) in [0, 1] or features (p,)
    y: Tensor  # (s,) int64 classes 0..classes-1, or float32 targets, (s,) or (s, k)
    name: str  # as written by the user, without folders
    classes: int  # number of classes, 1 for targets
    levels: int  # 255 if x is k/255, else 0
    labels: tuple[str, ...]  # names of the classes, may be empty
    # the model receives (x - mean) / std; 0.5 per channel for images, 0 for features
    mean: tuple[float, ...]
    std: tuple[float, ...]  # 0.5 per channel for images, 1 for features
    # number of different tokens if records are sequences of tokens, else 0. y is then the token
    # after each sequence.
    tokens: int = 0
    # (s,) int64 class of each record, if y are targets that stand for classes
    groups: Tensor | None = None
    owners: Tensor | None = None  # (s,) int64 number of the owner of each record, if it is known
    held: tuple[Tensor, Tensor] | None = None  # x and y of its own test set, if that was read
    planted: Tensor | None = None  # (p,) weights from which the targets were drawn

    def __len__(self) -> int:
        return len(self.x)

    @property
    def is_image(self) -> bool:
        """Whether a record is (channels, height, width)."""
        return self.x.dim() == 4

    def spec(
        self, model: str, args: Mapping[str, Json] | None = None, loss: str | None = None
    ) -> TaskSpec:
        """Describe the training of a model on these records.

        Without a loss, it is ``squared`` for real targets and for model ``linear``, ``binary`` for
        ``logistic`` on two classes, ``next_token`` for sequences of tokens, else ``cross_entropy``.
        """
        if loss is None:
            loss = self._usual_loss(model)
        return TaskSpec(
            model=model,
            args=dict(args or {}),
            loss=loss,
            shape=tuple(self.x.shape[1:]),
            classes=self._outputs() if loss == "squared" else self.classes,
            mean=self.mean,
            std=self.std,
            levels=self.levels,
            data=self.name,
            labels=self.labels,
        )

    def _outputs(self) -> int:
        """Return how many targets a record has."""
        return self.y.shape[1] if self.y.dim() == 2 else 1

    def _usual_loss(self, model: str) -> str:
        if self.tokens:
            return "next_token"
        if self.y.is_floating_point() or model == "linear":
            return "squared"
        if model == "logistic" and self.classes == 2:
            return "binary"
        return "cross_entropy"


def load(
    name: str,
    root: Path | None = None,
    download: bool = False,
    generator: Generator | None = None,
    held: bool = False,
) -> Dataset:
    """Load a data set by name; a generator draws those that are random.

    Args:
        held: Whether to read the records of its own test set as well, if it has one.
    """
    kind, rest = _parts(name)
    if kind in FILES and kind != name:
        path = Path(rest).expanduser()
        shown = f"{kind}:{path.name}"  # without the folders, which are private
        found = _dataset(shown, FILES[kind](path))
        if kind == "npz":
            found = replace(found, owners=data_files.read_npz_owners(path, len(found)))
        if held and kind == "npz":
            tested = data_files.read_npz_test(path)
            found = found if tested is None else _with_test(found, tested)
        return found
    if kind in PLANTED and is_random(name):
        return _planted(name, kind, rest, generator)
    if is_random(name):
        count = int(rest or 1000)
        if not 2 <= count <= MOST_GAUSSIANS:
            raise LeakauditError(f"gaussians: expected 2 to {MOST_GAUSSIANS} records, got {count}")
        return _dataset(kind, data_sources.gaussians(count, generator))
    if name in ("faces", "faces-detect"):
        return _dataset(name, data_sources.faces(name == "faces-detect", download))
    if name == "photos":
        return _dataset(name, data_sources.photos(download))
    if re.fullmatch(r"text(:\d{1,5})?", name):
        return _dataset(name, data_sources.text(int(rest or data_sources.LINE)))
    if name == "ijcnn1" or name in data_sources.TORCHVISION:
        found = _dataset(name, _published(name, root, download, train=True))
        if held:
            found = _with_test(found, _published(name, root, download, train=False))
        return found
    raise LeakauditError(f"unknown data set {name!r}{suggest(name, NAMES)}")


def _published(name: str, root: Path | None, download: bool, train: bool) -> Records:
    if name == "ijcnn1":
        return data_sources.ijcnn1(root, train)
    return data_sources.published(name, root, download, train)


def _with_test(found: Dataset, records: Records) -> Dataset:
    """Return a data set with its own test set, whose records must be like its others."""
    name = f"{found.name} (test set)"
    tested = _dataset(name, records)
    if tested.x.shape[1:] != found.x.shape[1:] or tested.classes > found.classes:
        raise LeakauditError(
            f"data {name}: expected records {tuple(found.x.shape[1:])} of at most {found.classes} "
            f"classes, got {tuple(tested.x.shape[1:])} of {tested.classes}"
        )
    return replace(found, held=(tested.x, tested.y))


def _planted(name: str, kind: str, rest: str, generator: Generator | None) -> Dataset:
    sizes = rest.split(",") if rest else ["1000", "10"]
    count, width = int(sizes[0]), int(sizes[1])
    spread = float(sizes[2]) if len(sizes) > 2 else 0.0
    if count < 2 or width < 1 or count * width > MOST_NUMBERS:
        raise LeakauditError(
            f"{name}: expected N >= 2 records of P >= 1 features, and at most {MOST_NUMBERS} "
            "numbers N P"
        )
    if generator is None:
        raise LeakauditError(f"{kind} is drawn at random: pass a torch.Generator to load()")
    records, weights = data_sources.planted(kind, count, width, spread, generator)
    return replace(_dataset(kind, records), planted=weights)


def is_random(name: str) -> bool:
    """Return whether the records are drawn from a generator."""
    return RANDOM.fullmatch(name) is not None


def is_public(name: str) -> bool:
    """Return whether a data set is public: its name reveals nothing about a user's files."""
    kind, rest = _parts(name)
    return kind in NAMES and (not rest or rest.isdigit() or is_random(name))


def _parts(name: str) -> tuple[str, str]:
    kind, _, rest = name.partition(":")
    return kind, rest


def _dataset(name: str, records: Records) -> Dataset:
    x, y, labels, levels, tokens = records
    bad = int((~torch.isfinite(x)).sum()) + int((~torch.isfinite(y)).sum())
    if bad:
        raise LeakauditError(
            f"data {name}: {bad} values are not finite numbers; remove these records"
        )
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    if x.dim() == 4:
        low, high = float(x.min()), float(x.max())
        if low < 0 or high > 1:
            raise LeakauditError(
                f"data {name}: expected images in [0, 1], or uint8, got {low:g} to {high:g}"
            )
        mean = (0.5,) * x.shape[1]
        std = (0.5,) * x.shape[1]
    classes = 1 if y.is_floating_point() else int(y.max()) + 1
    return Dataset(x, y, name, tokens or classes, levels, labels, mean, std, tokens)


def split(dataset: Dataset, nodes: int, samples: int, how: str, generator: Generator) -> Tensor:
    """Distribute records to nodes, each record at most once; return rows (nodes, samples) int64.

    Args:
        how: ``iid``; ``classes:C``, every node holds equally many records (up to one) of exactly C
            classes chosen at random; ``dirichlet:A``, every node draws its class proportions from a
            symmetric Dirichlet distribution (small A: few classes), and uses other classes once one
            is exhausted; ``owners``, every node is assigned equally many owners of records at
            random, and holds records of these only.
    """
    need = nodes * samples
    if nodes < 1 or samples < 1 or need > len(dataset):
        raise LeakauditError(
            f"split: {nodes} nodes x {samples} samples need {need} records, "
            f"but {dataset.name} has {len(dataset)}; use fewer nodes or samples"
        )
    kind = SPLITS.fullmatch(how)
    if kind is None:
        raise LeakauditError(f"split: expected iid, classes:C, dirichlet:A or owners, got {how!r}")
    iid, owners, classes, concentration = kind.groups()
    if iid:
        order = torch.randperm(len(dataset), generator=generator, device=generator.device)
        return order.cpu()[:need].reshape(nodes, samples)
    if owners:
        return _by_owners(dataset, nodes, samples, generator)
    groups = dataset.y if dataset.groups is None else dataset.groups
    if groups.is_floating_point():
        raise LeakauditError(
            f"split {how} needs classes, but {dataset.name} has real targets; use iid"
        )
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    rng = np.random.default_rng(seed)
    y = groups.numpy()
    have = np.bincount(y, minlength=dataset.classes)
    if classes:
        counts = _by_classes(have, nodes, samples, int(classes), rng)
    else:
        counts = _by_dirichlet(have, nodes, samples, float(concentration), rng)
    return _deal(y, counts, rng)


def _by_owners(dataset: Dataset, nodes: int, samples: int, generator: Generator) -> Tensor:
    if dataset.owners is None:
        raise LeakauditError(
            f"split owners: {dataset.name} does not say who owns a record; use npz:FILE with an "
            "array owner (n,)"
        )
    _, owner = dataset.owners.unique(return_inverse=True)
    each = (int(owner.max()) + 1) // nodes
    node = torch.full((int(owner.max()) + 1,), -1)
    order = torch.randperm(len(node), generator=generator, device=generator.device).cpu()
    node[order[: each * nodes]] = torch.arange(nodes).repeat_interleave(each)
    rows = []
    for k in range(nodes):
        own = (node[owner] == k).nonzero().flatten()
        if len(own) < samples:
            raise LeakauditError(
                f"split owners: the {each} owners of node {k} have {len(own)} records together, "
                f"fewer than the {samples} samples of a node; use fewer samples or nodes"
            )
        shuffled = torch.randperm(len(own), generator=generator, device=generator.device).cpu()
        rows.append(own[shuffled[:samples]])
    return torch.stack(rows)


def _deal(y: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> Tensor:
    """Turn counts (nodes, classes) into rows: shuffle each class and split it in order of nodes."""
    parts: list[list[np.ndarray]] = [[] for _ in counts]
    for c in range(counts.shape[1]):
        cuts = np.cumsum(counts[:, c])
        if cuts[-1]:
            shuffled = rng.permutation(np.flatnonzero(y == c))
            # The last piece remains unused, so there is one more piece than parts.
            for part, rows in zip(parts, np.split(shuffled, cuts), strict=False):
                part.append(rows)
    mixed = [rng.permutation(np.concatenate(part)) for part in parts]
    return torch.from_numpy(np.stack(mixed).astype(np.int64))


def _by_classes(
    have: np.ndarray, nodes: int, samples: int, wanted: int, rng: np.random.Generator
) -> np.ndarray:
    """Return counts (nodes, classes) with exactly `wanted` classes per node.

    Nodes choose one after the other among the classes that still have enough records. Free choices
    may leave too few for a later node; then everything is tried again, in the last attempt with the
    largest classes first.
    """
    most = min(samples, int((have > 0).sum()))
    if not 1 <= wanted <= most:
        raise LeakauditError(
            f"split classes:{wanted}: expected 1 to {most} classes for {samples} samples per node"
        )
    share = np.full(wanted, samples // wanted)
    share[: samples % wanted] += 1  # largest first
    for attempt in range(ATTEMPTS):
        counts = np.zeros((nodes, len(have)), np.int64)
        if _choose(counts, have.copy(), share, rng, fullest=attempt == ATTEMPTS - 1):
            return counts
    hold = f"the classes hold {have.min()} to {have.max()} records"
    raise LeakauditError(
        f"split classes:{wanted}: {nodes} nodes x {samples} samples do not fit, {hold}; "
        "use fewer nodes or samples"
    )


def _choose(
    counts: np.ndarray,
    left: np.ndarray,
    share: np.ndarray,
    rng: np.random.Generator,
    fullest: bool,
) -> bool:
    """Fill counts (nodes, classes) from the remaining records; return whether there were enough.

    share: records per class of a node, largest first. fullest: choose the largest classes first.
    """
    for row in counts:
        free = rng.permutation(np.flatnonzero(left >= share[-1]))
        if fullest:
            free = free[np.argsort(-left[free], kind="stable")]
        pick = free[: len(share)]
        pick = pick[np.argsort(-left[pick], kind="stable")]  # the largest share from the largest
        if len(pick) < len(share) or (left[pick] < share).any():
            return False
        row[pick] = share
        left[pick] -= share
    return True


def _by_dirichlet(
    have: np.ndarray, nodes: int, samples: int, concentration: float, rng: np.random.Generator
) -> np.ndarray:
    if not 0 < concentration < 1e6:  # at a million all shares are equal to three digits
        raise LeakauditError(
            "split dirichlet: expected a concentration above 0 and below 1e6, "
            f"got {concentration:g}"
        )
    left = have.copy()
    counts = np.zeros((nodes, len(have)), np.int64)
    for row in counts:
        shares = rng.dirichlet(np.full(len(have), concentration))
        missing = samples
        while missing > 0:
            weight = np.where(left > 0, shares, 0.0)
            if weight.sum() <= 1e-12:  # the node's classes are exhausted: use any other
                weight = (left > 0).astype(float)
            take = np.minimum(rng.multinomial(missing, weight / weight.sum()), left)
            row += take
            left -= take
            missing = samples - int(row.sum())
    return counts
