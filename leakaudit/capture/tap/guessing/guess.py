"""Guess the meaning of a log's messages, and state how certain the guess is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from leakaudit.capture.tap.fitting import fit, local, local_optimiser, stepping
from leakaudit.capture.tap.fitting.digits import shortest
from leakaudit.capture.tap.guessing import duals, hub, observed
from leakaudit.capture.tap.log.reading import RankLog
from leakaudit.capture.tap.messages import answers, description, starter
from leakaudit.capture.tap.messages.description import Description
from leakaudit.capture.tap.messages.layouts import Arrangement, arrangements
from leakaudit.capture.tap.messages.private import Private, private
from leakaudit.capture.tap.messages.starter import Comment
from leakaudit.capture.tap.messages.streams import LoggedMessage, Wire
from leakaudit.capture.tap.messages.wires import latest
from leakaudit.errors import LeakauditError
from leakaudit.protocols.optimiser import Optimiser
from leakaudit.tasks import remarks
from leakaudit.tasks.models import ACTIVATIONS
from leakaudit.tasks.task import Task
from leakaudit.trace import TaskSpec

# Measured on examples/tap (float32 messages): the correct model misses by 6e-7 to 5e-6, a wrong
# activation or point by .5 or more.
PROVED = 0.01  # miss of a recomputed gradient
NEAREST = 1e-5  # relative distance within which a constant is rounded even if samples agree better
SHOWN = 6  # names of parameters in one line
SPREADS = 4  # otherwise, number of the samples' spreads within which it is rounded: a choice


@dataclass(frozen=True)
class Guess:
    """The result of a guess.

    Attributes:
        said: the finding in one line.
        evidence: the reasons, one line each.
        toml: a description to start from.
        description: the same as a value; None if it has gaps.
    """

    said: str
    evidence: tuple[str, ...]
    toml: str
    description: Description | None


@dataclass(frozen=True)
class _Draft:
    """A description under construction.

    Attributes:
        values: in the form that `description.of` expects.
        comments: dotted key -> comment beside its value.
    """

    values: dict[str, Any]
    comments: dict[str, Comment]

    @property
    def gaps(self) -> list[str]:
        """Keys that the user must fill in."""
        return [name for name, comment in self.comments.items() if not comment.known]


def named(
    model: str | None,
    args: Mapping[str, Any],
    shape: tuple[int, ...] | None,
    classes: int | None,
    loss: str,
) -> Task | None:
    """Return the task that a user specifies for a guess.

    Args:
        model: name of a model, ``package.module:factory``, or ``file.pt2``.
        args: arguments of the model.
        shape: shape of one input.
        classes: number of classes.
        loss: cross_entropy, binary or squared.

    Returns:
        The task; None if no model is given.

    Raises:
        LeakauditError: a model is given without its shape or number of classes.
    """
    if model is None:
        return None
    if shape is None or classes is None:
        raise LeakauditError(
            "--model also needs --shape (of one input) and --classes (their number)"
        )
    spec = TaskSpec(model, dict(args), loss=loss, shape=shape, classes=classes)
    return Task.build(spec, trusted=True)


def guess(
    logs: Sequence[RankLog], task: Task | None = None, named: bool = False, assumed: str = ""
) -> Guess:
    """Guess a description from the messages of a log.

    Args:
        logs: the logs of all processes.
        task: the task of the model that is sent, if known.
        named: whether the tensors have names of their own, so that the description has to state
            which parameters they are.
        assumed: why the loss of `task` is not known; empty if it is.

    Raises:
        LeakauditError: the log contains no vectors, or none of the size of the model.
    """
    answers.check(logs)
    changed = answers.changed(logs)
    readings = list(_readings(latest(logs), task))
    explained = [_explained(seen, task) for seen, _ in readings]
    best = _best([one.model for one in explained])
    seen, arrangement = readings[best[0]]
    sent = explained[best[0]].sent
    model = explained[best[0]].model
    server = explained[best[0]].server
    stated = explained[best[0]].stated

    size = seen.sizes[-1]
    count = sum(map(len, seen.streams.values()))
    evidence = (
        sent.why,
        f"{count} messages of {size} numbers on {len(seen.streams)} channels",
        _evidence(model, task is not None, size, bool(seen.missing)),
        *_partial(seen),
        *seen.notes,
        *answers.remarks(logs),
        *(remarks.of(task) if task is not None else ()),
    )
    if stated is not None:
        evidence = (*evidence, *stated.remarks)
    draft = _begun(seen, sent, server)
    if stated is not None:
        _add_private(draft, stated)
    elif server is None:
        _add_params(draft, sent.payload, model)
    else:
        _add_samples(draft, model, hub.examples(seen))
        _add_server(draft, sent, model, hub.is_mean(seen, server))
    if changed:
        draft.comments["protocol"] = Comment(changed, known=False)
    elif server is not None and not hub.is_one_model(seen, server):
        why = "the server sends different models to its clients in a round"
        draft.comments["protocol"] = Comment(why, known=False)
    _add_model(draft, model)
    if assumed and model.found is None:
        draft.comments["model.loss"] = Comment(assumed, known=False)
    elif task is None and _fits_both(model):
        both = Comment("binary or squared: one output fits both", known=False)
        draft.comments["model.loss"] = both
    if arrangement is not None and (named or len(best) > 1 or not arrangement.usual):
        _add_order(draft, model, arrangement, len(best))

    values = draft.values
    gaps = draft.gaps
    if gaps:
        known = f"to be filled in: {', '.join(gaps)}"
    else:
        known = "; ".join(filter(None, (_listed(values["params"]), _named(values["model"]))))
        if task is None and model.found is None:
            known += " (of the right size, not proved)"
    return Guess(
        said=f"{_headline(draft, sent, stated)}; {known}",
        evidence=evidence,
        toml=starter.toml(values, draft.comments, evidence),
        description=None if gaps else description.of(values, beside=_folder(task)),
    )


def _folder(task: Task | None) -> str:
    """Return the folder of the program that the user names; empty if there is none."""
    return "" if task is None else task.spec.beside


def unknown(why: str) -> Guess:
    """Return a guess in which nothing is known.

    Args:
        why: the reason.
    """
    comments = {"payload": Comment("weights, gradients or duals", known=False)}
    comments["protocol"] = Comment("see 'leakaudit list victims'", known=False)
    values = {"payload": "", "protocol": "", "first": "update", "params": {}}
    draft = _Draft(values, comments)
    _add_model(draft, _Model(None))
    return Guess(
        said=f"to be filled in: {', '.join(draft.gaps)}",
        evidence=(why,),
        toml=starter.toml(values, comments, (why,)),
        description=None,
    )


def _readings(
    logs: Sequence[RankLog], task: Task | None
) -> Iterator[tuple[observed.Observed, Arrangement | None]]:
    """Yield the messages in each order and with the axes in which they may hold the parameters."""
    shapes = observed.shapes(logs, task)
    found = arrangements(shapes)
    if task is not None:
        sizes = observed.sizes_of(task)
        lengths = [math.prod(shape) for shape in shapes]
        found = [one for one in found if one.sizes(lengths) == sizes]
    if not found:
        yield observed.collect(logs, task), None
    for one in found:
        yield observed.collect(logs, task, one.places(shapes)), one


@dataclass(frozen=True)
class _Explained:
    """What is sent, for one order of the parameters in a message.

    Attributes:
        sent: the payload.
        model: the model behind the messages.
        server: rank of the server; None if there is none.
        stated: what Opacus states about the messages; None if it did not send them.
    """

    sent: observed.PayloadGuess
    model: _Model
    server: int | None
    stated: Private | None = None


def _explained(seen: observed.Observed, task: Task | None) -> _Explained:
    stated = private(chain.from_iterable(seen.streams.values()), seen.slices)
    if stated is not None:
        return _clipped(seen, stated, task)
    server = hub.server(seen)
    if server is None:
        sent = observed.payload(seen)
        samples = observed.samples(seen, sent.payload)
        return _Explained(sent, _model_behind(seen, sent, samples, task), server)
    sent = hub.payload(seen, server)
    samples = hub.samples(seen, server, sent.payload)
    model = _model_behind(seen, sent, samples, task)
    return _Explained(sent, _of_clients(model, sent, samples, hub.examples(seen)), server)


def _clipped(seen: observed.Observed, stated: Private, task: Task | None) -> _Explained:
    """Explain clipped gradients; only those without noise can show the model behind them."""
    sent = observed.PayloadGuess("gradients", "sure", f"Opacus sends {stated.words}")
    heard: dict[Wire, list[LoggedMessage]] = {}
    for wire, stream in seen.streams.items():
        if wire.op == "model" or wire.src in stated.silent:
            heard[wire] = stream
    some = replace(seen, streams=heard)
    model = _model_behind(some, sent, observed.samples(some, "gradients"), task)
    return _Explained(sent, model, None, stated)


def _headline(draft: _Draft, sent: observed.PayloadGuess, stated: Private | None) -> str:
    """Return payload and protocol, as far as they are known."""
    gaps = draft.gaps
    payload = f"{sent.payload} ({sent.sure})"
    if stated is not None:
        payload = f"{stated.words} (as Opacus states)"
    if "payload" in gaps:
        payload = f"payload {starter.ASK}"
    protocol = draft.values["protocol"]
    if "protocol" in gaps:
        protocol = f"protocol {starter.ASK}"
    return f"{payload}, {protocol}"


def _best(models: Sequence[_Model]) -> list[int]:
    """Return the numbers of the models that explain most: one that is proved, else all possible."""
    for k, model in enumerate(models):
        if model.found is not None:
            return [k]
    possible = [k for k, model in enumerate(models) if model.task is not None]
    return possible or [0]


@dataclass(frozen=True)
class _Model:
    """The model behind the messages.

    Attributes:
        task: the best of the models that were tried; None if there was none to try.
        levels: 255 if the inputs are proved to be k/255, else 0.
        found: the fit of recomputed gradients, if it proves the model.
        contradicted: whether gradients could be recomputed, but none equals the messages.
        solved: the constants behind duals, if they are proved.
        stepping: the optimiser of the local steps, if it is proved.
        steps: number of local steps between two messages.
        optimiser: SGD as clients of a server use it, if it is proved.
        moved: distance by which every coordinate moves, if all move equally; else 0.
    """

    task: Task | None
    levels: int = 0
    found: fit.ModelFit | None = None
    solved: duals.Solved | None = None
    contradicted: bool = False
    stepping: stepping.Stepping | None = None
    steps: int = 1
    optimiser: Optimiser = local.PLAIN
    moved: float = 0.0


def _model_behind(
    seen: observed.Observed,
    sent: observed.PayloadGuess,
    samples: Sequence[fit.GradientSample],
    task: Task | None,
) -> _Model:
    """Find the model behind the messages; task: the one given by the user."""
    if seen.missing and not any(sample.part for sample in samples):
        # The gradient of a part of a model cannot be recomputed from what it shows, and a part that
        # looks like a small model is none: its inputs are not records.
        return _Model(task)
    first = [sample for sample in samples if sample.index == 0]
    tasks = [task] if task is not None else _tasks(seen, first)
    if not tasks:
        return _Model(None)
    solved = None
    if sent.payload == "duals":
        solved = duals.solve(seen, tasks)
    if solved is not None:
        found: fit.ModelFit | None = solved.fit
        samples = solved.samples
    else:
        found = fit.fit(tasks, first)
    if found is None:
        return _Model(tasks[0])
    if sent.payload == "weights" and samples[0].base is not None:
        return _of_steps(found, samples)
    if not _is_proved(found, solved):
        # With random masks, recomputed gradients cannot equal those that travel.
        return _Model(found.task, contradicted=not found.task.masked)
    task, levels = fit.normalised(found.task, samples)
    return _Model(task, levels, replace(found, task=task), solved)


def _of_steps(found: fit.ModelFit, samples: Sequence[fit.GradientSample]) -> _Model:
    """Find the optimiser of nodes that send models, which proves the model as well.

    A log with a single step per node cannot tell one optimiser from another, so it is only taken
    as a proof of the model.
    """
    task, levels = fit.normalised(found.task, samples)
    several = any(sample.index for sample in samples)
    if not several:
        if found.miss > PROVED:
            return _Model(found.task)
        return _Model(task, levels, replace(found, task=task))
    named = local_optimiser.identify(task, sorted(samples[0].thetas), samples)
    if named is None:
        return _Model(found.task, contradicted=True)
    point, optimiser = named
    rate = 0.0 if optimiser.rate is None else optimiser.rate
    proved = fit.ModelFit(task, point, rate, optimiser.miss, optimiser.miss)
    return _Model(task, levels, proved, stepping=optimiser)


def _of_clients(
    model: _Model,
    sent: observed.PayloadGuess,
    samples: Sequence[fit.GradientSample],
    examples: set[int],
) -> _Model:
    """Return the model if the same training explains every client; else without its constants.

    Half of the clients are no proof here, because one sentence says how all of them train; nor is
    anything that looks like one record where clients say that they have more.
    """
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
    trained = local.several(_alike(model.task), samples, hub.POINT)
    if trained is None:
        return unproved
    task, levels = fit.normalised(trained.task, samples)
    found = fit.ModelFit(task, hub.POINT, trained.lr, trained.miss, trained.miss)
    return _Model(task, levels, found, steps=trained.steps, optimiser=trained.optimiser)


def _alike(task: Task) -> list[Task]:
    """Return the models of the same widths, with any activation."""
    if task.spec.model != "mlp":
        return [task]
    found: list[Task] = []
    for act in ACTIVATIONS:
        spec = replace(task.spec, args={**task.spec.args, "act": act})
        found.append(Task.build(spec, trusted=task.trusted))
    return found


def _begun(seen: observed.Observed, sent: observed.PayloadGuess, server: int | None) -> _Draft:
    """Return a description of the payload, still without constants and model."""
    payload = sent.payload
    comments = {"payload": Comment(sent.sure)}
    if sent.sure == "unknown":
        comments["payload"] = Comment(sent.why, known=False)
        comments["protocol"] = Comment("see 'leakaudit list victims'", known=False)
    first = "update"
    protocol = description.USUAL[payload]
    if server is not None and payload == "weights":
        protocol = "fedavg"
        first = "start"
        comments["protocol"] = Comment("clients receive a model and send one back")
    elif payload == "weights":
        comment = "the ranks' first messages differ"
        if observed.same_start(seen):
            first = "start"
            comment = "the ranks' first messages are equal"
        comments["first"] = Comment(comment)
        if observed.hub(seen.graph) is not None:
            asked = "models travel between a server and clients: see 'leakaudit list victims'"
            comments["protocol"] = Comment(asked, known=False)
    elif payload == "gradients" and len(seen.graph.edges) > 1 and observed.hub(seen.graph) is None:
        asked = "vectors travel between nodes without a server: see 'leakaudit list victims'"
        comments["protocol"] = Comment(asked, known=False)
    values = {
        "payload": payload,
        "protocol": protocol,
        "first": first,
        "params": {},
        "model": {},
    }
    if seen.lane is not None:
        values["messages"] = {"stream": seen.lane}
    if payload == "weights" and not seen.graph.edges:
        # Weights that all ranks add up: how many local steps lie between two averages, and whether
        # the ranks divide before they add, does not follow from the messages.
        values["protocol"] = "fedavg"
        comments["protocol"] = Comment(
            'all ranks average: "fedavg", with lr, the local steps as epochs, and server = "mean" '
            "if they continue from the average; scale = number of ranks under [messages] if they "
            "divide before the sum",
            known=False,
        )
    return _Draft(values, comments)


def _tasks(seen: observed.Observed, samples: Sequence[fit.GradientSample]) -> list[Task]:
    """Return the models with the widths that the samples reveal."""
    tasks: list[Task] = []
    for widths in observed.agreed(samples, seen.sizes):
        tasks.extend(fit.candidates(widths))
    return tasks


def _is_proved(found: fit.ModelFit, solved: duals.Solved | None) -> bool:
    """Return whether recomputed gradients equal those of the messages."""
    if solved is not None and not abs(found.step - 1) < PROVED:
        return False
    return found.miss < PROVED


def _evidence(model: _Model, given: bool, size: int, sketched: bool) -> str:
    """Return the evidence for the model.

    Args:
        model: the model behind the messages.
        given: whether the user specified it.
        size: numbers per message.
        sketched: whether only a sketch of some parameters was recorded.
    """
    found = model.found
    if found is not None:
        sent = "the message"
        if sketched:
            sent = "the recorded parameters and the sketch of the others"
        what = "a gradient" if model.steps == 1 else f"{model.steps} local steps"
        return (
            f"{what} recomputed at the record that a message reveals matches {sent} up to "
            f"{found.miss:.1g}: model, loss and step are correct"
        )
    if model.moved:
        return (
            f"every coordinate that moves, moves by {model.moved:.3g}: one or a few first steps of "
            "Adam, Adagrad, RMSprop or signed gradients, which show the sign of a gradient and not "
            "its size"
        )
    if given:
        return "the size of the model fits; nothing else could be proved from the messages"
    if _fits_both(model):
        return (
            "the widths are those of the tensors; one output fits loss binary as well as squared, "
            "and the activation is a guess"
        )
    if model.task is not None:
        return (
            "the widths are those of the tensors, or of a first layer that reveals single records; "
            "the activation is a guess"
        )
    return (
        f"no layer reveals single records, and {size} numbers fit many models: "
        "specify yours with --model, --shape and --classes"
    )


def _fits_both(model: _Model) -> bool:
    """Return whether a model that was guessed has one output, which does not show its loss."""
    if model.task is None or model.found is not None:
        return False
    return model.task.spec.loss == "binary"


def _partial(seen: observed.Observed) -> list[str]:
    """Return remarks about parameters and streams that the messages do not contain."""
    found: list[str] = []
    missing = seen.missing
    if missing:
        what = "were not recorded (--layers)" if seen.chosen else "do not travel"
        found.append(
            f"{len(missing)} of {len(seen.sizes) - 1} parameters {what}: "
            f"{', '.join(missing[:SHOWN])}{', ...' if len(missing) > SHOWN else ''}"
        )
    if seen.lane is not None:
        found.append(f"several streams have messages of this size; this is stream {seen.lane!r}")
    return found


def _add_params(draft: _Draft, payload: observed.Payload, model: _Model) -> None:
    """Add the protocol's constants."""
    comments = draft.comments
    if payload == "weights" and "protocol" in comments:
        return
    if payload == "weights":
        _add_weights(draft, model)
    elif payload == "duals":
        _add_duals(draft, model.solved)
    else:
        usual = Comment("gradients are sent to a server, or added up")
        comments.setdefault("protocol", usual)
        if model.contradicted:
            _ask_payload(draft)
        _add_scale(draft, model.found)
    if model.found is not None:
        draft.values["params"]["samples"] = 1
        comments["params.samples"] = Comment("records per gradient")


def _add_private(draft: _Draft, stated: Private) -> None:
    """Add the constants that Opacus states; no other protocol describes its messages."""
    draft.comments["payload"] = Comment(f"sums over a rank's records: {stated.words}")
    if stated.why:
        draft.comments["protocol"] = Comment(stated.why, known=False)
        return
    draft.comments["protocol"] = Comment("all ranks add them up")
    draft.values["params"] |= stated.params
    draft.comments["params.clip"] = Comment("of each record's gradient, as Opacus states")
    draft.comments["params.sigma"] = Comment("of a sum; the noise in the messages has this size")
    draft.comments["params.noisy"] = Comment("only rank 0 adds noise")
    if stated.scale != 1:
        draft.values.setdefault("messages", {})["scale"] = stated.scale


def _ask_payload(draft: _Draft) -> None:
    """Leave open what is sent: vectors that show single records, but equal no gradient."""
    draft.comments["payload"] = Comment(
        "gradients of another model (activation, loss), or updates after several steps: no "
        "recomputed gradient equals them",
        known=False,
    )
    draft.comments["protocol"] = Comment("see 'leakaudit list victims'", known=False)


def _add_scale(draft: _Draft, found: fit.ModelFit | None) -> None:
    """Add the factor of gradients, if a program sends multiples of them."""
    if found is not None and found.step and abs(found.step - 1) > PROVED:
        draft.values["messages"] = {"scale": _rounded(1 / found.step, found.spread)}


def _add_samples(draft: _Draft, model: _Model, examples: set[int]) -> None:
    """Add the number of records per client, if it is proved or all clients report the same."""
    if model.found is not None:
        draft.values["params"]["samples"] = 1
        draft.comments["params.samples"] = Comment("records per client")
    elif len(examples) == 1:
        draft.values["params"]["samples"] = next(iter(examples))
        draft.comments["params.samples"] = Comment("records per client, as clients report")


def _add_server(
    draft: _Draft, sent: observed.PayloadGuess, model: _Model, is_mean: bool | None
) -> None:
    """Add the constants of a protocol with a server."""
    params = draft.values["params"]
    comments = draft.comments
    found = model.found
    proved = found is not None
    if sent.payload == "gradients":
        comments["payload"] = Comment("or differences of models, or something else", proved)
        if not proved:
            comments["protocol"] = Comment("see 'leakaudit list victims'", known=False)
        return
    # Recomputed gradients prove SGD on one record, and no other training.
    params["lr"] = 0.0
    if found is not None:
        params["lr"] = _rounded(found.step, found.spread)
        comments["params.lr"] = Comment(_of_rate(model, found.spread))
    else:
        comments["params.lr"] = Comment("step size of SGD, e.g. 0.1", known=False)
    if model.moved:
        params["optimiser"] = "adam"
        comments["params.optimiser"] = Comment("adam, adamw or adagrad", known=False)
        size = f"{model.moved:.3g} for one step of Adam, half of it for two"
        comments["params.lr"] = Comment(size, known=False)
    params["epochs"] = model.steps
    comments["params.epochs"] = Comment("passes over a client's records in a round", proved)
    for name in ("momentum", "nesterov", "decay"):
        if getattr(model.optimiser, name):
            params[name] = getattr(model.optimiser, name)
    params["batch"] = 0
    comments["params.batch"] = Comment("records per step; 0: all of them", proved)
    said = {
        True: Comment("the server's next model is the mean of all answers"),
        False: Comment("the next model is not the plain mean of all clients' answers"),
        None: Comment("no round shows how the server combines models"),
    }
    params["server"] = "mean" if is_mean else "unknown"
    comments["params.server"] = said[is_mean]


def _of_rate(model: _Model, spread: float) -> str:
    """Return the comment on the step size of clients."""
    said = f"accurate to {spread:.0e}"
    if model.steps == 1:
        return f"{said}; one step with Nesterov momentum would be one of lr / (1 + momentum)"
    return said


def _add_weights(draft: _Draft, model: _Model) -> None:
    """Add the constants of decentralised SGD."""
    params = draft.values["params"]
    comments = draft.comments
    named = model.stepping
    alpha = Comment("the step size, e.g. 0.1", known=False)
    params["alpha"] = 0.0
    if named is not None:
        alpha = Comment(f"{named.text}; it predicts what it was not fitted to")
        rate = named.rate
        if rate is None:
            alpha = replace(alpha, known=False)
        else:
            params["alpha"] = rate
    elif model.found is not None:
        params["alpha"] = _rounded(model.found.step, model.found.spread)
        alpha = Comment("of the first step; a log of one step does not show the optimiser")
    comments["params.alpha"] = alpha
    params["order"] = "" if model.found is None else model.found.point
    comments["params.order"] = Comment(
        '"combine": gradient at the model before averaging; "adapt": after averaging',
        known=named is not None,
    )
    if named is None:
        if model.found is None:
            params["optimiser"] = "sgd"
            comments["params.optimiser"] = Comment("sgd, adam, adamw or adagrad", known=False)
        return
    optimiser = named.optimiser
    if optimiser.kind != "sgd":
        params["optimiser"] = optimiser.kind
    for name in ("momentum", "nesterov", "decay"):
        if getattr(optimiser, name):
            params[name] = getattr(optimiser, name)
    if named.scaling.clip:
        params["clip"] = named.scaling.clip


def _add_duals(draft: _Draft, solved: duals.Solved | None) -> None:
    """Add the constants of PDMM and ECL."""
    alpha = 0.0
    rho = 0.0
    if solved is not None:
        alpha = _rounded(solved.alpha, solved.fit.spread)
        rho = _rounded(solved.rho, solved.fit.spread)
        if solved.sign < 0:
            draft.values.setdefault("messages", {})["scale"] = -1.0
    draft.values["params"] = {
        "alpha": alpha,
        "rho": rho,
        "theta": 1.0,
        "differential": False,
        "z0": 0.0,
    }
    known = solved is not None
    draft.comments["params.alpha"] = Comment("the step size, e.g. 0.05", known)
    draft.comments["params.rho"] = Comment("the penalty, e.g. 0.4", known)
    draft.comments["params.z0"] = Comment("duals start at zero")


def _add_model(draft: _Draft, model: _Model) -> None:
    """Add the model, or a placeholder if none is known."""
    if model.task is None:
        draft.values["model"] = {
            "name": "",
            "args": {},
            "shape": [],
            "classes": 0,
            "loss": "cross_entropy",
        }
        asked = {
            "name": "the model that was trained: 'leakaudit list models', package.module:factory, "
            "or file.pt2",
            "shape": "shape of one input, e.g. [1, 28, 28]",
            "classes": "number of classes",
        }
        for name, text in asked.items():
            draft.comments[f"model.{name}"] = Comment(text, known=False)
        return
    spec = model.task.spec
    values = {
        "name": spec.model,
        "args": dict(spec.args),
        "shape": list(spec.shape),
        "classes": spec.classes,
        "loss": spec.loss,
    }
    if model.levels:
        values["levels"] = model.levels
    if spec.mean != (0.0,) or spec.std != (1.0,):
        values["mean"] = list(spec.mean)
        values["std"] = list(spec.std)
    draft.values["model"] = values
    if model.found is None:
        draft.comments["model.name"] = Comment("of the right size, but not proved")


def _add_order(draft: _Draft, model: _Model, arrangement: Arrangement, possible: int) -> None:
    """Add the order of the parameters in a message.

    Args:
        draft: the description.
        model: the model behind the messages.
        arrangement: the order and axes that explain the messages best.
        possible: number of arrangements that explain them equally well.
    """
    if model.task is None:
        return
    proved = model.found is not None
    order = arrangement.order(model.task.layout.names)
    draft.values.setdefault("messages", {})["order"] = order
    text = "the parameters in a message; .T: stored as (in, out)"
    if proved:
        draft.comments["messages.order"] = Comment(f"{text}; proved by the recomputed gradient")
    elif possible == 1:
        draft.comments["messages.order"] = Comment(f"{text}; of the right shapes, not proved")
    else:
        asked = "the parameters in a message, with .T if stored as (in, out): shapes fit both"
        draft.comments["messages.order"] = Comment(asked, known=False)


def _rounded(value: float, spread: float) -> float:
    """Return a constant with the fewest digits that agree with the samples."""
    return shortest(value, max(SPREADS * spread, NEAREST))


def _listed(params: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in params.items())


def _named(model: Mapping[str, Any]) -> str:
    shape = "x".join(map(str, model["shape"]))
    named = f"{model['name']} {_listed(model['args'])}".strip()
    return f"{named} for inputs {shape}"
