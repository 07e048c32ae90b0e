"""Models of other libraries as modules that map one batch of inputs to logits.

Hugging Face models are built from a configuration, never from downloaded weights, and return
several tensors, of which the logits are used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Json
from leakaudit.tasks.exported.program import ExportedProgram

TOKENS = "input_ids"  # name of the input of a Hugging Face model whose inputs are tokens
LOGITS = "logits"


def built(
    factory: Callable[..., Any],
    args: Mapping[str, Json],
    shape: tuple[int, ...],
    classes: int,
    outputs: int,
) -> object:
    """Call a factory with its arguments, and with those of the task that it asks for.

    A factory may ask for ``shape``, ``classes`` and ``outputs``; torchvision's models ask for
    ``num_classes``. A class of transformers is built from its configuration.
    """
    if str(getattr(factory, "__module__", "")).partition(".")[0] == "transformers":
        return _from_config(factory, args, outputs)
    offered = {"shape": shape, "classes": classes, "outputs": outputs}
    if str(getattr(factory, "__module__", "")).partition(".")[0] == "torchvision":
        return factory(**{"num_classes": outputs, **args})
    wanted = inspect.signature(factory).parameters
    given = {k: v for k, v in offered.items() if k in wanted}
    return factory(**given, **args)


def _from_config(factory: Any, args: Mapping[str, Json], outputs: int) -> object:
    values = {"num_labels": outputs, **args}
    own = getattr(factory, "config_class", None)
    if own is not None:
        return factory(own(**values))
    kind = values.pop("model_type", None)
    if not hasattr(factory, "from_config") or kind is None:
        raise LeakauditError(
            "expected a model class of transformers, or an Auto class and its argument model_type"
        )
    from transformers import AutoConfig

    return factory.from_config(AutoConfig.for_model(kind, **values))


def with_logits(net: nn.Module) -> nn.Module:
    """Make a model return its logits if it returns them beside other values."""

    def logits(_: nn.Module, __: tuple[Any, ...], out: Any) -> Any:
        return chosen(out)

    net.register_forward_hook(logits)
    return net


def chosen(out: Any) -> Any:
    """Return the logits among the outputs of a model: a tensor, or what transformers returns."""
    if isinstance(out, Tensor):
        return out
    if isinstance(out, Mapping) and LOGITS in out:
        return out[LOGITS]
    return getattr(out, LOGITS, out)


def tokens(net: nn.Module) -> int:
    """Return the number of different tokens that a model reads, 0 if its inputs are numbers."""
    if isinstance(net, ExportedProgram):
        return net.exported_graph.tokens()
    if getattr(net, "main_input_name", "") != TOKENS:
        return 0
    return int(getattr(getattr(net, "config", None), "vocab_size", 0))


def is_random(net: nn.Module, x: Tensor) -> bool:
    """Return whether a model in train mode draws random numbers, such as the masks of dropout.

    Two runs on the same inputs are compared. The model and the state of torch's generators are left
    as they were.
    """
    if isinstance(net, ExportedProgram):
        return net.exported_graph.dropout > 0
    modes = {module: module.training for module in net.modules()}
    state = {name: value.clone() for name, value in net.state_dict().items()}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        net.train()
        try:
            first, second = net(x), net(x)
        except Exception:  # a user's forward may raise anything in train mode
            return True
        finally:
            for module, mode in modes.items():
                module.training = mode
            net.load_state_dict(state)
    return not (isinstance(first, Tensor) and torch.equal(first, second))
