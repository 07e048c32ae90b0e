"""From a `TaskSpec` to a torch module: reject invalid specs, build the module and inspect it."""

from __future__ import annotations

import importlib
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from leakaudit.errors import LeakauditError, suggest
from leakaudit.registry import configure
from leakaudit.tasks.losses import LOSSES
from leakaudit.tasks.models import MODELS
from leakaudit.trace import Json, TaskSpec

SETTINGS = ("l2", "bn")  # keys of spec.args that belong to the task, not to the model
# A trace may come from a stranger and request more memory than available. Both limits are choices:
# a GiB of float32 parameters, and inputs of 64 MiB.
LARGEST_MODEL = 2**28
LARGEST_INPUT = 2**24
LinearNames = tuple[str, str | None]
BatchNorm = nn.modules.batchnorm._BatchNorm


def check(spec: TaskSpec) -> None:
    """Reject a spec that no model can implement; it may come from a stranger's trace.

    Args:
        spec: Description of the task.

    Raises:
        LeakauditError: The shape, loss, classes, mean or std is invalid.
    """
    positive = bool(spec.shape) and all(type(s) is int and s > 0 for s in spec.shape)
    if not positive or math.prod(spec.shape) > LARGEST_INPUT:
        raise LeakauditError(
            "task: expected an input shape of positive sides and at most "
            f"{LARGEST_INPUT} values, got {spec.shape}"
        )
    if spec.loss not in LOSSES:
        raise LeakauditError(f"task: unknown loss {spec.loss!r}{suggest(str(spec.loss), LOSSES)}")
    _check_classes(spec)
    for name, values in (("mean", spec.mean), ("std", spec.std)):
        numbers = all(isinstance(v, float | int) and math.isfinite(v) for v in values)
        if len(values) not in {1, spec.shape[0]} or not numbers:
            raise LeakauditError(
                f"task: expected {name} to have one finite entry, or one per channel "
                f"of {spec.shape}, got {values}"
            )
    if min(spec.std) <= 0:
        raise LeakauditError(f"task: expected std > 0, got {spec.std}")


def _check_classes(spec: TaskSpec) -> None:
    least = 1 if spec.loss == "squared" else 2
    enough = type(spec.classes) is int and spec.classes >= least
    if spec.loss == "binary":
        need = "exactly 2"
        enough = enough and spec.classes == 2
    else:
        need = f"at least {least}"
    if not enough:
        raise LeakauditError(f"task: loss {spec.loss} needs {need} classes, got {spec.classes}")


def l2(spec: TaskSpec) -> float:
    """Return the weight of the quadratic regulariser, 0 if the spec has none.

    Args:
        spec: Description of the task.

    Raises:
        LeakauditError: The weight is not a number, or negative.
    """
    given = spec.args.get("l2", 0.0)
    try:
        weight = float(given) if isinstance(given, str | int | float) else math.nan
    except ValueError:
        weight = math.nan
    if not 0 <= weight < math.inf:
        raise LeakauditError(f"task: expected l2 >= 0, got {given!r}")
    return weight


def outputs(spec: TaskSpec) -> int:
    """Return the number of outputs that the loss needs: 1 for ``binary``, one per class otherwise.

    Args:
        spec: Description of the task.
    """
    return 1 if spec.loss == "binary" else spec.classes


def convex(spec: TaskSpec) -> bool:
    """Return whether the loss is convex in the parameters.

    Args:
        spec: Description of the task.
    """
    return spec.model in MODELS and MODELS[spec.model].convex


def module(spec: TaskSpec, generator: Generator, trusted: bool) -> nn.Module:
    """Build the module in evaluation mode, with batch normalisation according to the spec's ``bn``.

    Args:
        spec: Description of the task.
        generator: Source of the initial parameters.
        trusted: Whether a ``package.module:factory`` may be imported and called. A spec read from a
            trace may come from a stranger, and calling the factory that it names would execute
            arbitrary code.

    Raises:
        LeakauditError: A name or argument is unknown, a factory is not trusted, or a size exceeds
            the limits.
    """
    args = {k: v for k, v in spec.args.items() if k not in SETTINGS}
    with _global_state_of(generator):
        if ":" in spec.model:
            net = _own(spec, args, trusted)
        else:
            net = _registered(spec, args)
    net = net.eval()
    _set_batch_norm(spec, net)
    _refuse_two_names(spec, net)
    if not any(p.requires_grad for p in net.parameters()):
        raise LeakauditError(f"model {spec.model!r} has no parameters to train")
    return net


@contextmanager
def _global_state_of(generator: Generator) -> Iterator[None]:
    """Let module constructors draw from `generator`; restore torch's own state afterwards."""
    source = generator
    if generator.device.type != "cpu":
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        source = Generator().manual_seed(int(seed))
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(source.get_state())
        yield
        source.set_state(torch.random.get_rng_state())


def _set_batch_norm(spec: TaskSpec, net: nn.Module) -> None:
    """Make batch normalisation use the batch's statistics unless the spec specifies otherwise."""
    norms = [m for m in net.modules() if isinstance(m, BatchNorm)]
    bn = spec.args.get("bn", "train")
    if bn not in ("train", "eval"):
        raise LeakauditError(f"task: expected bn=train or bn=eval, got {bn!r}")
    if "bn" in spec.args and not norms:
        raise LeakauditError(
            f"task: model {spec.model!r} has no batch normalisation; remove the argument bn"
        )
    for norm in norms:
        if bn == "train":
            norm.track_running_stats = False
            norm.running_mean = None
            norm.running_var = None
            norm.num_batches_tracked = None
        norm.register_forward_pre_hook(_refuse_one_value)


def _refuse_one_value(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Reject, before torch does, statistics of one value per channel: the variance is zero."""
    x = inputs[0]
    if norm.running_mean is None and x.dim() > 1 and x.numel() == x.shape[1]:
        raise LeakauditError(
            "bn=train cannot compute statistics of one sample on 1x1 maps; "
            "use two samples per node, larger images or bn=eval"
        )


def _refuse_two_names(spec: TaskSpec, net: nn.Module) -> None:
    """Reject a layer with parameters that is registered twice."""
    first_names = dict(net.named_modules())
    for name, m in net.named_modules(remove_duplicate=False):
        has_parameters = next(m.parameters(), None) is not None
        if has_parameters and name not in first_names:
            raise LeakauditError(
                f"model {spec.model!r}: layer {name!r} is registered under two names, "
                "which torch.func does not support; register it once"
            )


@dataclass(frozen=True, eq=False)
class _Call:
    """One call of a linear layer: whether its input is the network's own, and its output."""

    layer: nn.Module
    sees_input: bool
    out: Tensor


def linear_ends(net: nn.Module, spec: TaskSpec) -> tuple[LinearNames | None, LinearNames | None]:
    """Find the `nn.Linear` that receives the input, and the one before the loss, by test inputs.

    Each must run exactly once, with parameters of its own; otherwise gradients would be sums over
    several uses.

    Args:
        net: The model.
        spec: Description of the task.

    Returns:
        Names (weight, bias or None) of the first and of the last; None if there is no such layer.

    Raises:
        LeakauditError: The model does not accept the inputs, or its outputs have another shape.
    """
    like = next(iter(net.parameters()), torch.empty(0))
    x = torch.rand(2, *spec.shape, generator=Generator().manual_seed(0)).to(like)
    linear = [(n, m) for n, m in net.named_modules() if type(m) is nn.Linear]
    calls: list[_Call] = []

    def look(layer: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        given = inputs[0]
        as_wide = given.shape[-1] == x[0].numel() and given.numel() == x.numel()
        same = as_wide and torch.equal(given.flatten(), x.flatten())
        calls.append(_Call(layer, same, out.clone()))

    out = _watched(net, x, spec, [m for _, m in linear], look)
    runs = Counter(id(call.layer) for call in calls)
    uses = Counter(id(p) for _, p in net.named_parameters(remove_duplicate=False))
    first, last = None, None
    for name, m in linear:
        own = {n for n, p in m.named_parameters() if p.requires_grad and uses[id(p)] == 1}
        if runs[id(m)] != 1 or "weight" not in own:
            continue
        at = f"{name}." if name else ""
        found = (f"{at}weight", f"{at}bias" if "bias" in own else None)
        call = next(c for c in calls if c.layer is m)
        if call.sees_input and first is None:
            first = found
        if torch.equal(call.out, out):
            last = found
    return first, last


def _watched(
    net: nn.Module,
    x: Tensor,
    spec: TaskSpec,
    layers: list[nn.Module],
    look: Callable[[nn.Module, tuple[Tensor, ...], Tensor], None],
) -> Tensor:
    """Run a model on two inputs, calling `look` for every call of some layers; check the output."""
    hooks = [layer.register_forward_hook(look) for layer in layers]
    try:
        with torch.no_grad():
            out = net(x)
    except Exception as error:  # a user's forward may raise anything
        raise LeakauditError(
            f"model {spec.model!r} does not accept inputs "
            f"(b, {', '.join(map(str, spec.shape))}): {error}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(out, Tensor) or out.shape != (2, outputs(spec)):
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise LeakauditError(
            f"model {spec.model!r}: expected outputs (2, {outputs(spec)}) for two inputs "
            f"and loss {spec.loss}, got {got}"
        )
    return out


def _registered(spec: TaskSpec, args: Mapping[str, Json]) -> nn.Module:
    """Build a registered model; its size is computed first, without allocating memory."""
    if spec.model not in MODELS:
        raise LeakauditError(
            f"unknown model {spec.model!r}{suggest(spec.model, MODELS)}; "
            "name your own model as package.module:factory"
        )
    model = configure(MODELS[spec.model], dict(args))
    with torch.device("meta"):
        size = sum(p.numel() for p in model(spec.shape, outputs(spec)).parameters())
    if size > LARGEST_MODEL:
        raise LeakauditError(
            f"model {spec.model} would have {size} parameters, but the limit is {LARGEST_MODEL}; "
            "use smaller layers"
        )
    return model(spec.shape, outputs(spec))


def _own(spec: TaskSpec, args: Mapping[str, Json], trusted: bool) -> nn.Module:
    """Import and call a user's factory."""
    if not trusted:
        raise LeakauditError(
            f"model {spec.model!r} is code outside leakaudit; to run it, "
            "pass --trust-model (in Python trusted=True)"
        )
    factory = _imported(spec)
    offered = {"shape": spec.shape, "classes": spec.classes, "outputs": outputs(spec)}
    wanted = inspect.signature(factory).parameters
    given = {k: v for k, v in offered.items() if k in wanted}
    try:
        net = factory(**given, **args)
    except Exception as error:  # a user's code may raise anything
        raise LeakauditError(
            f"model {spec.model!r} with {dict(args)} raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(net, nn.Module):
        raise LeakauditError(
            f"model {spec.model!r}: expected a torch.nn.Module, got {type(net).__name__}"
        )
    return net


def _imported(spec: TaskSpec) -> Callable[..., object]:
    """Import the function that a spec names as ``package.module:factory``."""
    where, _, name = spec.model.partition(":")
    try:
        factory: object = getattr(importlib.import_module(where), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise LeakauditError(
            f"model {spec.model!r}: {error}; expected package.module:factory on Python's path"
        ) from error
    except Exception as error:  # a user's module may raise anything
        raise LeakauditError(
            f"model {spec.model!r}: importing {where} raised {type(error).__name__}: {error}"
        ) from error
    if not callable(factory):
        raise LeakauditError(
            f"model {spec.model!r}: expected a function or class that returns a torch module, "
            f"got {type(factory).__name__}"
        )
    return factory
