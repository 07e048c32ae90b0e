"""Tap Opacus: the clipped gradients that each rank sends, and the noise that is in them."""

# The distributed optimisers of Opacus clip the gradient of every record, add the clipped gradients
# of a rank, add noise on the first rank only, and let all ranks add up the results, parameter by
# parameter. The tap logs the vector of a rank before that, together with what the optimiser states
# about it and the size of the noise that is in it.
#
# Other optimisers of Opacus send nothing. If ranks train with them and send their models, the log
# states that there is noise in these.

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import ModuleType
from typing import TYPE_CHECKING, Any

from leakaudit.capture.tap.exchanges import wrap
from leakaudit.capture.tap.hooks.model import HookedModel
from leakaudit.capture.tap.log.capture import SPENT, Capture, Notes
from leakaudit.capture.tap.log.layers import ALL, flat

if TYPE_CHECKING:
    from torch import Tensor

OPERATION = "opacus"  # the word for a rank's clipped gradient in a log
OWNER = "_leakaudit_tapped"  # attribute of an optimiser that was seen: its `_Sums`, or True
SUMS = "_leakaudit_sums"  # attribute of an optimiser: the sums to which it added noise last
# Dividing a sum and multiplying it again rounds twice; the rest is a choice.
ROUNDINGS = 8
_numbers = count()


def listen(module: ModuleType, capture: Capture) -> None:
    """Wrap the optimisers that a module of Opacus defines."""

    def adding(add_noise: Callable[..., Any], optimiser: Any) -> Any:
        optimiser.__dict__[SUMS] = capture.safely(_sums, optimiser)
        return add_noise(optimiser)

    def reducing(reduce_gradients: Callable[..., Any], optimiser: Any) -> Any:
        capture.safely(_log, optimiser, capture)
        return capture.unlogged(reduce_gradients, optimiser)

    def preparing(pre_step: Callable[..., Any], optimiser: Any, *args: Any, **named: Any) -> Any:
        capture.safely(_state, optimiser, capture)
        return pre_step(optimiser, *args, **named)

    def spending(get_epsilon: Callable[..., float], engine: Any, delta: float) -> float:
        epsilon = get_epsilon(engine, delta)
        capture.safely(_note_epsilon, engine, epsilon, delta, capture)
        return epsilon

    if hasattr(module, "PrivacyEngine"):
        wrap(module.PrivacyEngine, "get_epsilon", spending)
        return
    for kind in list(vars(module).values()):
        if not isinstance(kind, type) or kind.__module__ != module.__name__:
            continue
        if "reduce_gradients" in kind.__dict__:
            wrap(kind, "add_noise", adding)
            wrap(kind, "reduce_gradients", reducing)
        elif "pre_step" in kind.__dict__:
            wrap(kind, "pre_step", preparing)


def _sums(optimiser: Any) -> Tensor | None:
    """Return the sums of clipped gradients as one vector; None if the optimiser has none."""
    sums = [getattr(p, "summed_grad", None) for p in _trained(optimiser)]
    if any(one is None for one in sums):
        return None
    return flat([one for one in sums if one is not None])


def _trained(optimiser: Any) -> list[Any]:
    return [p for p in optimiser.params if p.requires_grad]


def _log(optimiser: Any, capture: Capture) -> None:
    sums = optimiser.__dict__.get(OWNER)
    if sums is None:
        sums = _Sums(optimiser, next(_numbers), capture)
        optimiser.__dict__[OWNER] = sums
    sums.log_step()


def _state(optimiser: Any, capture: Capture) -> None:
    if hasattr(optimiser, "reduce_gradients") or OWNER in optimiser.__dict__:
        return
    if _sends():
        optimiser.__dict__[OWNER] = True
        name = "Opacus" if optimiser.noise_multiplier else "Opacus without noise"
        capture.event("mod", None, mod=name, **_stated(optimiser))


def _sends() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _note_epsilon(engine: Any, epsilon: float, delta: float, capture: Capture) -> None:
    """Log what the accountant states, with the steps that it has counted."""
    if not _sends():
        return
    method = str(engine.accountant.mechanism())
    history = engine.accountant.history
    capture.event(
        SPENT,
        None,
        by="Opacus",
        epsilon=float(epsilon),
        delta=float(delta),
        method=method if method in ("rdp", "prv", "gdp") else "",
        steps=sum(int(count) for *_, count in history),
        rate=max((float(rate) for _, rate, _ in history), default=1.0),
    )


def _stated(optimiser: Any) -> Notes:
    return {
        "noise_multiplier": float(optimiser.noise_multiplier),
        "max_grad_norm": float(optimiser.max_grad_norm),
    }


class _Sums(HookedModel):
    """The vectors of one rank that an optimiser adds to those of other ranks."""

    def __init__(self, optimiser: Any, number: int, capture: Capture) -> None:
        named = ((str(k), p) for k, p in enumerate(_trained(optimiser)))
        lane = f"{OPERATION} {number}"
        super().__init__(capture, named, [0], OPERATION, [ALL], {"lane": lane})
        self.optimiser = optimiser

    def log_step(self) -> None:
        """Log the vector of this step, and on the first rank the model before the step."""
        parameters = dict(enumerate(_trained(self.optimiser)))
        if self.is_first:
            self.log("model", parameters, last=True, sizes=self.sizes)
        gradients = {k: p.grad for k, p in parameters.items()}
        facts = self._facts(parameters[0], flat(gradients.values()))
        self.log(OPERATION, gradients, last=True, **facts)
        self.step += 1

    def _facts(self, parameter: Any, gradient: Tensor) -> Notes:
        optimiser = self.optimiser
        divisor = 1.0
        if optimiser.loss_reduction == "mean":
            divisor = float(optimiser.expected_batch_size * optimiser.accumulated_iterations)
        facts: Notes = {
            **_stated(optimiser),
            "divisor": divisor,
            "by_layer": hasattr(optimiser, "max_grad_norms"),
        }
        records = _records(parameter)
        if records is not None:
            facts["records"] = records
        sums = optimiser.__dict__.pop(SUMS, None)
        if sums is not None:
            facts["noise"] = _noise(gradient, sums, divisor)
        return facts


def _records(parameter: Any) -> int | None:
    """Return the number of records whose gradients were added; None if they were not kept."""
    held = getattr(parameter, "grad_sample", None)
    if held is None:
        return None
    several = held if isinstance(held, list) else [held]
    return sum(len(one) for one in several)


def _noise(gradient: Tensor, sums: Tensor, divisor: float) -> float:
    """Return the root mean square of the noise in a vector (d,); 0 if it is rounding."""
    import torch

    left = gradient.double() * divisor - sums.double()
    size = float(left.square().mean().sqrt())
    rounding = ROUNDINGS * torch.finfo(gradient.dtype).eps
    if size <= rounding * float(sums.double().square().mean().sqrt()):
        return 0.0
    return size
