"""What the program states about its training, compared with the messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from leakaudit.capture.fitting import stepping
from leakaudit.capture.fitting.replay import (
    Constant,
    OptimiserStep,
    Replay,
    StatedMove,
    replay,
)
from leakaudit.capture.tap.guessing.observed import ChannelVectors
from leakaudit.capture.tap.hooks.training import START
from leakaudit.capture.tap.messages.arranged import round_of
from leakaudit.capture.tap.messages.server_step import MEAN, MOST_ROUNDS, mean_miss
from leakaudit.capture.tap.messages.stated import Interval, intervals
from leakaudit.capture.tap.messages.streams import MODELS, LoggedMessage
from leakaudit.protocols.optimiser import BETAS, EPS, SMOOTHING

STATED = "stated by the program"
OFF = (False, None)
# The constants with which an optimiser of torch is one of `protocols.optimiser`, by its class.
# Others, such as a step size, may have any value.
USUAL: Mapping[str, Mapping[str, Constant]] = {
    "SGD": {"dampening": 0, "maximize": False},
    "Adam": {
        "betas0": BETAS[0],
        "betas1": BETAS[1],
        "eps": EPS["adam"],
        "amsgrad": False,
        "maximize": False,
    },
    "Adagrad": {
        "lr_decay": 0,
        "eps": EPS["adagrad"],
        "initial_accumulator_value": 0,
        "maximize": False,
    },
    "RMSprop": {
        "alpha": SMOOTHING,
        "eps": EPS["rmsprop"],
        "momentum": 0,
        "centered": False,
        "maximize": False,
    },
}
SOME = 6  # rounds in which an average is examined: a choice that bounds the time
NO_INTERVAL = Interval()
SHOWN = 4  # step sizes in one line: a choice


@dataclass(frozen=True)
class StatedRecords:
    """How many records are behind one message of a rank."""

    batch: int = 0  # 0 if the program does not state one number for all messages
    reused: bool = False  # whether all messages are about the same records
    text: str = ""  # what is stated, in words; empty if nothing is


@dataclass(frozen=True)
class ProgramStatement:
    """What the processes of a program state."""

    optimiser: str = ""  # the optimiser that moves the models, in words; empty if none is stated
    # as constants of the protocol; empty if it has none for them
    constants: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""  # why no protocol has such constants; empty if one has
    replayed: Replay | None = None  # its comparison with the models; None if there is none
    # round -> factor of what is sent from it on, because a loss is scaled; empty if it is not
    scales: Mapping[int, float] = field(default_factory=dict)
    records: StatedRecords = StatedRecords()
    loss: str = ""  # function of torch.nn.functional; empty if none or several were called
    averages: bool = False  # whether ranks continue from the mean of their models
    plain: bool = True  # whether the loss has the usual arguments
    shape: tuple[int, ...] = ()  # of one input; empty if it changes
    outputs: int = 0  # of the model for one input; 0 if they are no vector

    @property
    def contradicted(self) -> bool:
        """Whether the models do not move as stated."""
        return self.replayed is not None and self.replayed.agrees is False

    @property
    def comment(self) -> str:
        """What supports the optimiser, in words."""
        if self.replayed is None:
            return f"{STATED}; the messages do not show it"
        miss = f"{self.replayed.miss:.0e}"
        if self.replayed.agrees:
            return f"{STATED}, agrees with the messages to {miss}"
        if self.replayed.agrees is False:
            return f"{STATED}, but the messages contradict it: a step misses by {miss}"
        return f"{STATED}; the messages do not decide it (a step misses by {miss})"

    @property
    def params(self) -> dict[str, Any]:
        """The constants of the protocol, unless the messages contradict them."""
        if self.contradicted:
            return {}
        return dict(self.constants)

    @property
    def evidence(self) -> Iterator[str]:
        """What is stated, one line each."""
        if self.optimiser:
            yield f"optimiser {self.optimiser}: {self.comment}"
        if self.records.text:
            yield f"records: {self.records.text} ({STATED})"
        if self.averages:
            yield (
                "rank 0 continues from the mean of what all ranks send, as the messages show; "
                "whether the others do is not recorded"
            )
        elif self.scales:
            factors = dict.fromkeys(f"{1 / one:g}" for one in self.scales.values())
            yield f"what is sent is the gradient times {', '.join(factors)}"
        if self.loss:
            others = "" if self.plain else ", with other arguments than the usual ones"
            yield f"loss: {self.loss}{others} ({STATED})"


def of_gradients(seen: ChannelVectors) -> ProgramStatement | None:
    """Return what is stated about gradients that hooks recorded; None if nothing is."""
    streams = seen.own
    held = {rank: intervals(stream) for rank, stream in streams.items()}
    if not any(one.seen for found in held.values() for one in found):
        return None
    size = seen.sizes[-1]
    before = [one for found in held.values() for one in found[:-1]]
    if any(one.last.why for one in before):
        return None
    found = replace(_about_model(before), records=_records(held, size))
    return _with_optimiser(found, seen, streams, held)


def _about_model(before: Sequence[Interval]) -> ProgramStatement:
    losses = {name for one in before for part in one.seen for name in part.losses}
    plain = all(part.usual for one in before for part in one.seen)
    shapes = {tuple(part.record) for one in before for part in one.seen if part.batches}
    outputs = {part.outputs for one in before for part in one.seen if part.batches}
    return ProgramStatement(
        loss=losses.pop() if len(losses) == 1 else "",
        plain=plain,
        shape=shapes.pop() if len(shapes) == 1 and (-1,) not in shapes else (),
        outputs=outputs.pop() if len(outputs) == 1 else 0,
    )


def _records(held: Mapping[int, Sequence[Interval]], size: int) -> StatedRecords:
    """Return the number of records behind the gradients of all ranks."""
    counts: set[int] = set()
    passes: set[int] = set()
    kinds: set[tuple[int, int]] = set()  # gradients and different batches of a rank
    for found in held.values():
        for one in found[:-1]:
            if not one.batches or size not in one.last.root_sizes:
                return StatedRecords()
            if len({root for part in one.seen for root in part.roots}) > 1:
                return StatedRecords(text="a gradient goes through several modules")
            if len(one.batches) != one.backwards:
                return StatedRecords(
                    text=f"the model is called {len(one.batches)} times for {one.backwards} "
                    "backward passes"
                )
            if not _fit_loss(one):
                return StatedRecords(
                    text="the first dimension of the model's input is not that of the loss"
                )
            counts.add(sum(one.batches))
            passes.add(one.backwards)
        kinds.add((sum(one.backwards for one in found[:-1]), found[-2].last.distinct))
    if len(counts) != 1:
        return StatedRecords(text=f"{min(counts)} to {max(counts)} records per gradient")
    batch = counts.pop()
    reused = all(steps > 1 and distinct == 1 for steps, distinct in kinds)
    text = f"{batch} per gradient, by the first dimension of the model's input"
    if max(passes) > 1:
        text = f"{text}, in {max(passes)} backward passes"
    if reused:
        text = f"{text}; the same ones in every step"
    elif all(1 < steps == distinct for steps, distinct in kinds):
        text = f"{text}; a new batch in every step"
    return StatedRecords(batch, reused and max(passes) == 1, text)


def _fit_loss(one: Interval) -> bool:
    """Return whether what losses received has the records of the inputs, or tokens of them."""
    counts = [count for part in one.seen for count in part.counts]
    if len(counts) != len(one.batches):
        return True  # other losses, or several of one batch
    return all(count % batch == 0 for count, batch in zip(counts, one.batches, strict=True))


def _with_optimiser(
    found: ProgramStatement,
    seen: ChannelVectors,
    streams: Mapping[int, Sequence[LoggedMessage]],
    held: Mapping[int, Sequence[Interval]],
) -> ProgramStatement:
    models = next((stream for wire, stream in seen.streams.items() if wire.op in MODELS), [])
    rank = models[0].src if models else min(streams)
    of_rank = held.get(rank)
    if not of_rank:
        return found
    size = _stepped(of_rank, seen.sizes[-1])
    # Gradients of a scaled loss travel before they are clipped.
    moves = [_move(one, size, before) for before, one in pairwise([NO_INTERVAL, *of_rank])]
    every = [step for move in moves for step in move.steps]
    if not every:
        return found
    constants, why = described(every, moves[1:])
    if constants:
        constants["server"] = constants.pop("optimiser")
    named = replace(found, optimiser=_words(every, moves[1:]), constants=constants, why=why)
    if seen.missing and any(move.clip_norm for move in moves):
        return named
    indices = [message.index for message in streams[rank]]
    factors = [one.last.loss_scale for one in of_rank]
    after: dict[int, StatedMove] = {}
    for index, move, factor in zip(indices, moves[1:], factors, strict=False):
        after[index] = replace(move, factor=factor)
    named = replace(named, scales=_scales(streams[rank], factors))
    whole = _replayed(seen, models, streams, after)
    if whole is not None and whole.agrees is False and not seen.hooked:
        # Ranks may divide before they add up.
        count = len(streams)
        divided = {t: replace(move, factor=move.factor / count) for t, move in after.items()}
        again = _replayed(seen, models, streams, divided)
        if again is not None and again.agrees:
            first = min(round_of(message, 1) for message in streams[rank])
            return replace(named, replayed=again, scales={first: float(count)})
    return replace(named, replayed=whole)


def of_averages(seen: ChannelVectors) -> ProgramStatement | None:
    """Return what is stated about parameters that all ranks add up; None if it is no FedAvg."""
    streams = seen.own
    if seen.graph.edges or any(stream[0].op != "allreduce" for stream in streams.values()):
        return None
    held = {rank: intervals(stream)[:-1] for rank, stream in streams.items()}
    before = [one for found in held.values() for one in found]
    models = next((stream for wire, stream in seen.streams.items() if wire.op == START), [])
    factor = _average(models, streams)
    if not factor or any(one.last.why for one in before):
        return None
    size = seen.sizes[-1]
    every = [step for one in before for step in one.steps if step.size == size]
    counts = {sum(step.size == size for step in one.steps) for one in before}
    found = replace(_about_model(before), records=_step_records(before, size), averages=True)
    if not every or 0 in counts:
        return None
    moves = [_move(one, size) for one in before]
    constants, why = described(every, moves)
    if len(counts) == 1:
        constants["steps"] = counts.pop()
    else:
        why = f"ranks take {min(counts)} to {max(counts)} steps before an average"
    if any(_keeps(of_rank, size) for of_rank in held.values()):
        constants["keep"] = True
    scales = {1: factor} if factor != 1 else {}
    words = _words(every, moves)
    return replace(found, optimiser=words, constants=constants, why=why, scales=scales)


def _average(
    models: Sequence[LoggedMessage], streams: Mapping[int, Sequence[LoggedMessage]]
) -> float:
    """Return the factor of which ranks continue from the mean of what they add up; 0 if of none."""
    model = {message.index: message for message in models}
    sent = [{message.index: message for message in stream} for stream in streams.values()]
    rounds = [t for t in model if t + 1 in model and all(t in of_rank for of_rank in sent)]
    for factor in (1.0, float(len(sent))):
        misses: list[float] = []
        for t in rounds[:SOME]:
            held = [of_rank[t].value.double() for of_rank in sent]
            mean = torch.stack(held).mean(0) * factor
            misses.append(mean_miss(model[t].value, model[t + 1].value, mean))
        if misses and max(misses) < MEAN:
            return factor
    return 0.0


def _keeps(found: Sequence[Interval], size: int) -> bool:
    """Return whether an optimiser steps in several rounds, so that it keeps its averages."""
    rounds = [{step.number for step in one.steps if step.size == size} for one in found]
    return any(before & later for before, later in pairwise(rounds))


def _step_records(before: Sequence[Interval], size: int) -> StatedRecords:
    """Return the number of records of the local steps between averages."""
    for one in before:
        steps = sum(step.size == size for step in one.steps)
        if size not in one.last.root_sizes or not len(one.batches) == one.backwards == steps:
            return StatedRecords(text="a step uses several calls of the model")
        if not _fit_loss(one):
            return StatedRecords(
                text="the first dimension of the model's input is not that of the loss"
            )
    counts = {batch for one in before for batch in one.batches}
    if len(counts) != 1:
        return StatedRecords(text=f"{min(counts)} to {max(counts)} records per step")
    batch = counts.pop()
    return StatedRecords(batch, text=f"{batch} per step, by the first dimension of its input")


def _stepped(found: Sequence[Interval], size: int) -> int:
    """Return how many numbers of a model steps may move: those of its trained parameters."""
    for one in found:
        if one.last.root_sizes[1:] == [size]:
            return one.last.root_sizes[0]
    return size


def _move(one: Interval, size: int, before: Interval = NO_INTERVAL) -> StatedMove:
    """Return the steps of an interval that move the model whose gradients travel."""
    steps = tuple(step for step in one.steps if step.size == size)
    last = one.last
    whole = last.clipped == size
    scale = before.last.loss_scale if last.clip_scaled else 1.0
    return StatedMove(
        steps,
        clip_norm=last.clip_norm / scale if whole and last.norm_type == 2 else 0.0,
        clip_value=last.clip_value / scale if whole else 0.0,
    )


def _scales(stream: Sequence[LoggedMessage], factors: Sequence[float]) -> dict[int, float]:
    """Return round -> what makes a message the gradient, from it on; empty if nothing is needed."""
    found: dict[int, float] = {}
    if all(factor == 1 for factor in factors[: len(stream)]):
        return found
    before = 0.0
    for message, factor in zip(stream, factors, strict=False):
        if factor != before:
            found[round_of(message, 1)] = 1 / factor
        before = factor
    return found


def _replayed(
    seen: ChannelVectors,
    models: Sequence[LoggedMessage],
    streams: Mapping[int, Sequence[LoggedMessage]],
    after: Mapping[int, StatedMove],
) -> Replay | None:
    """Predict the models of the longest run of rounds of which everything is in the log."""
    model = {message.index: message for message in models}
    sent = [{message.index: message for message in stream} for stream in streams.values()]
    first = min(model, default=0)
    rounds: list[int] = []
    for t in range(first, first + MOST_ROUNDS):
        if t not in model or t + 1 not in model or t not in after:
            break
        if not all(t in of_rank for of_rank in sent):
            break
        rounds.append(t)
    if not rounds:
        return None
    values = [model[t].value.double() for t in (*rounds, rounds[-1] + 1)]
    means: list[Tensor] = []
    for t in rounds:
        of_round = torch.stack([of_rank[t].value.double() for of_rank in sent])
        means.append(of_round.mean(0))
    steps = [before - later for before, later in pairwise(values)]
    formats = {message.dtype for message in models}
    coarsest = {of_rank[rounds[0]].dtype for of_rank in sent}
    moves = stepping.observed(
        values[:-1],
        steps,
        means,
        max(torch.finfo(dtype).eps for dtype in formats),
        max(torch.finfo(dtype).eps for dtype in coarsest),
        most=MOST_ROUNDS,
    )
    starts = list(accumulate(seen.sizes[:-1], initial=0))[:-1]
    return replay(moves, [after[t] for t in rounds], starts)


def described(
    steps: Sequence[OptimiserStep], moves: Sequence[StatedMove]
) -> tuple[dict[str, Any], str]:
    """Return steps as constants of a protocol, and why it has none; one of them is empty."""
    first = steps[0]
    common = first.common
    if common is None:
        return {}, "groups of parameters have different constants"
    if any(step.kind != first.kind or step.common is None for step in steps):
        return {}, "several optimisers step"
    lrs = {step.common["lr"] for step in steps if step.common and "lr" in step.common}
    if len(lrs) != 1:
        return {}, "the step size changes"
    if any(step.common != common for step in steps):
        return {}, "the constants of the optimiser change"
    if any(move.clip_norm or move.clip_value for move in moves):
        return {}, "the mean gradient is clipped"
    kind = first.kind
    if kind == "Adam" and common.get("decoupled_weight_decay"):
        kind = "AdamW"
    usual = USUAL.get("Adam" if kind == "AdamW" else kind)
    if usual is None:
        return {}, f"no protocol has {kind}"
    unusual = [name for name, value in usual.items() if not _equal(common.get(name), value)]
    if unusual:
        return {}, f"no protocol has {kind} with {_listed(common, unusual)}"
    found = {"lr": lrs.pop(), "optimiser": kind.lower()}
    if kind == "SGD" and common.get("momentum"):
        found["momentum"] = common["momentum"]
        if common.get("nesterov"):
            found["nesterov"] = True
    if common.get("weight_decay"):
        found["decay"] = common["weight_decay"]
    return found, ""


def _equal(given: Constant, value: Constant) -> bool:
    return (given in OFF and value in OFF) or given == value


def _words(steps: Sequence[OptimiserStep], moves: Sequence[StatedMove]) -> str:
    """Return the optimiser in words: the constants that are not usual, and clipping."""
    first = steps[0]
    groups: list[str] = []
    for group in first.groups:
        usual = USUAL.get(first.kind, USUAL["Adam"] if first.kind == "AdamW" else {})
        names = ["lr", *(n for n, v in group.constants.items() if n != "lr" and v)]
        shown = [n for n in names if n not in usual or not _equal(group.constants.get(n), usual[n])]
        shown = [n for n in shown if n != "decoupled_weight_decay"]
        said = _listed(group.constants, shown)
        if said not in groups:
            groups.append(said)
    said = f"{first.kind}, {' and '.join(groups)}"
    rates = [step.groups[0].constants.get("lr") for step in steps]
    if len(set(rates)) > 1:
        said += f" (step sizes {', '.join(map(_short, rates[:SHOWN]))}, …)"
    for word, values in (
        ("norm", {move.clip_norm for move in moves} - {0.0}),
        ("value", {move.clip_value for move in moves} - {0.0}),
    ):
        if values:
            said += f", clipped to {word} {', '.join(map(_short, sorted(values)))}"
    return said


def _listed(constants: Mapping[str, Constant], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {_short(constants.get(name))}" for name in names)


def _short(value: Constant) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
