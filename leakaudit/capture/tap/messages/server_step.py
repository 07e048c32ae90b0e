"""The step of a server: its optimiser, or the mean of what clients sent."""

# The sketch of a vector is linear, and so are the steps of SGD with momentum and weight decay: the
# sketches of the models then follow the same steps, with the sketches of the gradients.

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from leakaudit.capture.fitting import stepping
from leakaudit.capture.fitting.sketch import ModelSketch
from leakaudit.capture.tap.messages.arranged import ArrangedLog, round_of
from leakaudit.capture.tap.messages.streams import LoggedMessage

EQUAL = 1e-3  # relative difference of a described constant from the one found: a choice
# The mean of float32 models misses by their rounding, about 1e-7 |w| / |move|; another strategy
# misses by a tenth and more. The threshold lies in between; its exact value is a choice.
MEAN = 1e-3
MOST_ROUNDS = 500  # rounds over which an optimiser is verified: a choice that bounds the memory
OTHERS = {  # whether the sketch of the parameters that were left out shows the same step -> remark
    True: ", of the recorded parameters and by their sketch of the others",
    False: " of the recorded parameters (the others follow another step, as their sketch shows)",
    None: " of the recorded parameters",
}
ROUNDINGS = 4  # of a sketch's sums, in units of the format; measured: 1 to 2


def with_server(plan: ArrangedLog) -> ArrangedLog:
    """Add what the messages show of a server's step, unless the description states it."""
    # If they show nothing, the plan marks the step as unknown, so that nothing is derived from it.
    known = {"fedsgd": _with_step, "fedavg": _with_mean}.get(plan.description.protocol)
    if known is None or "server" in plan.description.params:
        return plan
    return known(plan)


def _with_step(plan: ArrangedLog) -> ArrangedLog:
    models, gradients = _rounds(plan)
    if not gradients:
        return _unknown(plan)
    observed = _observed(plan, models, gradients)
    found = stepping.identify(observed)
    if found is None:
        why = _why_not(plan, observed, len(gradients))
        return _unknown(plan, f"the server's optimiser is not known: {why}")
    of_whom = ""
    if any(message.covers for message in models):
        if found.rate is None or found.scaled:
            # Gradients are clipped by their whole norm, which a part does not show.
            return _unknown(
                plan,
                "the server's optimiser is not known: with only some of the parameters, clipping "
                "and a changing step size look alike",
            )
        same = None if plan.description.scales else _follows(found, plan, models, gradients)
        of_whom = OTHERS[same]
    if found.rate is not None and len(gradients) == stepping.MOST:
        models, gradients = _rounds(plan, MOST_ROUNDS)
        wrong = found.first_miss_of(_observed(plan, models, gradients, MOST_ROUNDS))
        if wrong is not None:
            after = min(s.round for s in plan.sent if s.src == _hub(plan)) + wrong
            return _unknown(
                plan,
                f"the server's optimiser is not known: {found.text} explains the first rounds, but "
                f"not the step of round {after}: its constants change",
            )
    plan = _noted(
        plan,
        f"the server's optimiser{of_whom}: {found.text}; it predicts models that it was not "
        f"fitted to, with a relative miss of {found.miss:.0e}",
    )
    constants = _constants(found)
    params = plan.description.params
    if constants is None:
        return _unknown(plan)
    if _contradicts(params, constants):
        return _unknown(plan, "the description states another optimiser or lr")
    return _with_params(plan, {**constants, **params})


def _hub(plan: ArrangedLog) -> int:
    return plan.graph.nodes - 1


def _observed(
    plan: ArrangedLog,
    models: Sequence[LoggedMessage],
    gradients: Sequence[Sequence[LoggedMessage]],
    most: int = stepping.MOST,
) -> stepping.ModelMoves:
    values = [m.value for m in models]
    moves = [before.double() - after.double() for before, after in itertools.pairwise(values)]
    rounding = torch.finfo(values[0].dtype).eps
    ups = [s.message.dtype for s in plan.sent if s.src != _hub(plan) and s.message.kept]
    coarsest = max(torch.finfo(dtype).eps for dtype in set(ups))
    return stepping.observed(values[:-1], moves, _means(plan, gradients), rounding, coarsest, most)


def _why_not(plan: ArrangedLog, observed: stepping.ModelMoves, steps: int) -> str:
    few = stepping.untested(observed)
    if steps < stepping.LEAST:
        return few
    if not bool(observed.moves.any()):
        return "the models do not move"
    if observed.rounding > stepping.COARSE:
        return "the messages are rounded too coarsely"
    if observed.floor > stepping.COARSE:
        return "the models move too little for their number format"
    why = "none of those that leakaudit tests predicts the models"
    if few:
        why = f"{why}, but {few}"
    if min(s.round for s in plan.sent) > 1:
        return f"{why}; momentum that began before the first recorded round is not tested"
    return why


def _with_mean(plan: ArrangedLog) -> ArrangedLog:
    miss = _mean_miss(plan)
    if miss is None:
        why = "no round shows how the server combines models"
    elif miss < MEAN:
        return _with_params(plan, {**plan.description.params, "server": "mean"})
    else:
        why = (
            "the server's models are not the plain means of what all clients sent (another "
            "strategy, weights, or a part of the clients)"
        )
    return _unknown(plan, f"{why}, so nothing is derived from its step")


def _mean_miss(plan: ArrangedLog) -> float | None:
    hub = _hub(plan)
    models = {s.round for s in plan.sent if s.src == hub and s.message.kept}
    answers = Counter(s.round for s in plan.sent if s.src != hub)
    if any(count != hub and t + 1 in models for t, count in answers.items()):
        return 1.0  # the server asked a part of the clients
    sent, found = _rounds(plan)
    values = [m.value for m in sent]
    rounds = zip(itertools.pairwise(values), _means(plan, found), strict=True)
    return max((mean_miss(*models, mean) for models, mean in rounds), default=None)


def mean_miss(before: Tensor, after: Tensor, mean: Tensor) -> float:
    """Return how far a server's next model is from a mean, relative to the move to it."""
    moved = (after.double() - before.double()).norm().clamp_min(1e-300)
    return float((after.double() - mean).norm() / moved)


def _unknown(plan: ArrangedLog, note: str = "") -> ArrangedLog:
    """Return a plan from whose models nothing is derived about the server's step."""
    marked = _with_params(plan, {**plan.description.params, "server": "unknown"})
    return _noted(marked, note) if note else marked


def _noted(plan: ArrangedLog, note: str) -> ArrangedLog:
    return replace(plan, notes=(*plan.notes, note))


def _with_params(plan: ArrangedLog, params: Mapping[str, Any]) -> ArrangedLog:
    return replace(plan, description=replace(plan.description, params=params))


def _constants(found: stepping.Stepping) -> dict[str, Any] | None:
    if found.rate is None or found.scaled:
        return None
    constants: dict[str, Any] = {"lr": found.rate}
    optimiser = found.optimiser
    if not optimiser.is_linear:
        constants["server"] = optimiser.kind
    for name in ("momentum", "nesterov", "decay"):
        if getattr(optimiser, name):
            constants[name] = getattr(optimiser, name)
    return constants


def _contradicts(params: Mapping[str, Any], constants: Mapping[str, Any]) -> bool:
    for name in ("lr", "momentum", "nesterov", "decay"):
        found = constants.get(name, 0)
        described = params.get(name, found)
        if abs(described - found) > EQUAL * abs(found):
            return True
    return False


def _means(plan: ArrangedLog, rounds: Sequence[Sequence[LoggedMessage]]) -> list[Tensor]:
    """Return the means (d,) of what all nodes sent in some rounds."""
    means: list[Tensor] = []
    for of_round in rounds:
        held = [m.value.double() for m in of_round]
        scale = plan.description.scale_in(round_of(of_round[0], 1))
        means.append(torch.stack(held).mean(0) * scale)
    return means


def _rounds(
    plan: ArrangedLog, most: int = stepping.MOST
) -> tuple[list[LoggedMessage], list[list[LoggedMessage]]]:
    """Return the models of the first rounds, and what all nodes sent between them."""
    # The rounds follow each other without a gap, and all that was sent in them was kept.
    hub = _hub(plan)
    models: dict[int, LoggedMessage] = {}
    by_round: dict[int, dict[int, LoggedMessage]] = defaultdict(dict)
    for s in plan.sent:
        if s.message.kept and s.src == hub:
            models[s.round] = s.message
        elif s.message.kept:
            by_round[s.round][s.src] = s.message
    if not models:
        return [], []
    first = min(models)
    found = [models[first]]
    answers: list[list[LoggedMessage]] = []
    for t in range(first, first + most):
        if len(by_round[t]) < hub or t + 1 not in models:
            break
        answers.append(list(by_round[t].values()))
        found.append(models[t + 1])
    return found, answers


def _follows(
    found: stepping.Stepping,
    plan: ArrangedLog,
    models: Sequence[LoggedMessage],
    gradients: Sequence[Sequence[LoggedMessage]],
) -> bool | None:
    """Return whether the sketches of the other parameters show the step of the recorded ones.

    None if there are no sketches, or if the optimiser is not linear.
    """
    if not found.optimiser.is_linear:
        return None
    first = gradients[0][0].sketched()
    if first is None:
        return None
    _, seed, places = first
    sketch = ModelSketch([place.stop - place.start for place in plan.slices], seed)

    def sketched(message: LoggedMessage) -> Tensor | None:
        return _sketch(message, sketch, places)

    values = _known(map(sketched, models))
    means: list[Tensor] = []
    for of_round in gradients:
        held = _known(map(sketched, of_round))
        if values is None or held is None:
            return None
        means.append(torch.stack(held).mean(0) * plan.description.scale)
    if values is None:
        return None
    moves = [before - after for before, after in itertools.pairwise(values)]
    rounding = ROUNDINGS * torch.finfo(models[0].dtype).eps
    return found.predicts(stepping.observed(values[:-1], moves, means, rounding))


def _known(values: Iterable[Tensor | None]) -> list[Tensor] | None:
    held = list(values)
    known = [value for value in held if value is not None]
    return known if len(known) == len(held) else None


def _sketch(message: LoggedMessage, sketch: ModelSketch, places: Sequence[int]) -> Tensor | None:
    """Return the sketch of some parameters, recorded or computed; None if it is not known."""
    recorded = message.sketched()
    if recorded is not None:
        total, seed, others = recorded
        return total.reshape(-1) if (seed, set(others)) == (sketch.seed, set(places)) else None
    whole = message.whole
    if whole is None or any(place.axes for place in message.slices):
        return None
    computed: Tensor | None = None
    for place in places:
        columns = message.slices[place]
        values = whole[columns.start : columns.stop]
        computed = sketch.added(computed, place, values)
    return None if computed is None else computed.double().reshape(-1)
