"""From a `TaskSpec` to a torch module: reject invalid specs, build the module and inspect it."""

from __future__ import annotations

import hashlib
import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import torch
from torch import Generator, Tensor, nn

from leakaudit._util import own_code
from leakaudit._util.own_code import Trust
from leakaudit._util.plain import is_number
from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.core.registry import configure
from leakaudit.core.trace import Json, TaskSpec
from leakaudit.tasks import _torchvision, adapters
from leakaudit.tasks.exported import archive
from leakaudit.tasks.exported.program import ExportedProgram
from leakaudit.tasks.losses import LOSSES
from leakaudit.tasks.models import CONVEX, MODELS, READ_TOKENS

SETTINGS = ("l2", "bn")  # keys of spec.args that belong to the task, not to the model
OF_USERS = ("dropout", "tokens", "sha256")  # the same, for models that are not registered
# A trace may come from a stranger and request more memory than available. The limits are
# choices: a GiB of float32 parameters, and inputs of 64 MiB.
LARGEST_MODEL = 2**28
LARGEST_INPUT = 2**24
LARGEST_ACTIVATIONS = 2**28  # numbers that one input may cause, a GiB of float32
LinearNames = tuple[str, str | None]
BatchNorm = nn.modules.batchnorm._BatchNorm


def check(spec: TaskSpec) -> None:
    """Reject a spec that no model can implement; it may come from a stranger's trace."""
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
        numbers = all(map(is_number, values))
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
    """Return the weight of the quadratic regulariser, 0 if the spec has none."""
    given = spec.args.get("l2", 0.0)
    try:
        weight = float(given) if isinstance(given, str | int | float) else math.nan
    except (ValueError, OverflowError):
        weight = math.nan
    if not 0 <= weight < math.inf:
        raise LeakauditError(f"task: expected l2 >= 0, got {given!r}")
    return weight


def outputs(spec: TaskSpec) -> int:
    """Return how many outputs the loss needs: 1 for ``binary``, otherwise one per class."""
    return 1 if spec.loss == "binary" else spec.classes


def convex(spec: TaskSpec) -> bool:
    """Return whether the loss is convex in the parameters."""
    return spec.model in CONVEX


def module(spec: TaskSpec, generator: Generator, trusted: Trust) -> nn.Module:
    """Build the module in evaluation mode, with batch normalisation according to the spec's ``bn``.

    A spec read from a trace may come from a stranger, and calling the factory that it names would
    execute arbitrary code; therefore only the trusted one is called.

    Raises:
        LeakauditError: A name or argument is unknown, a factory is not trusted, or a size exceeds
            the limits.
    """
    settings = SETTINGS if spec.model in MODELS else (*SETTINGS, *OF_USERS)
    args = {k: v for k, v in spec.args.items() if k not in settings}
    with _global_state_of(generator):
        if spec.is_program:
            net: nn.Module = _program(spec, args)
        elif ":" in spec.model:
            net = adapters.with_logits(_own(spec, args, trusted))
        else:
            net = _registered(spec, args)
    net = net.eval()
    _set_batch_norm(spec, net)
    _refuse_two_names(spec, net)
    if not any(p.requires_grad for p in net.parameters()):
        raise LeakauditError(f"model {spec.model!r} has no parameters to train")
    return net


def check_constants(model: str, given: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> None:
    """Reject constants that are not those of a model: a trace may come from a stranger."""
    for name, value in given.items():
        own = held.get(name)
        if own is None or not own.is_floating_point():
            raise LeakauditError(f"task: model {model!r} has no constant {name!r:.60}")
        if value.shape != own.shape or not value.is_floating_point():
            raise LeakauditError(
                f"task: constant {name!r}: expected floating-point numbers of shape "
                f"{tuple(own.shape)}, got {value.dtype} of shape {tuple(value.shape)}"
            )
        least = 0.0 if name.endswith("running_var") else -math.inf
        value = value.to(own.dtype)  # a larger format may hold numbers that this one does not
        if not bool((value.isfinite() & (value >= least)).all()):
            raise LeakauditError(
                f"task: constant {name!r}: expected finite numbers in {own.dtype}, variances >= 0"
            )


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
    """Make batch normalisation use the batch's statistics unless the spec specifies otherwise.

    A program normalises as it did when it was exported, unless the spec specifies otherwise.
    """
    graph = net.exported_graph if isinstance(net, ExportedProgram) else None
    norms = [m for m in net.modules() if isinstance(m, BatchNorm)]
    usual = "train" if graph is None or graph.normalises else "eval"
    bn = spec.args.get("bn", usual)
    if bn not in ("train", "eval"):
        raise LeakauditError(f"task: expected bn=train or bn=eval, got {bn!r}")
    if graph is not None:
        if bn == "train" and not graph.normalises:
            raise LeakauditError(
                f"task: model {spec.model!r} was exported without statistics of the batch; "
                "export it in train mode, or remove the argument bn"
            )
        graph.normalises = bn == "train"
        return
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
    first_names = dict(net.named_modules())
    for name, m in net.named_modules(remove_duplicate=False):
        has_parameters = next(m.parameters(), None) is not None
        if has_parameters and name not in first_names:
            raise LeakauditError(
                f"model {spec.model!r}: layer {name!r} is registered under two names, "
                "which torch.func does not support; register it once"
            )


def linear_ends(net: nn.Module, spec: TaskSpec) -> tuple[LinearNames | None, LinearNames | None]:
    """Find the `nn.Linear` that receives the input, and the one before the loss, by test inputs.

    Each must run exactly once, with parameters of its own; otherwise gradients would be sums over
    several uses. The names are those of the weight, and of the bias or None.
    """
    x = example(net, spec)
    out, calls = _calls(net, x, spec, nn.Linear)
    uses = Counter(id(p) for _, p in net.named_parameters(remove_duplicate=False))
    first, last = None, None
    for name, each in calls.items():
        parameters = net.get_submodule(name).named_parameters()
        own = {n for n, p in parameters if p.requires_grad and uses[id(p)] == 1}
        if len(each) != 1 or "weight" not in own:
            continue
        at = f"{name}." if name else ""
        found = (f"{at}weight", f"{at}bias" if "bias" in own else None)
        ((given, output),) = each
        as_wide = given.shape[-1] == x[0].numel() and given.numel() == x.numel()
        if first is None and as_wide and torch.equal(given.flatten(), x.flatten()):
            first = found
        # With several outputs per record, the layer's rows are no longer one class of each record.
        if _before_loss(output, out, spec.loss) and not spec.is_text:
            last = found
    return first, last


def _before_loss(output: Tensor, out: Tensor, loss: str) -> bool:
    """Return whether a layer's output is the model's, up to what a loss does itself."""
    if torch.equal(output, out):
        return True
    # Cross-entropy of log-probabilities is that of the logits behind them.
    fits = loss == "cross_entropy" and output.shape == out.shape
    return fits and torch.equal(output.log_softmax(-1), out)


def embeddings(net: nn.Module, spec: TaskSpec) -> tuple[str | None, str | None]:
    """Find the embedding that receives the tokens, and one that receives their positions.

    Returns:
        Names of their weights; None if there is no such layer, or if it is used more than once.
    """
    x = example(net, spec)
    places = torch.arange(x.shape[-1], device=x.device)
    _, calls = _calls(net, x, spec, nn.Embedding)
    uses = Counter(id(p) for _, p in net.named_parameters(remove_duplicate=False))
    of_tokens, of_places = None, None
    for name, each in calls.items():
        weight = net.get_submodule(name).get_parameter("weight")
        if len(each) != 1 or uses[id(weight)] != 1 or not weight.requires_grad:
            continue
        ((indices, _),) = each
        if torch.equal(indices, x):
            of_tokens = f"{name}.weight"
        elif bool((indices == places).all()) and indices.shape[-1] == len(places):
            of_places = f"{name}.weight"
    return of_tokens, of_places


def example(net: nn.Module, spec: TaskSpec) -> Tensor:
    """Return inputs to try a model with: two, or as many as a program was exported for."""
    source = Generator().manual_seed(0)
    count = tokens(net, spec)
    batch = 2
    if isinstance(net, ExportedProgram):
        batch = net.exported_graph.batch or batch
    like = next(iter(net.parameters()), torch.empty(0))
    if count:
        return torch.randint(count, (batch, *spec.shape), generator=source).to(like.device)
    return torch.rand(batch, *spec.shape, generator=source).to(like)


def tokens(net: nn.Module, spec: TaskSpec) -> int:
    """Return the number of different tokens if the inputs are tokens, 0 if they are numbers."""
    if spec.is_text:
        return spec.classes
    if spec.model in MODELS:
        return 0
    given = spec.args.get("tokens")
    if given is None:
        return adapters.tokens(net)
    try:
        count = int(str(given))
    except ValueError:
        count = 0
    if count < 1:
        raise LeakauditError(f"task: expected tokens to be the number of tokens, got {given!r:.40}")
    return count


def masked(net: nn.Module, spec: TaskSpec) -> bool:
    """Return whether a model draws random numbers in training, unless the spec denies it."""
    dropout = spec.args.get("dropout", "train")
    if dropout not in ("train", "eval"):
        raise LeakauditError(f"task: expected dropout=train or dropout=eval, got {dropout!r:.40}")
    if spec.model in MODELS or dropout == "eval":
        return False
    return adapters.is_random(net, example(net, spec))


def _calls(
    net: nn.Module, x: Tensor, spec: TaskSpec, kind: type[nn.Module]
) -> tuple[Tensor, dict[str, list[tuple[Tensor, Tensor]]]]:
    """Return the output of a model, and by name input and output of all calls of some layers."""
    layers = {m: name for name, m in net.named_modules() if type(m) is kind}
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers.values()}

    def look(layer: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        calls[layers[layer]].append((inputs[0].clone(), out.clone()))

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
    wanted: tuple[int, ...] = (len(x), outputs(spec))
    if spec.is_text:
        wanted = (len(x), *spec.shape, outputs(spec))
    if not isinstance(out, Tensor) or out.shape != wanted:
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise LeakauditError(
            f"model {spec.model!r}: expected outputs {wanted} for {len(x)} inputs "
            f"and loss {spec.loss}, got {got}"
        )
    return out, calls


def _registered(spec: TaskSpec, args: Mapping[str, Json]) -> nn.Module:
    """Build a registered model; its size is computed first, without allocating memory."""
    if spec.model not in MODELS:
        raise LeakauditError(
            f"unknown model {spec.model!r}{suggest(spec.model, MODELS)}; "
            "name your own model as package.module:factory, or as a torch.export program file.pt2"
        )
    model = configure(MODELS[spec.model], dict(args))
    if spec.is_text != (spec.model in READ_TOKENS):
        known = " or ".join(sorted(READ_TOKENS))
        raise LeakauditError(
            f"model {spec.model!r} does not fit loss {spec.loss!r}: loss 'next_token' needs a "
            f"model that reads tokens ({known}), and these need data of tokens (--data text)"
        )
    with torch.device("meta"):
        outline = model(spec.shape, outputs(spec))
    size = sum(p.numel() for p in outline.parameters())
    if size > LARGEST_MODEL:
        raise LeakauditError(
            f"model {spec.model} would have {size} parameters, but the limit is {LARGEST_MODEL}; "
            "use smaller layers"
        )
    values = _most_activations(outline, spec)
    if values > LARGEST_ACTIVATIONS:
        values = _activations(outline, spec)
    if values > LARGEST_ACTIVATIONS:
        raise LeakauditError(
            f"model {spec.model} would compute {values} activations from an input of shape "
            f"{tuple(spec.shape)}, but the limit is {LARGEST_ACTIVATIONS}; use smaller inputs"
        )
    return model(spec.shape, outputs(spec))


def _most_activations(outline: nn.Module, spec: TaskSpec) -> int:
    """Return a cheap upper bound of `_activations`.

    No layer of a registered model has more positions than its input has numbers. Every layer with
    parameters has as many channels as rows, and is followed by at most three without parameters.
    """
    channels = sum(len(p) for p in outline.parameters())
    return 4 * channels * math.prod(spec.shape)


def _activations(outline: nn.Module, spec: TaskSpec) -> int:
    """Count the outputs of all layers for one input, without computing or allocating them."""
    total = 0

    def add(_: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> None:
        nonlocal total
        total += out.numel()

    for layer in outline.modules():
        layer.register_forward_hook(add)
    dtype = torch.long if spec.is_text else torch.float32
    x = torch.empty(1, *spec.shape, dtype=dtype, device="meta")
    # What does not accept its inputs is rejected later, with the reason.
    with torch.no_grad(), suppress(Exception):
        outline.eval()(x)
    return total


def _program(spec: TaskSpec, args: Mapping[str, Json]) -> ExportedProgram:
    if args:
        raise LeakauditError(
            f"model {spec.model!r} is a program, which has no arguments, got {', '.join(args)}"
        )
    path = program_file(spec)
    wanted = spec.args.get("sha256")
    if wanted is not None and digest(path) != wanted:
        raise LeakauditError(
            f"model {spec.model!r}: the file {path} is not the one that was recorded "
            "(its sha256 differs); copy the recorded one beside the trace"
        )
    net = ExportedProgram(archive.read(path), path.name)
    size = sum(p.numel() for p in net.parameters())
    if size > LARGEST_MODEL:
        raise LeakauditError(f"model {spec.model!r} has {size} parameters, at most {LARGEST_MODEL}")
    _check_shape(spec, net)
    return net


def program_file(spec: TaskSpec) -> Path:
    """Return the file of an exported program: beside the file that names it, or here."""
    places = [Path(spec.beside) / spec.model, Path(spec.model)]
    for place in places:
        if place.is_file():
            return place
    raise LeakauditError(
        f"model {spec.model!r}: there is no such file in {spec.beside or 'this folder'}; "
        "copy the program there"
    )


def digest(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_shape(spec: TaskSpec, net: ExportedProgram) -> None:
    wanted = net.exported_graph.shape
    fits = len(wanted) == len(spec.shape)
    for side, given in zip(wanted, spec.shape, strict=False):
        fits = fits and side in (None, given)
    if not fits:
        sides = ", ".join("any" if side is None else str(side) for side in wanted)
        raise LeakauditError(
            f"model {spec.model!r} was exported for inputs of shape ({sides}), "
            f"got the shape {tuple(spec.shape)}"
        )


def _own(spec: TaskSpec, args: Mapping[str, Json], trusted: Trust) -> nn.Module:
    if trusted is not True and trusted != spec.model:
        raise LeakauditError(
            f"model {spec.model!r} is code outside leakaudit; to run it, "
            f"pass --trust-model {spec.model} (in Python trusted=True)"
        )
    with own_code.importable():
        factory = _imported(spec)
        try:
            net = adapters.built(factory, args, spec.shape, spec.classes, outputs(spec))
        except LeakauditError as error:
            raise LeakauditError(f"model {spec.model!r}: {error}") from None
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
    where, _, name = spec.model.partition(":")
    package = where.partition(".")[0]
    if package == "torchvision":
        _torchvision.torchvision()
    elif package == "transformers":
        # It imports torchvision if that is installed, and cannot do without if it is broken.
        with suppress(LeakauditError):
            _torchvision.torchvision()
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
    # The classes of transformers that choose a model by its configuration are not modules.
    chooses = package == "transformers" and hasattr(factory, "from_config")
    is_module = isinstance(factory, type) and issubclass(factory, nn.Module)
    if not (is_module or chooses or own_code.defined_in(factory, where)):
        raise LeakauditError(
            f"model {spec.model!r}: expected a subclass of torch.nn.Module, or a function that "
            f"{where} itself defines and that returns a module, got {factory!r:.60}"
        )
    return cast("Callable[..., object]", factory)
