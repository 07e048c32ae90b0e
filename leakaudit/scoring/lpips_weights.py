"""Weights of LPIPS, from a file or from torch's cache: every key is checked, nothing is downloaded, nothing is loaded in part."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from leakaudit.errors import LeakauditError
from leakaudit.tasks import _torchvision

SIDES = {"alex": 31, "squeeze": 17, "vgg": 16}  # smallest side in pixels that each trunk accepts
_CACHED = {
    "alex": "alexnet-owt-7be5be79.pth",
    "squeeze": "squeezenet1_1-b8a52dc0.pth",
    "vgg": "vgg16-397923af.pth",
}  # torchvision's names
NO_WEIGHTS = "not measured (no weights)"
_CONSTANTS = "scaling_layer."  # never read from a file


@dataclass(frozen=True)
class Weights:
    """A loaded LPIPS network.

    net: ``alex``, ``squeeze`` or ``vgg``. source: file name. sha256: of that file. module: takes two batches (b, 3, h, w) in [-1, 1].
    """

    net: str
    source: str
    sha256: str
    module: nn.Module

    @property
    def side(self) -> int:
        """Smallest side in pixels."""
        return SIDES[self.net]

    def __str__(self) -> str:
        return f"{self.net} v0.1, {self.source}, sha256 {self.sha256}"


def find(option: str, shape: tuple[int, ...] | None = None) -> tuple[Weights | None, str]:
    """Weights for images of one shape (c, h, w), and a sentence that says which they are or why LPIPS is not measured.

    option: a file, ``auto`` (torchvision's weights where torch.hub has cached them) or ``off``. shape: None for large colour images.
    Raises LeakauditError as `read` does.
    """
    if option == "off":
        return None, "not measured (switched off)"
    if shape is not None and (len(shape) != 3 or shape[0] not in (1, 3)):
        return None, "not measured (no images with 1 or 3 channels)"
    side = min(shape[1:]) if shape else max(SIDES.values())
    if option != "auto":
        weights = read(Path(option))
        return (
            (weights, str(weights))
            if side >= weights.side
            else (None, f"not measured ({_too_small(weights.net)})")
        )
    cached = {
        net: path
        for net, name in _CACHED.items()
        if (path := Path(torch.hub.get_dir(), "checkpoints", name)).is_file()
    }
    if not cached:
        return None, NO_WEIGHTS
    if not (fitting := [net for net in cached if side >= SIDES[net]]):
        return None, f"not measured ({', '.join(map(_too_small, cached))})"
    path = cached[fitting[0]]
    weights, wanted = read(path), path.stem.rsplit("-", 1)[1]
    if not weights.sha256.startswith(wanted):
        raise LeakauditError(
            f"{path}: expected a sha256 that begins with {wanted}, got {weights.sha256[:8]}; delete it or use --lpips-weights off"
        )
    return weights, str(weights)


def read(path: Path) -> Weights:
    """Load one file: ``.npz`` with ``net.<name in torchvision's features>`` and ``lin.<i>``, or ``.pth``.

    A .pth holds torchvision's classifier (the heads then come from the lpips package) or a whole LPIPS module.
    Raises LeakauditError where the file cannot be read, or its keys or shapes are not exactly those of one network.
    """
    given = {_canonical(key): value for key, value in _load(path).items()}
    for net in SIDES:
        module = blank(net)
        wanted = {_canonical(key) for key in module.state_dict()}
        tensors = given if "lin.0" in given else {**_heads(net), **given}
        if tensors.keys() | {key for key in wanted if key.startswith(_CONSTANTS)} == wanted:
            _fill(module, tensors, path)
            return Weights(net, path.name, hashlib.sha256(path.read_bytes()).hexdigest(), module)
    raise LeakauditError(
        f"{path}: expected exactly the keys of an LPIPS network (alex, squeeze or vgg: net.0.weight, lin.0, …) or of torchvision's "
        f"classifier, got {len(given)} keys such as {', '.join(sorted(given)[:3])!r:.120}; use another file or --lpips-weights off"
    )


def blank(net: str) -> nn.Module:
    """Build the lpips package's module for one network without values: no download, no random numbers, no memory."""
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # torchvision's deprecation of an argument that lpips passes
        module: nn.Module = _torchvision.lpips().LPIPS(
            pretrained=False, pnet_rand=True, net=net, verbose=False
        )
    return module


def _too_small(net: str) -> str:
    return f"{net} needs sides of at least {SIDES[net]} px"


def _canonical(key: str) -> str:
    """The npz files' name of a key of an LPIPS module or of torchvision's classifier."""
    key = re.sub(r"^(net\.slice\d+|features)\.", "net.", key)
    return re.sub(r"^lins?\.?(\d+)\.model\.1\.weight$", r"lin.\1", key)


def _load(path: Path) -> dict[str, Tensor]:
    """Plain tensors of a file; a classifier's last layers, which LPIPS has no use for, are left out."""
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return {key: torch.from_numpy(file[key]) for key in file.files}
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle raises whatever it happens to run into
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise LeakauditError(
            f"{path}: expected LPIPS weights as .npz or .pth, could not read it: {reason}"
        ) from None
    if not isinstance(state, dict) or not all(
        isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()
    ):
        raise LeakauditError(
            f"{path}: expected a state dictionary of tensors, got {type(state).__name__}"
        )
    return {k: v for k, v in state.items() if not k.startswith("classifier.")}


def _heads(net: str) -> dict[str, Tensor]:
    """Linear heads v0.1 that the lpips package carries."""
    file = Path(_torchvision.lpips().__path__[0]) / "weights" / "v0.1" / f"{net}.pth"
    return {
        _canonical(k): v for k, v in torch.load(file, map_location="cpu", weights_only=True).items()
    }


def _fill(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Put values into a blank module, strictly; the constants of its scaling layer stay."""
    state = dict(module.state_dict())
    for key, slot in state.items():
        if (name := _canonical(key)) in tensors and not key.startswith(_CONSTANTS):
            value = tensors[name].float()
            if (
                value.numel() != slot.numel()
                or (value.ndim > 1 and value.shape != slot.shape)
                or not bool(torch.isfinite(value).all())
            ):
                raise LeakauditError(
                    f"{path}: {name}: expected {tuple(slot.shape)} finite numbers, got {tuple(value.shape)}"
                )
            state[key] = value.reshape(slot.shape)
    module.load_state_dict(state, strict=True, assign=True)
    module.requires_grad_(False).eval()
