"""Two-step differences of gradients as the PDMM thesis estimates them, without the relations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from leakaudit.core.adversary import View
from leakaudit.core.errors import LeakauditError, NotDetermined
from leakaudit.core.leak import GradientLeak
from leakaudit.protocols.dual_messages import DualMessages
from leakaudit.views.extraction.deduction import Deduction

# Yu 2023. The messages of the channel between i and j give the changes of both models (eq. 2.10,
# here for any theta):
#
#     2 rho theta B (w_i^{s+1} - w_i^s) = D_ij^{s+1} - (1 - theta) D_ij^s - theta D_ji^s.
#
# The models follow backwards from the last ones, which are taken as equal at all nodes, w*:
# w_i^t = w* - sum_{s >= t} (w_i^{s+1} - w_i^s). With d neighbours and g^t the gradient at w_i^t,
#
#     exact      g^t - g^{t+2} = rho d (w_i^t + w_i^{t+2}) - 2 rho sum_j w_j^{t+1}           (2.13)
#     gradient   g^t - g^{t+2} = (rho d - 1/alpha) (w_i^{t+2} - w_i^t) + w_i^{t+3} / alpha
#                                + (2 rho d - 1/alpha) w_i^{t+1} - 2 rho sum_j w_j^{t+2}     (4.3)
#     quadratic  g^t - g^{t+2} = mu (w_i^t - w_i^{t+2}) + (mu + rho d) w_i^{t+3}
#                                + (rho d - mu) w_i^{t+1} - 2 rho sum_j w_j^{t+2}           (4.22)
#
# for theta = 1. In the differences w* cancels; the models at which an attack recomputes gradients
# need it. The thesis uses the last model of a corrupt node. Errors are those of models that have
# not converged (early stopping), of an assumed update that is not the one used (several steps), and
# of rounding of messages (a quantizer); none of them is known to the adversary.

Update = Literal["auto", "exact", "gradient", "quadratic"]
Array = NDArray[np.float64]

AHEAD = {"exact": 2, "gradient": 3, "quadratic": 3}  # models after w^t that an equation uses
EQUATION = {"exact": "(2.13)", "gradient": "(4.3)", "quadratic": "(4.22)"}


def expect(assumed: str) -> Update:
    """Check the name of an assumed update."""
    for known in get_args(Update):
        if assumed == known:
            return known  # type: ignore[no-any-return]
    raise LeakauditError(f"estimator: expected one of {get_args(Update)}, got {assumed!r:.40}")


def leak(deduction: Deduction, node: int, rounds: int, assumed: Update = "auto") -> GradientLeak:
    """Return two-step differences of a node's gradients, as the thesis estimates them.

    Args:
        deduction: What the adversary observes of PDMM.
        assumed: The local update that the adversary assumes; "auto" for the protocol's, or an exact
            one if there are several steps, as in the thesis.

    Raises:
        LeakauditError: The protocol is another one.
        NotDetermined: Not all messages of the node are observed, or in too few rounds.
    """
    view = deduction.view
    if view.protocol != "pdmm":
        raise LeakauditError(f"two-step differences are those of pdmm, not of {view.protocol}")
    update = _update(view, assumed)
    messages = DualMessages(view)
    seen = messages.rounds
    rows = min(rounds, len(seen) - AHEAD[update])
    if rows < 1:
        raise NotDetermined(
            f"two-step differences need {AHEAD[update] + 1} observed rounds, got {len(seen)}"
        )
    if not messages.heard(node, seen):
        raise NotDetermined(
            "two-step differences need all messages of the node, in every observed round"
        )
    own, others = _backwards(messages, node, rows + AHEAD[update])
    value = _differences(view, update, own, others, view.graph.degree(node))
    last = None if deduction.scaled else _last_model(messages)
    at = torch.arange(rows + 2) + seen.start
    samples = int(view.number("samples")) if view.knows("samples") else None
    combination = torch.zeros(rows, rows + 2, dtype=torch.float64)
    combination[range(rows), range(rows)] = 1.0
    combination[range(rows), range(2, rows + 2)] = -1.0
    return GradientLeak(
        node=node,
        rounds=at + (update != "exact"),  # an inexact update uses the gradient at the model before
        combination=combination,
        value=torch.from_numpy(value),
        std=torch.full((rows,), _rounding(messages, node), dtype=torch.float64),
        columns=view.columns,
        theta=None if last is None else torch.from_numpy(own[: rows + 2] + last),
        batch=samples,
        records=samples,
        wire=torch.finfo(view.dtype).eps,
        adversary=str(view.adversary),
        formula=f"Yu 2023, eq. {EQUATION[update]}, with (2.10)",
        scope=deduction.rests_on,
        theta_rounds=at,
        estimate=(
            f"two-step differences by eq. {EQUATION[update]} of Yu 2023 take the models of all "
            f"nodes as equal in round {seen.stop - 1}; their error is not known"
        ),
    )


def _update(view: View, assumed: Update) -> str:
    if assumed != "auto":
        return assumed
    update = str(view.constant("update"))
    return "exact" if update == "gradient" and view.number("k_max") > 1 else update


def _backwards(messages: DualMessages, node: int, count: int) -> tuple[Array, Array]:
    """Return the first models less w*, (R, c): of a node, and summed over its neighbours."""
    view = messages.view
    near = view.graph.neighbours[node]
    width = view.columns[1] - view.columns[0]
    own = np.zeros((count, width))
    others = np.zeros((count, width))
    for other in near:
        for src, dst, kept, share in ((node, other, own, 1 / len(near)), (other, node, others, 1)):
            total = np.zeros(width)  # w^t - w* of the sender, from the last round backwards
            for place, step in _steps(messages, src, dst):
                total -= step
                if place < count:
                    kept[place] += share * total
    return own, others


def _steps(messages: DualMessages, src: int, dst: int) -> Iterator[tuple[int, Array]]:
    """Yield the changes of a sender's model after round `first + place`, the last one first."""
    view = messages.view
    theta = view.number("theta")
    scale = 2 * view.number("rho") * theta * (1 if src < dst else -1)
    rounds = messages.rounds
    later = messages.change(rounds.stop - 1, src, dst)
    for t in reversed(rounds[:-1]):
        now = messages.change(t, src, dst)
        back = messages.change(t, dst, src)
        yield t - rounds.start, (later - (1 - theta) * now - theta * back) / scale
        later = now


def _differences(view: View, update: str, own: Array, others: Array, degree: int) -> Array:
    """Return the right sides of the equations above, (rows, c)."""
    rows = len(own) - AHEAD[update]
    rho = view.number("rho")
    push = rho * degree
    w0, w1, w2 = (own[k : k + rows] for k in range(3))
    if update == "exact":
        return push * (w0 + w2) - 2 * rho * others[1 : 1 + rows]
    w3 = own[3 : 3 + rows]
    pull = 2 * rho * others[2 : 2 + rows]
    if update == "gradient":
        a = 1 / view.number("alpha")
        return (push - a) * (w2 - w0) + a * w3 + (2 * push - a) * w1 - pull
    mu = view.number("mu")
    return mu * (w0 - w2) + (mu + push) * w3 + (push - mu) * w1 - pull


def _last_model(messages: DualMessages) -> Array | None:
    """Return the last model (c,) of a node whose z is known, if possible the adversary's own.

    z is known from its start, or from the messages if these are z.
    """
    view = messages.view
    seen = messages.rounds
    for node in (*sorted(view.adversary.corrupt), *range(view.graph.nodes)):
        started = seen.start == 1 and messages.starts(node)
        if (started or messages.kind == "z") and messages.heard(node, seen):
            other = view.graph.neighbours[node][0]
            there, here = _duals(messages, node, other)
            moved = messages.change(seen.stop - 1, node, other) / view.number("theta")
            sign = 1 if node < other else -1
            model: Array = sign * (moved - here + there) / (2 * view.number("rho"))
            return model
    return None


def _duals(messages: DualMessages, node: int, other: int) -> tuple[Array, Array]:
    """Return z_{j|i} and z_{i|j} of a channel before the last round."""
    seen = messages.rounds
    channels = ((node, other), (other, node))
    if messages.kind == "z":
        there, here = (messages.whole(seen.stop - 2, a, b) for a, b in channels)
        return there, here
    there, here = (messages.start(a, b) for a, b in channels)
    for t in seen[:-1]:
        there = there + messages.change(t, *channels[0])
        here = here + messages.change(t, *channels[1])
    return there, here


def _rounding(messages: DualMessages, node: int) -> float:
    """Return roughly what the rounding of messages adds to a difference."""
    view = messages.view
    first = messages.change(messages.rounds.start, node, view.graph.neighbours[node][0])
    size = float(np.sqrt(np.square(first).mean()))
    steps = np.sqrt(len(messages.rounds))
    return float(torch.finfo(view.dtype).eps * max(size, 1e-30) * steps * 4)
