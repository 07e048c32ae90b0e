"""Weights of LPIPS, from a file or from torch's cache.

Every key is validated, nothing is downloaded, and nothing is loaded partially.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from leakaudit._util.untrusted import tensors
from leakaudit.core.errors import LeakauditError
from leakaudit.tasks import _torchvision

SIDES = {"alex": 31, "squeeze": 17, "vgg": 16}  # smallest side in pixels that each trunk accepts
NO_WEIGHTS = "not measured (no weights)"
LARGEST = 1 << 30  # bytes; the file of vgg has half of that
_CONSTANTS = "scaling_layer."  # never read from a file
_KEY = re.compile(r"net\.\d+\..+|lin\.\d+|scaling_layer\..+")  # of any network

# The names under which torchvision caches the trunks. Each ends in the first digits of its sha256.
_CACHED = {
    "alex": "alexnet-owt-7be5be79.pth",
    "squeeze": "squeezenet1_1-b8a52dc0.pth",
    "vgg": "vgg16-397923af.pth",
}


@dataclass(frozen=True)
class Weights:
    """A loaded LPIPS network."""

    net: str  # `alex`, `squeeze` or `vgg`
    source: str  # name of the file
    sha256: str  # SHA-256 of that file
    module: nn.Module  # network for two batches (b, 3, h, w) in [-1, 1]

    @property
    def side(self) -> int:
        """Smallest side in pixels."""
        return SIDES[self.net]

    def __str__(self) -> str:
        return f"{self.net} v0.1, {self.source}, sha256 {self.sha256}"


def find(option: str, shape: tuple[int, ...] | None = None) -> tuple[Weights | None, str]:
    """Find the weights for images (c, h, w), and say which are used or why none are.

    `option` is a file, ``auto`` (torchvision's weights if torch.hub has cached them) or
    ``off``.
    """
    if option == "off":
        return None, "not measured (switched off)"
    if shape is not None and (len(shape) != 3 or shape[0] not in (1, 3)):
        return None, "not measured (no images with 1 or 3 channels)"
    side = min(shape[1:]) if shape else max(SIDES.values())
    if option == "auto":
        return _from_cache(side)
    weights = read(Path(option))
    if side < weights.side:
        return None, _too_small([weights.net])
    return weights, str(weights)


def _from_cache(side: int) -> tuple[Weights | None, str]:
    """Return the first cached network, in the order of `_CACHED`, that accepts a side in pixels."""
    folder = Path(torch.hub.get_dir(), "checkpoints")
    cached = [net for net, name in _CACHED.items() if (folder / name).is_file()]
    if not cached:
        return None, NO_WEIGHTS
    fitting = [net for net in cached if side >= SIDES[net]]
    if not fitting:
        return None, _too_small(cached)
    path = folder / _CACHED[fitting[0]]
    weights = read(path)
    wanted = path.stem.rsplit("-", 1)[1]
    if not weights.sha256.startswith(wanted):
        raise LeakauditError(
            f"{path}: expected a sha256 that begins with {wanted}, got {weights.sha256[:8]}; "
            "delete it or use --lpips-weights off"
        )
    return weights, str(weights)


def _too_small(nets: Iterable[str]) -> str:
    needs = [f"{net} needs sides of at least {SIDES[net]} px" for net in nets]
    return f"not measured ({', '.join(needs)})"


def read(path: Path) -> Weights:
    """Load one file of weights, if its keys and shapes are exactly those of one network.

    A ``.npz`` has ``net.<name in torchvision's features>`` and ``lin.<i>``. A ``.pth`` holds
    torchvision's classifier (the heads then come from the lpips package) or a whole LPIPS
    module.
    """
    given = {_canonical(key): value for key, value in _load(path).items()}
    # Other files are refused before torchvision is loaded, which takes seconds.
    known = bool(given) and all(map(_KEY.fullmatch, given))
    for net in SIDES if known else ():
        module = blank(net)
        wanted = {_canonical(key) for key in module.state_dict()}
        constants = {key for key in wanted if key.startswith(_CONSTANTS)}
        tensors = given
        if "lin.0" not in given:
            tensors = {**_heads(net), **given}
        if tensors.keys() | constants == wanted:
            _fill(module, tensors, path)
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            return Weights(net, path.name, sha256, module)
    some = ", ".join(sorted(given)[:3])
    raise LeakauditError(
        f"{path}: expected exactly the keys of an LPIPS network "
        "(alex, squeeze or vgg: net.0.weight, lin.0, …) or of torchvision's classifier, "
        f"got {len(given)} keys such as {some!r:.120}; use another file or --lpips-weights off"
    )


def blank(net: str) -> nn.Module:
    """Build the lpips package's module without values: no download, no random numbers."""
    with torch.device("meta"), warnings.catch_warnings():
        # torchvision deprecates an argument that lpips passes
        warnings.simplefilter("ignore", UserWarning)
        lpips = _torchvision.lpips()
        module: nn.Module = lpips.LPIPS(pretrained=False, pnet_rand=True, net=net, verbose=False)
    return module


def _canonical(key: str) -> str:
    """The name in npz files of a key of an LPIPS module or of torchvision's classifier."""
    key = re.sub(r"^(net\.slice\d+|features)\.", "net.", key)
    return re.sub(r"^lins?\.?(\d+)\.model\.1\.weight$", r"lin.\1", key)


def _load(path: Path) -> dict[str, Tensor]:
    """Plain tensors of a file, without a classifier's last layers, which LPIPS does not use."""
    state = tensors.read(path, LARGEST, "LPIPS weights")
    if isinstance(state, list):
        raise LeakauditError(f"{path}: expected a state dictionary of tensors, got a list of them")
    return {key: value for key, value in state.items() if not key.startswith("classifier.")}


def _heads(net: str) -> dict[str, Tensor]:
    """Linear heads v0.1 that come with the lpips package."""
    file = Path(_torchvision.lpips().__path__[0]) / "weights" / "v0.1" / f"{net}.pth"
    heads = torch.load(file, map_location="cpu", weights_only=True)
    return {_canonical(key): value for key, value in heads.items()}


def _fill(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load values into a blank module, strictly; the constants of its scaling layer stay."""
    state = dict(module.state_dict())
    for key, slot in state.items():
        name = _canonical(key)
        if name not in tensors or key.startswith(_CONSTANTS):
            continue
        value = tensors[name]
        if not _fits(value, slot):
            raise LeakauditError(
                f"{path}: {name}: expected {tuple(slot.shape)} finite numbers, "
                f"got {tuple(value.shape)}"
            )
        state[key] = value.float().reshape(slot.shape)
    module.load_state_dict(state, strict=True, assign=True)
    module.requires_grad_(False).eval()


def _fits(value: Tensor, slot: Tensor) -> bool:
    """Whether a value has the shape of its slot (the heads may be stored flat) and is finite."""
    if value.numel() != slot.numel():
        return False
    if value.ndim > 1 and value.shape != slot.shape:
        return False
    return bool(torch.isfinite(value).all())
