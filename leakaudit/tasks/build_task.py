"""From a `TaskSpec` to a torch module: refuses what does not fit, builds it from a generator, looks at what it built."""

from __future__ import annotations

import importlib
import inspect
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor, nn

from leakaudit.errors import LeakauditError, suggest
from leakaudit.registry import configure
from leakaudit.tasks.models import MODELS
from leakaudit.trace import Json, TaskSpec

LOSSES = ("cross_entropy", "binary", "squared")
SETTINGS = ("l2", "bn")  # keys of spec.args that are the task's, not the model's
LARGEST_MODEL = (
    2**28
)  # parameters; a trace is a stranger's file and may ask for more memory than there is
LARGEST_INPUT = 2**24
LinearNames = tuple[str, str | None]


def check(spec: TaskSpec) -> None:
    """Raise LeakauditError for a spec that no model could serve; the spec may come from a stranger's trace."""
    if (
        not spec.shape
        or not all(type(s) is int and s > 0 for s in spec.shape)
        or math.prod(spec.shape) > LARGEST_INPUT
    ):
        raise LeakauditError(
            f"task: expected an input shape of positive sides and at most {LARGEST_INPUT} values, got {spec.shape}"
        )
    if spec.loss not in LOSSES:
        raise LeakauditError(
            f"task: there is no loss {spec.loss!r}{suggest(str(spec.loss), LOSSES)}"
        )
    least = 1 if spec.loss == "squared" else 2
    if (
        type(spec.classes) is not int
        or spec.classes < least
        or (spec.loss == "binary" and spec.classes != 2)
    ):
        need = "exactly 2" if spec.loss == "binary" else f"at least {least}"
        raise LeakauditError(f"task: loss {spec.loss} needs {need} classes, got {spec.classes}")
    for name, values in (("mean", spec.mean), ("std", spec.std)):
        if len(values) not in {1, spec.shape[0]} or not all(
            isinstance(v, float | int) and math.isfinite(v) for v in values
        ):
            raise LeakauditError(
                f"task: expected {name} with one finite entry or one a channel of {spec.shape}, got {values}"
            )
    if min(spec.std) <= 0:
        raise LeakauditError(f"task: expected std > 0, got {spec.std}")


def l2(spec: TaskSpec) -> float:
    """Weight of the quadratic regulariser, 0 where the spec has none."""
    try:
        weight = float(spec.args.get("l2", 0.0))
    except (TypeError, ValueError):
        weight = math.nan
    if not 0 <= weight < math.inf:
        raise LeakauditError(f"task: expected l2 >= 0, got {spec.args['l2']!r}")
    return weight


def outputs(spec: TaskSpec) -> int:
    """Return the number of outputs that the loss needs: 1 for ``binary``, one a class otherwise."""
    return 1 if spec.loss == "binary" else spec.classes


def convex(spec: TaskSpec) -> bool:
    """Whether the loss is convex in the parameters."""
    return spec.model in MODELS and MODELS[spec.model].convex


def module(spec: TaskSpec, generator: Generator, trusted: bool) -> nn.Module:
    """Build the module from the generator's state, in evaluation mode, batch normalisation as ``bn`` says.

    trusted: whether a ``package.module:factory`` may be imported and called; a spec read from a trace is
    a stranger's text, and calling what it names would run code of his choice.
    Raises LeakauditError for unknown names and arguments, a factory that is not trusted, and sizes beyond reason.
    """
    args = {k: v for k, v in spec.args.items() if k not in SETTINGS}
    with _global_state_of(generator):
        net = (_own(spec, args, trusted) if ":" in spec.model else _registered(spec, args)).eval()
    norms = [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    bn = spec.args.get("bn", "train")
    if bn not in ("train", "eval"):
        raise LeakauditError(f"task: expected bn=train or bn=eval, got {bn!r}")
    if "bn" in spec.args and not norms:
        raise LeakauditError(f"task: model {spec.model!r} has no batch normalisation; leave bn out")
    for m in norms if bn == "train" else ():
        m.track_running_stats = False
        m.running_mean = m.running_var = m.num_batches_tracked = None
    twice = [
        n
        for n, m in net.named_modules(remove_duplicate=False)
        if any(True for _ in m.parameters()) and n not in dict(net.named_modules())
    ]
    if twice:
        raise LeakauditError(
            f"model {spec.model!r}: layer {twice[0]!r} is registered under two names, which torch.func cannot follow; register it once"
        )
    if not any(p.requires_grad for p in net.parameters()):
        raise LeakauditError(f"model {spec.model!r} has no parameters to train")
    return net


@contextmanager
def _global_state_of(generator: Generator) -> Iterator[None]:
    """Let module constructors draw from `generator`; torch's own state is put back afterwards."""
    source = generator
    if generator.device.type != "cpu":
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        source = Generator().manual_seed(int(seed))
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(source.get_state())
        yield
        source.set_state(torch.random.get_rng_state())


def linear_ends(net: nn.Module, spec: TaskSpec) -> tuple[LinearNames | None, LinearNames | None]:
    """Run two made-up inputs and see which `nn.Linear` gets the input as it is, and which gives the outputs.

    Both must run once, on parameters of their own, else gradients would be sums over several uses.
    Raises LeakauditError where the model does not take the input or gives outputs of another shape.
    """
    like = next(iter(net.parameters()), torch.empty(0))
    x = torch.rand(2, *spec.shape, generator=Generator().manual_seed(0)).to(like)
    linear = [(n, m) for n, m in net.named_modules() if type(m) is nn.Linear]
    seen: list[tuple[nn.Module, bool, Tensor]] = []

    def look(m: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        same = (
            inputs[0].shape[-1] == x[0].numel()
            and inputs[0].numel() == x.numel()
            and torch.equal(inputs[0].flatten(), x.flatten())
        )
        seen.append((m, same, out.clone()))

    hooks = [m.register_forward_hook(look) for _, m in linear]
    try:
        with torch.no_grad():
            out = net(x)
    except Exception as error:  # a user's forward may raise anything
        raise LeakauditError(
            f"model {spec.model!r} does not take inputs (b, {', '.join(map(str, spec.shape))}): {error}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(out, Tensor) or out.shape != (2, outputs(spec)):
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise LeakauditError(
            f"model {spec.model!r}: expected outputs (2, {outputs(spec)}) for two inputs and loss {spec.loss}, got {got}"
        )
    runs = Counter(id(m) for m, _, _ in seen)
    uses = Counter(id(p) for _, p in net.named_parameters(remove_duplicate=False))
    first, last = None, None
    for name, m in linear:
        names = {n for n, p in m.named_parameters() if p.requires_grad and uses[id(p)] == 1}
        if runs[id(m)] != 1 or "weight" not in names:
            continue
        at = f"{name}." if name else ""
        found = (f"{at}weight", f"{at}bias" if "bias" in names else None)
        _, same, given = next(s for s in seen if s[0] is m)
        first = found if same and first is None else first
        last = found if torch.equal(given, out) else last
    return first, last


def _registered(spec: TaskSpec, args: Mapping[str, Json]) -> nn.Module:
    """Build a model by name; its size is found without memory first."""
    if spec.model not in MODELS:
        raise LeakauditError(
            f"there is no model {spec.model!r}{suggest(spec.model, MODELS)}; or name your own as package.module:factory"
        )
    texts = {
        k: ",".join(map(str, v)) if isinstance(v, list | tuple) else v for k, v in args.items()
    }
    model = configure(MODELS[spec.model], texts)
    with torch.device("meta"):
        size = sum(p.numel() for p in model(spec.shape, outputs(spec)).parameters())
    if size > LARGEST_MODEL:
        raise LeakauditError(
            f"model {spec.model} would have {size} parameters, at most {LARGEST_MODEL} are built; choose smaller layers"
        )
    return model(spec.shape, outputs(spec))


def _own(spec: TaskSpec, args: Mapping[str, Json], trusted: bool) -> nn.Module:
    """Import and call a user's factory."""
    if not trusted:
        raise LeakauditError(
            f"model {spec.model!r} is code outside leakaudit; --trust-model, in Python trusted=True, lets it run"
        )
    where, _, name = spec.model.partition(":")
    try:
        factory: Any = getattr(importlib.import_module(where), name)
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
            f"model {spec.model!r}: expected a function or class that returns a torch module, got {type(factory).__name__}"
        )
    offered = {"shape": spec.shape, "classes": spec.classes, "outputs": outputs(spec)}
    wanted = inspect.signature(factory).parameters
    try:
        module = factory(**{k: v for k, v in offered.items() if k in wanted}, **args)
    except Exception as error:  # a user's code may raise anything
        raise LeakauditError(
            f"model {spec.model!r} with {dict(args)} raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise LeakauditError(
            f"model {spec.model!r}: expected a torch.nn.Module back, got {type(module).__name__}"
        )
    return module
