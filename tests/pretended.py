"""A second device without hardware: `other` stores its values on the CPU; torch refuses to mix
both, as with CUDA.

python tests/pretended.py victims|attacks [NAME …]
    prints one JSON line per run on both devices, with their difference; with LEAKAUDIT_DEVICE=cuda,
    the second device is that one

The backend is global to a process, therefore this is a script. A tensor's values are stored beside
it, by its storage. The script cannot show that CUDA lacks an operator.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

from leakaudit._util import seeds
from leakaudit.core import registry
from leakaudit.inversion import attacking
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.scoring import scoring
from leakaudit.tasks.task import Task
from leakaudit.views.extraction import hearing

NAME = os.environ.get("LEAKAUDIT_DEVICE") or "other"
VALUES: dict[int, Tensor] = {}
VIEWS = ("aten::view", "aten::_unsafe_view", "aten::_reshape_alias")
MIXED = (
    "aten::index.Tensor",
    "aten::index",
    "aten::_index_put_impl_",
)  # CUDA accepts indices on the CPU too
aten = torch.ops.aten
PDMM: dict[str, Any] = {
    "victim": "pdmm",
    "nodes": 4,
    "graph": "ring",
    "rounds": 6,
    "data": "faces",
    "model": "mlp",
    "set": {"hidden": 16, "differential": False},
}
FEDSGD: dict[str, Any] = {"victim": "fedsgd", "nodes": 2, "rounds": 1, "dtype": "float64"}
SCENARIOS: dict[str, dict[str, Any]] = {  # of attacks that need other recordings
    "cone": {**FEDSGD, "data": "faces", "samples": 4, "model": "cnn", "set": {"hidden": 64}},
    "rgap": {**FEDSGD, "data": "faces", "model": "lenet"},
    "patches": {**FEDSGD, "data": "photos", "samples": 3, "model": "vit"},
    "tokens": {**FEDSGD, "data": "text", "model": "gpt"},
    "sequences": {**FEDSGD, "data": "text", "samples": 3, "model": "gpt"},
    "completion": {
        "victim": "choco",
        "nodes": 3,
        "graph": "ring",
        "rounds": 12,
        "data": "faces",
        "model": "mlp",
        "dtype": "float64",
        "set": {"hidden": 64, "compress": "fixed", "share": 1 / 16},
    },
}


def there(t: Any) -> bool:
    """Return whether this is a tensor of the second device."""
    return isinstance(t, Tensor) and t.device.type == NAME


def inside(t: Any) -> Any:
    """Return the values of such a tensor, and other things unchanged."""
    if not there(t):
        return t
    values = VALUES[t.untyped_storage()._cdata]
    return values if values.shape == t.shape else values.reshape(t.shape)


def outside(values: Any) -> Any:
    """Return a tensor of the second device with these values."""
    if not isinstance(values, Tensor):
        return values
    made: Tensor = torch._C._acc.create_empty_tensor(tuple(values.shape), values.dtype)
    VALUES[made.untyped_storage()._cdata] = values
    return made


def every(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute any operator on the values."""
    name, arguments = op._schema.name, op._schema.arguments
    if name == "aten::_to_copy":
        rest = {
            k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "non_blocking")
        }
        copied = op(inside(args[0]), **rest) if rest else inside(args[0]).clone()
        return (
            outside(copied)
            if torch.device(kwargs.get("device") or args[0].device).type == NAME
            else copied
        )
    if name in ("aten::copy_", "aten::_copy_from"):
        target, source = args[:2] if name == "aten::copy_" else (args[1], args[0])
        inside(target).copy_(inside(source))
        return target
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    if (
        name not in MIXED
        and any(map(there, tensors))
        and any(not there(t) and t.dim() for t in tensors)
    ):
        raise RuntimeError(f"{name}: tensors of two devices")
    given, named = tree_map(inside, (list(args), dict(kwargs)))
    if name == "aten::as_strided":
        return outside(strided(given[0], args[0], *given[1:]))
    for k, a in enumerate(arguments[: len(given)]):
        if str(a.type) == "Tensor" and isinstance(given[k], bool | int | float):
            given[k] = torch.tensor(given[k])
    named |= {"device": torch.device("cpu")} if "device" in named else {}
    out = given[0].reshape(given[1]) if name in VIEWS else op(*given, **named)
    before = {a.name: v for a, v in zip(arguments, args, strict=False)} | kwargs
    after = {a.name: v for a, v in zip(arguments, given, strict=False)} | named
    written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    for key in written:
        if there(before[key]) and before[key].shape != after[key].shape:
            before[key].data = outside(after[key])
    returns = op._schema.returns
    if returns and all(r.alias_info is not None and r.alias_info.is_write for r in returns):
        return before[written[0]] if len(returns) == 1 else tuple(before[key] for key in written)
    return tree_map(outside, out)


def strided(
    values: Tensor, known: Tensor, size: list[int], stride: list[int], offset: int | None = None
) -> Tensor:
    """Return a view of the values if torch assumes other strides for the tensor; each is a multiple
    of that of one dimension.
    """
    left, at = offset or 0, values.storage_offset()
    for k, step in enumerate(known.stride()):
        at += left // step * values.stride(k) if step else 0
        left %= step or 1
    steps = [
        (step, values.stride(k)) for k, step in enumerate(known.stride()) if known.shape[k] > 1
    ] or [(1, 1)]
    moved = [
        next((s // step * real for step, real in steps if step and s >= step and s % step == 0), 0)
        for s in stride
    ]
    return values.as_strided(size, moved, at)


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Any:
    """Compute a convolution, which the fallback does not reach."""
    return outside(aten.convolution(inside(x), inside(weight), inside(bias), *rest))


def convolution_backward(g: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
    """Compute its gradient."""
    return tree_map(
        outside,
        aten.convolution_backward(inside(g), inside(x), inside(weight), [weight.shape[0]], *rest),
    )


def register() -> list[torch.library.Library]:
    """Register the device, which exists as long as the returned objects."""
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    anything, ours = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    anything.fallback(every, "PrivateUse1")
    ours.impl("convolution_overrideable", convolution, "PrivateUse1")
    ours.impl("convolution_backward_overrideable", convolution_backward, "PrivateUse1")
    return [anything, ours]


def victims(names: list[str]) -> Iterator[dict[str, Any]]:
    """Record every victim on both devices; difference: the largest over all messages and states."""
    for name in names or registry.names("victims"):
        exact = name in ("mradmm", "pvpadmm", "rwadmm")  # they solve a small convex problem
        shape: dict[str, Any] = (
            {"data": "gaussians", "model": "logistic"}
            if exact
            else {"data": "faces", "model": "mlp", "set": {"hidden": 8}}
        )
        size: dict[str, Any] = (
            {"nodes": 9, "graph": "complete"}
            if name in ("secagg", "secured")
            else {"nodes": 6, "graph": "ring"}
        )
        chosen = Scenario(name, rounds=3, samples=2, states=True, curves=True, **shape, **size)
        kept = [recording.record(recording.plan(chosen, device=d), None) for d in ("cpu", NAME)]
        one, two = (
            [*r.truth_record.states.values(), *(m.payload for m in r.trace.messages)] for r in kept
        )
        yield {
            "name": name,
            "tensors": len(one),
            "difference": max(
                float((a - b).abs().max()) for a, b in zip(one, two, strict=True) if a.numel()
            ),
        }


def attacks(names: list[str]) -> Iterator[dict[str, Any]]:
    """Attack the same leak on both devices; the iterative attacks take a few steps.

    `idlg` searches it twice in one batch, and continues from float32 in float64.
    """
    for name in names:
        kept = recording.record(recording.plan(Scenario(**SCENARIOS.get(name, PDMM))), None)
        estimator = attacking.estimator(name, {})
        (leak,) = hearing.leaks(kept.trace, nodes=[0], estimator=estimator)
        settings = {"steps": 2} if name == "inverting" else {}
        tasks = [Task.build(kept.trace.task, device=device) for device in ("cpu", NAME)]
        if name == "idlg":
            both = registry.configure(registry.get("attacks", name), {"steps": 2, "goal": 0.1})
            found = [
                dict(both.many([leak, leak], task, [seeds.generator(0, k) for k in range(2)]))[1]
                for task in tasks
            ]
        else:
            found = [
                attacking.attack_one(leak, task, name, seeds.generator(0, 0), **settings)
                for task in tasks
            ]
        errors = [scoring.score([one], kept.truth_record)[0].relative_error for one in found]
        yield {
            "name": name,
            "certificates": [f.certificate.name for f in found],
            "errors": [e and e[0] for e in errors],
        }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    alive = register() if NAME == "other" else []
    with contextlib.suppress(BrokenPipeError):
        for line in {"victims": victims, "attacks": attacks}[sys.argv[1]](sys.argv[2:]):
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
