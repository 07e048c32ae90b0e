"""Data sets by name: bundled with scikit-image, published as files, or generated."""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import skimage.data
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.tasks import _torchvision, idx
from leakaudit.tasks.data_files import LARGEST, Records, images, read_libsvm

PHOTOS = {
    "astronaut": "astronaut.png",
    "coffee": "coffee.png",
    "chelsea": "chelsea.png",
    "rocket": "rocket.jpg",
    "hubble_deep_field": "hubble_deep_field.jpg",
    "retina": "retina.jpg",
}
PHOTO_SIDE = 160  # shorter side after down-scaling, so that a crop of 32 has recognisable content
CROP = 32
LINE = 32  # tokens of a record of ``text``
LONGEST = 1024  # most tokens of a record: the context of GPT-2
BYTES = 256  # the tokens of ``text``
CONTRAST = 0.05  # least standard deviation of a crop: excludes sky and other areas of one colour
Planted: TypeAlias = tuple[Records, Tensor]  # records, and the weights (p,) behind their targets
_BUNDLE: Any = skimage.data  # its stubs annotate arrays as scalars
TORCHVISION = {"mnist": "MNIST", "fashion": "FashionMNIST", "cifar10": "CIFAR10"}
# The files of LIBSVM, and those of a copy of it, with the 49,990 records of both parts of the
# published training set.
IJCNN1 = {True: ("ijcnn1", "ijcnn1.trn"), False: ("ijcnn1.t", "ijcnn1.tst")}
IJCNN1_SOURCE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html#ijcnn1"
CIFAR = "cifar-10-python.tar.gz"
CIFAR_FOLDER = "cifar-10-batches-py"


def faces(detect: bool, download: bool) -> Records:
    """Return Labelled Faces in the Wild, 25x25 gray, as scikit-image bundles it, rounded to k/255.

    The bundle contains no names: each of its 100 faces is its own class (y = row). With `detect`,
    all 200 images are returned, 100 faces (y = 1) and 100 cut-outs without a face (y = 0).
    """
    _bundled("lfw_subset.npy", download)
    x = images(np.round(_BUNDLE.lfw_subset() * 255).astype(np.uint8))
    if detect:
        return x, torch.arange(200).lt(100).long(), ("other", "face"), 255, 0
    return x[:100], torch.arange(100), (), 255, 0


def photos(download: bool) -> Records:
    """Cut non-overlapping 32x32 RGB tiles from scikit-image's photographs; y is the photograph.

    Each photograph is first scaled to a shorter side of 160 by area; tiles of nearly one colour are
    omitted.
    """
    tiles, y = [], []
    for label, (name, file) in enumerate(PHOTOS.items()):
        _bundled(file, download)
        photo = images(getattr(_BUNDLE, name)()[None])
        scale = PHOTO_SIDE / min(photo.shape[2:])
        height, width = (round(side * scale) for side in photo.shape[2:])
        scaled = F.interpolate(photo, size=(height, width), mode="area")
        small = scaled.mul(255).round().div(255)[0]
        rows = small.unfold(1, CROP, CROP)
        cut = rows.unfold(2, CROP, CROP).permute(1, 2, 0, 3, 4).reshape(-1, 3, CROP, CROP)
        rich = cut[cut.std(dim=(1, 2, 3)) > CONTRAST]
        tiles.append(rich)
        y += [label] * len(rich)
    return torch.cat(tiles), torch.tensor(y), tuple(PHOTOS), 255, 0


def _bundled(file: str, download: bool) -> None:
    if not download and not (Path(_BUNDLE.__file__).parent / file).exists():
        raise LeakauditError(
            f"the installed scikit-image does not include {file}; "
            "use --download, or pip install 'scikit-image>=0.24'"
        )


def published(name: str, root: Path | None, download: bool, train: bool = True) -> Records:
    """Read the training or the test images of MNIST, Fashion-MNIST or CIFAR-10.

    The files are read as published, packed or not, and in torchvision's layout.
    """
    if root is None:
        raise LeakauditError(
            f"{name} is not bundled: set --data-root to its folder, "
            "and add --download to download it"
        )
    if name == "cifar10":
        return _cifar10(root, download, train)
    part = "train" if train else "t10k"
    found = idx.read(name, root, part)
    if found is None and download:
        _torchvision_data(name, root, train, download)
        found = idx.read(name, root, part)
    if found is None:
        raise LeakauditError(
            f"{name} cannot be read in {root} (there is no {part}-images-idx3-ubyte or "
            f"{part}-labels-idx1-ubyte, packed as .gz or not, in it or in its subfolder "
            f"{idx.FOLDERS[name][0]}); check --data-root, or add --download"
        )
    pixels, labels = found
    return images(pixels), torch.from_numpy(labels.astype(np.int64)), idx.LABELS[name], 255, 0


def ijcnn1(root: Path | None, train: bool = True) -> Records:
    """Read the training or the test records of ijcnn1, 22 features, packed or not."""
    names = [f"{stem}{end}" for stem in IJCNN1[train] for end in ("", ".bz2", ".gz")]
    if root is None:
        raise LeakauditError(f"ijcnn1 is not bundled: set --data-root to the folder of {names[1]}")
    for folder in (root, root / "ijcnn1"):
        for name in names:
            if (folder / name).is_file():
                return read_libsvm(folder / name)
    raise LeakauditError(
        f"ijcnn1 cannot be read in {root} (there is no {names[0]} or {names[1]} in it or in its "
        f"subfolder ijcnn1); {names[1]} is at {IJCNN1_SOURCE}"
    )


def _cifar10(root: Path, download: bool, train: bool) -> Records:
    """Read CIFAR-10 unpacked, or from its archive, which is unpacked into a temporary folder."""
    folders = [root, *(root / name for name in ("cifar10", "CIFAR10", "cifar-10"))]
    unpacked = next((one for one in folders if (one / CIFAR_FOLDER).is_dir()), None)
    packed = next((one / CIFAR for one in folders if (one / CIFAR).is_file()), None)
    with TemporaryDirectory() as place:
        if unpacked is None and packed is not None and not download:
            _unpack(packed, Path(place))
            unpacked = Path(place)
        got = _torchvision_data("cifar10", unpacked or root, train, download)
        y = torch.as_tensor(got.targets).long()
        return images(np.asarray(got.data)), y, tuple(got.classes), 255, 0


def _unpack(archive: Path, place: Path) -> None:
    """Unpack the batches of CIFAR-10; torchvision compares their checksums before it reads them."""
    (place / CIFAR_FOLDER).mkdir()
    try:
        with tarfile.open(archive) as file:
            for member in file:
                path = PurePosixPath(member.name)
                if member.isfile() and path.parts[:-1] == (CIFAR_FOLDER,) and member.size < LARGEST:
                    file.extract(member, place, filter="data")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise LeakauditError(f"{archive}: cannot be read ({error})") from error


def _torchvision_data(name: str, root: Path, train: bool, download: bool) -> Any:
    kind = getattr(_torchvision.torchvision().datasets, TORCHVISION[name])
    try:
        return kind(str(root), train=train, download=download)
    except (RuntimeError, OSError, ValueError, EOFError) as error:
        first = str(error).split("\n")[0]
        raise LeakauditError(
            f"{name} cannot be read in {root} ({first}); check --data-root, or add --download"
        ) from error


def text(length: int) -> Records:
    """Cut the documentation that Python's help() displays into sequences of bytes.

    It is part of every Python (PSF licence) and differs between versions. Runs of spaces and line
    breaks become one space. A token is a byte of UTF-8; y is the byte after the sequence, with
    which the next one begins.
    """
    from pydoc_data.topics import topics

    if not 2 <= length <= LONGEST:
        raise LeakauditError(f"text: expected records of 2 to {LONGEST} bytes, got {length}")
    words = " ".join(topics[name] for name in sorted(topics)).split()
    flat = np.frombuffer(" ".join(words).encode(), dtype=np.uint8)
    count = (len(flat) - 1) // length
    x = flat[: count * length].reshape(count, length)
    y = flat[length : count * length + 1 : length]
    # Equal sequences would be one record with two owners.
    _, first = np.unique(x, axis=0, return_index=True)
    kept = np.sort(first)
    following = torch.from_numpy(y[kept].astype(np.int64))
    return torch.from_numpy(x[kept].astype(np.float32)), following, (), 0, BYTES


def gaussians(count: int, generator: Generator | None) -> Records:
    """Draw two unit-variance Gaussians in the plane: label 0 at (-1, -1), label 1 at (1, 1)."""
    if generator is None:
        raise LeakauditError("gaussians are drawn at random: pass a torch.Generator to load()")
    y = torch.arange(count) % 2
    noise = torch.randn(count, 2, generator=generator, device=generator.device).cpu()
    return noise + (2.0 * y - 1).unsqueeze(1), y, (), 0, 0


def planted(kind: str, count: int, width: int, spread: float, generator: Generator) -> Planted:
    """Draw features A (n, p) and weights x* (p,) of N(0, 1), and targets that A x* determines.

    The targets of ``regression`` are A x* plus noise of standard deviation `spread`; those of
    ``classification`` are 1 with probability 1 / (1 + exp(-A x*)), otherwise 0.
    """
    device = generator.device
    a = torch.randn(count, width, generator=generator, device=device).cpu()
    weights = torch.randn(width, generator=generator, device=device).cpu()
    shown = a @ weights
    if kind == "classification":
        chance = torch.rand(count, generator=generator, device=device).cpu()
        return (a, (chance < shown.sigmoid()).long(), (), 0, 0), weights
    if spread:
        shown = shown + spread * torch.randn(count, generator=generator, device=device).cpu()
    return (a, shown, (), 0, 0), weights
