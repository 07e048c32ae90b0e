"""Data sets by name: bundled with scikit-image, read by torchvision, or generated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import skimage.data
import torch
import torch.nn.functional as F
from torch import Generator

from leakaudit.core.errors import LeakauditError
from leakaudit.tasks import _torchvision
from leakaudit.tasks.data_files import Records, images

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
_BUNDLE: Any = skimage.data  # its stubs annotate arrays as scalars
TORCHVISION = {"mnist": "MNIST", "fashion": "FashionMNIST", "cifar10": "CIFAR10"}


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


def from_torchvision(name: str, root: Path | None, download: bool) -> Records:
    """Read the training images of MNIST, Fashion-MNIST or CIFAR-10 in torchvision's layout."""
    if root is None:
        raise LeakauditError(
            f"{name} is not bundled: set --data-root to its folder, "
            "and add --download to download it"
        )
    kind = getattr(_torchvision.torchvision().datasets, TORCHVISION[name])
    try:
        got = kind(str(root), train=True, download=download)
    except (RuntimeError, OSError, ValueError, EOFError) as error:
        first = str(error).split("\n")[0]
        raise LeakauditError(
            f"{name} cannot be read in {root} ({first}); check --data-root, or add --download"
        ) from error
    y = torch.as_tensor(got.targets).long()
    return images(np.asarray(got.data)), y, tuple(got.classes), 255, 0


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
