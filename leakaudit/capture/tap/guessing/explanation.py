"""What explains the messages of a log: what is sent, and the model and training behind it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from leakaudit.capture.fitting import fit, local, local_optimiser, records, stepping
from leakaudit.capture.fitting.factors import Factors, compare
from leakaudit.capture.fitting.records import RecordCounts
from leakaudit.capture.tap.guessing import duals, gradients, hub, payloads, program
from leakaudit.capture.tap.guessing.observed import ChannelVectors
from leakaudit.capture.tap.guessing.payloads import PayloadGuess
from leakaudit.capture.tap.guessing.program import ProgramStatement
from leakaudit.capture.tap.messages.description import Payload
from leakaudit.capture.tap.messages.private import PrivateGradients, private
from leakaudit.capture.tap.messages.streams import LogChannel, LoggedMessage
from leakaudit.tasks.models import ACTIVATIONS
from leakaudit.tasks.task import Task

# Measured on examples/tap (float32 messages): the correct model misses by 6e-7 to 5e-6, a wrong
# activation or point by .5 or more.
PROVED = 0.01  # miss of a recomputed gradient


@dataclass(frozen=True)
class GuessedModel:
    """The model behind the messages."""

    task: Task | None  # the best of the models that were tried; None if there was none to try
    levels: int = 0  # 255 if the inputs are proved to be k/255, else 0
    found: fit.ModelFit | None = None  # the fit of recomputed gradients, if it proves the model
    solved: duals.DualSolution | None = None  # the constants behind duals, if they are proved
    # whether gradients could be recomputed, but none equals the messages
    contradicted: bool = False
    stepping: stepping.Stepping | None = None  # the optimiser of the local steps, if it is proved
    moved: float = 0.0  # distance by which every coordinate moves, if all move equally; else 0
    # how many records the gradients show at least; None if they do not show it
    records: RecordCounts | None = None
    # whether gradients at the models would show that several records are several
    apart: bool = False
    # what the gradients of the whole run show of model, loss and factor; None if they were not
    # compared
    factors: Factors | None = None
    changed: str = ""  # why an optimiser that explains the first steps is not named; empty if it is

    @property
    def doubt(self) -> str:
        """Why recomputed gradients prove nothing, in words; empty if they do, or do not show it."""
        if self.found is not None or self.factors is None:
            return self.changed
        return self.factors.why

    @property
    def reused(self) -> str:
        """Why each rank is known to use one record in all steps that were compared, or empty."""
        if self.found is None or not self.apart:
            return ""
        if self.records is not None and self.records.repeats:
            return self.records.text
        if self.stepping is not None and self.stepping.optimiser.momentum:
            return "steps with momentum follow from the one record that the first step shows"
        return ""


@dataclass(frozen=True)
class MessageExplanation:
    """What is sent, for one order of the parameters in a message."""

    seen: ChannelVectors  # the messages, read in this order
    sent: PayloadGuess
    model: GuessedModel  # the model behind the messages
    server: int | None  # rank of the server; None if there is none
    # what Opacus states about the messages; None if it did not send them
    stated: PrivateGradients | None = None
    program: ProgramStatement | None = None  # what the program states about its training


def explain(
    seen: ChannelVectors, task: Task | None, payload: Payload | None = None
) -> MessageExplanation:
    """Explain messages, with the user's model and payload or with those inferred from them."""
    found = _explained(seen, task, payload)
    return found if task is not None else replace(found, model=_shaped(found.model))


def _explained(
    seen: ChannelVectors, task: Task | None, payload: Payload | None
) -> MessageExplanation:
    stated = private(chain.from_iterable(seen.streams.values()))
    if stated is not None:
        return _clipped(seen, stated, task)
    server = hub.server(seen)
    if server is None:
        sent, model = _between_ranks(seen, task, payload)
        if sent.sure != "unknown":
            model = counted(model, gradients.spread(seen, sent.payload))
        return MessageExplanation(seen, sent, model, None, program=_states(seen))
    sent = _stated(hub.payload(seen, server), payload)
    samples = list(hub.samples(seen, server, sent.payload))
    whole = hub.whole(seen, server, sent.payload)
    model = _model_behind(seen, sent, samples, task, whole)
    model = _of_clients(model, sent, samples, whole, hub.examples(seen))
    if sent.payload == "weights" or model.found is not None:
        model = counted(model, samples)
    return MessageExplanation(seen, sent, model, server)


def _states(seen: ChannelVectors) -> ProgramStatement | None:
    if seen.hooked or seen.sends == "gradients":
        return program.of_gradients(seen)
    if seen.sends == "parameters":
        return program.of_averages(seen)
    return None


def _stated(sent: PayloadGuess, payload: Payload | None) -> PayloadGuess:
    return sent if payload is None else replace(sent, payload=payload, sure="sure")


def _between_ranks(
    seen: ChannelVectors, task: Task | None, payload: Payload | None
) -> tuple[PayloadGuess, GuessedModel]:
    sent = _stated(payloads.payload(seen), payload)
    tried = [sent]
    if sent.sure == "unknown":
        tried = [replace(sent, payload="weights"), sent]
    for one in tried:
        samples = gradients.samples(seen, one.payload)
        model = _model_behind(seen, one, samples, task, gradients.run(seen))
        if model.found is not None:
            why = one.why
            if one.sure == "unknown":
                why = f"{why}; recomputed gradients show which"
            return replace(one, sure="sure", why=why), model
    return sent, model


def _clipped(
    seen: ChannelVectors, stated: PrivateGradients, task: Task | None
) -> MessageExplanation:
    """Explain clipped gradients; only those without noise can show the model behind them."""
    sent = PayloadGuess("gradients", "sure", f"Opacus sends {stated.words}")
    heard: dict[LogChannel, list[LoggedMessage]] = {}
    for wire, stream in seen.streams.items():
        if wire.op == "model" or wire.src in stated.silent:
            heard[wire] = stream
    some = replace(seen, streams=heard)
    samples = gradients.samples(some, "gradients")
    model = _model_behind(some, sent, samples, task, gradients.run(some), clipped=True)
    model = counted(model, gradients.spread(some, "gradients"))
    return MessageExplanation(seen, sent, model, None, stated)


def counted(model: GuessedModel, samples: Sequence[fit.GradientSample]) -> GuessedModel:
    """Return the model with the number of records that gradients show at least."""
    if model.solved is not None:
        samples = model.solved.samples
    task = model.task
    if task is None:
        return model
    point = "" if model.found is None else model.found.point
    apart = records.separated(task, samples, point)
    model = replace(model, apart=apart)
    named = model.stepping
    if named is not None and named.optimiser.momentum:
        return model  # a step contains the gradients of earlier ones
    if named is not None and named.optimiser.decay:
        samples = [_undecayed(sample, named) for sample in samples]
    shown = records.shown(task, samples, apart)
    # Only gradients of one record each can contradict a model: it is recomputed from one record.
    contradicted = model.contradicted and shown is not None and shown.alike
    if model.doubt and model.factors is not None:
        contradicted = contradicted or model.factors.loss_only
    return replace(model, records=shown, contradicted=contradicted)


def _undecayed(sample: fit.GradientSample, named: stepping.Stepping) -> fit.GradientSample:
    if sample.base is None:
        return sample
    shrinkage = named.shrinkage(sample.base.double(), sample.index)
    return replace(sample, value=sample.value.double() - shrinkage)


def best(models: Sequence[GuessedModel]) -> list[int]:
    """Return which models explain most: the first that is proved, or else all that are possible."""
    for k, model in enumerate(models):
        if model.found is not None:
            return [k]
    possible = [k for k, model in enumerate(models) if model.task is not None]
    return possible or [0]


def _model_behind(
    seen: ChannelVectors,
    sent: PayloadGuess,
    samples: Sequence[fit.GradientSample],
    task: Task | None,
    run: Iterable[fit.GradientSample],
    clipped: bool = False,
) -> GuessedModel:
    """Find the model behind the messages; run: gradients that verify the first ones."""
    if seen.missing and not any(sample.part for sample in samples):
        # The gradient of a part of a model cannot be recomputed from what it shows, and a part that
        # looks like a small model is none: its inputs are not records.
        return GuessedModel(task)
    first = [sample for sample in samples if sample.base is None or sample.index == 0]
    tasks = [task] if task is not None else []
    if task is None:
        for widths in gradients.agreed(first, seen.sizes):
            tasks.extend(fit.candidates(widths))
    if not tasks:
        return GuessedModel(None)
    solved = None
    if sent.payload == "duals":
        solved = duals.solve(seen, tasks)
    if solved is not None:
        found: fit.ModelFit | None = solved.fit
        samples = solved.samples
    else:
        found = fit.fit(tasks, first)
    if found is None:
        return GuessedModel(tasks[0])
    if sent.payload == "weights" and samples[0].base is not None:
        return _of_steps(seen, found, samples)
    factors = None
    if sent.payload == "gradients":
        factors = gradients.compared(seen, found, run, clipped)
    if solved is not None:
        proved = solved.proved
    elif factors is not None:
        proved = factors.proved
    else:
        proved = found.miss < PROVED
    if not proved:
        # With random masks, recomputed gradients cannot equal those that travel.
        return GuessedModel(found.task, contradicted=not found.task.masked, factors=factors)
    if factors is not None:
        found = replace(found, step=factors.factor, spread=factors.spread, miss=factors.miss)
    task, levels = fit.normalised(found.task, samples)
    return GuessedModel(task, levels, replace(found, task=task), solved, factors=factors)


def _of_steps(
    seen: ChannelVectors, found: fit.ModelFit, samples: Sequence[fit.GradientSample]
) -> GuessedModel:
    # A log with a single step per node does not tell optimisers apart: it proves only the model.
    task, levels = fit.normalised(found.task, samples)
    several = any(sample.index for sample in samples)
    if not several:
        factors = compare(found.task, [sample.at(found.point) for sample in samples])
        if not factors.proved:
            return GuessedModel(found.task, factors=factors)
        found = replace(found, task=task, step=factors.factor, spread=factors.spread)
        return GuessedModel(task, levels, replace(found, miss=factors.miss), factors=factors)
    named = local_optimiser.identify(task, samples)
    if named is None:
        return GuessedModel(found.task, contradicted=True)
    point, optimiser = named
    if optimiser.rate is not None:
        whole = [sample.at(point) for sample in gradients.steps(seen)]
        wrong = local_optimiser.first_miss(optimiser, task, whole)
        if wrong is not None:
            why = (
                f"{optimiser.text} explains the first steps, but not step {wrong + 1}: constants "
                "that change, or other records"
            )
            return GuessedModel(found.task, changed=why)
    rate = 0.0 if optimiser.rate is None else optimiser.rate
    miss = optimiser.miss
    proved = fit.ModelFit(task, point, rate, miss, miss, optimiser=optimiser.optimiser)
    return GuessedModel(task, levels, proved, stepping=optimiser)


def _of_clients(
    model: GuessedModel,
    sent: PayloadGuess,
    samples: Sequence[fit.GradientSample],
    whole: Iterable[fit.GradientSample],
    examples: set[int],
) -> GuessedModel:
    """Return the model if the same training explains every client; else without its constants."""
    # Half of the clients prove nothing here, because one sentence describes how all of them train.
    # Neither does what looks like one record if clients state that they have more. whole: answers
    # of the whole run.
    unproved = replace(model, found=None)
    if model.task is None or not examples <= {1}:
        return unproved
    if sent.payload == "gradients":
        if model.found is None or not local.is_step(model.found, samples):
            return unproved
        return model
    moved = local.sign_step(samples)
    if moved is not None:
        return replace(unproved, moved=moved)
    trained = local.several(_alike(model.task), samples)
    if trained is not None:
        trained = local.of_all(trained, whole)
    if trained is None:
        return unproved
    task, levels = fit.normalised(trained.task, samples)
    return GuessedModel(task, levels, replace(trained, task=task))


def _shaped(model: GuessedModel) -> GuessedModel:
    """Return a model that was inferred: its inputs are pictures only if they are proved pixels."""
    if model.task is None or model.levels:
        return model
    spec = replace(model.task.spec, shape=(math.prod(model.task.spec.shape),))
    task = Task.build(spec, trusted=model.task.trusted)
    found = None if model.found is None else replace(model.found, task=task)
    return replace(model, task=task, found=found)


def _alike(task: Task) -> list[Task]:
    if task.spec.model != "mlp":
        return [task]
    found: list[Task] = []
    for act in ACTIVATIONS:
        spec = replace(task.spec, args={**task.spec.args, "act": act})
        found.append(Task.build(spec, trusted=task.trusted))
    return found
