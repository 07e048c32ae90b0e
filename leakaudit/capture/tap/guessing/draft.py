"""The draft of a description: what was found, with gaps for what the user must fill in."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from leakaudit.capture.fitting import fit
from leakaudit.capture.fitting.digits import shortest
from leakaudit.capture.fitting.factors import Factors
from leakaudit.capture.tap.guessing import hub
from leakaudit.capture.tap.guessing.duals import DualSolution
from leakaudit.capture.tap.guessing.explanation import GuessedModel, MessageExplanation
from leakaudit.capture.tap.guessing.observed import ChannelVectors
from leakaudit.capture.tap.guessing.payloads import Payload, PayloadGuess
from leakaudit.capture.tap.messages.description import USUAL
from leakaudit.capture.tap.messages.layouts import Arrangement
from leakaudit.capture.tap.messages.private import PrivateGradients
from leakaudit.capture.tap.messages.starter import Comment

LIST = "see 'leakaudit list victims'"
NEAREST = 1e-5  # relative distance within which a constant is rounded even if samples agree better
SPREADS = 4  # otherwise, number of the samples' spreads within which it is rounded: a choice


@dataclass(frozen=True)
class Draft:
    """A description under construction."""

    values: dict[str, Any]  # in the form that `description.of` expects
    comments: dict[str, Comment]  # dotted key -> comment beside its value

    @property
    def gaps(self) -> list[str]:
        """Keys that the user must fill in."""
        return [name for name, comment in self.comments.items() if not comment.known]


def drafted(explained: MessageExplanation, changed: str = "", assumed: str = "") -> Draft:
    """Return the description that an explanation of the messages suggests.

    Args:
        changed: why no protocol can be named, because something changed what was sent; empty if
            nothing did.
    """
    seen = explained.seen
    model = explained.model
    server = explained.server
    draft = _begun(explained)
    if explained.stated is not None:
        _add_private(draft, explained.stated)
    elif server is None:
        _add_params(draft, explained.sent.payload, model, bool(seen.hooked))
    else:
        _add_samples(draft, model, hub.examples(seen))
        _add_server(draft, explained.sent, model, hub.is_mean(seen, server))
    if changed:
        draft.comments["protocol"] = Comment(changed, known=False)
    elif server is not None and not hub.is_one_model(seen, server):
        why = "the server sends different models to its clients in a round"
        draft.comments["protocol"] = Comment(why, known=False)
    _add_model(draft, model)
    if model.contradicted and seen.hooked and explained.stated is None:
        why = "another model, activation or loss: no recomputed gradient equals those of the hook"
        asked = "model.name"
        if model.doubt:
            why = model.doubt
            asked = _open(model)
        draft.comments[asked] = Comment(why, known=False)
    if assumed and model.found is None:
        draft.comments["model.loss"] = Comment(assumed, known=False)
    return draft


def blank() -> Draft:
    """Return a description in which the user must fill in everything."""
    comments = {
        "payload": Comment("weights, gradients or duals", known=False),
        "protocol": Comment(LIST, known=False),
    }
    values = {"payload": "", "protocol": "", "first": "update", "params": {}}
    draft = Draft(values, comments)
    _add_model(draft, GuessedModel(None))
    return draft


def _begun(explained: MessageExplanation) -> Draft:
    """Return a description of payload and protocol, still without constants and model."""
    sent = explained.sent
    values = {
        "payload": sent.payload,
        "protocol": USUAL[sent.payload],
        "first": "update",
        "params": {},
        "model": {},
    }
    if explained.seen.lane is not None:
        values["messages"] = {"stream": explained.seen.lane}
    comments = {"payload": Comment(sent.sure)}
    if sent.sure == "unknown":
        comments["payload"] = Comment(sent.why, known=False)
        comments["protocol"] = Comment(LIST, known=False)
    draft = Draft(values, comments)
    if sent.payload == "gradients":
        _add_channels(draft, explained.seen)
    elif sent.payload == "weights" and explained.server is not None:
        values["protocol"] = "fedavg"
        values["first"] = "start"
        comments["protocol"] = Comment("clients receive a model and send one back")
    elif sent.payload == "weights":
        _add_start(draft, explained.seen)
    return draft


def _add_channels(draft: Draft, seen: ChannelVectors) -> None:
    """Leave the protocol open if gradients travel between nodes without a server."""
    if len(seen.graph.edges) > 1 and seen.centre is None:
        asked = f"vectors travel between nodes without a server: {LIST}"
        draft.comments["protocol"] = Comment(asked, known=False)


def _add_start(draft: Draft, seen: ChannelVectors) -> None:
    """Add what models without a server start from, and leave open what the channels do not show."""
    comment = "the ranks' first messages differ"
    if seen.same_start:
        draft.values["first"] = "start"
        comment = "the ranks' first messages are equal"
    draft.comments["first"] = Comment(comment)
    if seen.centre is not None:
        asked = f"models travel between a server and clients: {LIST}"
        draft.comments["protocol"] = Comment(asked, known=False)
    if not seen.graph.edges:
        # Weights that all ranks add up: how many local steps lie between two averages, and whether
        # the ranks divide before they add, does not follow from the messages.
        draft.values["protocol"] = "fedavg"
        draft.comments["protocol"] = Comment(
            'all ranks average: "fedavg", with lr, the local steps as epochs, and server = "mean" '
            "if they continue from the average; scale = number of ranks under [messages] if they "
            "divide before the sum",
            known=False,
        )


def _add_params(draft: Draft, payload: Payload, model: GuessedModel, hooked: bool) -> None:
    """Add the protocol's constants; what a hook recorded are gradients, whatever they show."""
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
        if model.contradicted and not hooked:
            _ask_payload(draft, model)
        _add_scale(draft, model.factors)
    _add_records(draft, model)


def _add_records(draft: Draft, model: GuessedModel) -> None:
    """Add how many records a gradient uses, and a rank has, as far as the messages show it."""
    shown = model.records
    params = draft.values["params"]
    comments = draft.comments
    if model.reused:
        params["samples"] = 1
        comments["params.samples"] = Comment(f"records per rank: {model.reused}")
        return
    single = shown.single if shown is not None else model.apart
    if model.found is not None and single:
        params["batch"] = 1
        comments["params.batch"] = Comment("records per gradient")
    if shown is not None:
        comments["params.samples"] = Comment(shown.text)


def _add_private(draft: Draft, stated: PrivateGradients) -> None:
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


def _ask_payload(draft: Draft, model: GuessedModel) -> None:
    """Leave open what is sent: vectors that show single records, but equal no gradient."""
    if model.factors is not None and model.factors.loss_only:
        draft.comments[_open(model)] = Comment(model.doubt, known=False)
        return
    draft.comments["payload"] = Comment(
        "gradients of several records or of another model (activation, loss), or updates after "
        "several steps: no recomputed gradient equals them",
        known=False,
    )
    draft.comments["protocol"] = Comment(LIST, known=False)


def _open(model: GuessedModel) -> str:
    """Return the key that gradients leave open if they match none that is recomputed."""
    if model.factors is None or not model.factors.loss_only:
        return "model.name"
    return "messages.scale" if model.factors.by_round else "model.loss"


def _add_scale(draft: Draft, factors: Factors | None) -> None:
    """Add the factor of gradients, if a program sends multiples of them."""
    if factors is None or factors.clipped:
        return
    if not factors.proved:
        if factors.fits and factors.by_round:
            draft.values["messages"] = {"scale": 1.0}
        return
    if factors.is_loss_scale:
        first, *later = factors.runs
        draft.values["messages"] = {"scale": 1 / first[1]}
        if later:
            draft.values["messages"]["scales"] = {str(t): 1 / factor for t, factor in later}
            draft.comments["messages.scales"] = Comment(factors.why)
    elif abs(factors.factor - 1) > NEAREST:
        draft.values["messages"] = {"scale": _rounded(1 / factors.factor, factors.spread)}


def _add_samples(draft: Draft, model: GuessedModel, examples: set[int]) -> None:
    """Add the number of records per client, if it is proved or all clients report the same."""
    shown = model.records
    if model.reused:
        draft.values["params"]["samples"] = 1
        draft.comments["params.samples"] = Comment(f"records per client: {model.reused}")
    elif shown is not None and shown.differ:
        draft.comments["params.samples"] = Comment(shown.text)
    elif len(examples) == 1:
        draft.values["params"]["samples"] = next(iter(examples))
        draft.comments["params.samples"] = Comment("records per client, as clients report")


def _add_server(
    draft: Draft, sent: PayloadGuess, model: GuessedModel, is_mean: bool | None
) -> None:
    """Add the constants of a protocol with a server."""
    params = draft.values["params"]
    comments = draft.comments
    found = model.found
    proved = found is not None
    if sent.payload == "gradients":
        comments["payload"] = Comment("or differences of models, or something else", proved)
        if not proved:
            comments["protocol"] = Comment(LIST, known=False)
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
    new = model.records is not None and model.records.single and model.records.differ
    if proved and new and model.steps == 1:
        params["steps"] = 1
        comments["params.steps"] = Comment("steps in a round; later ones use new records")
        params["batch"] = 1
        comments["params.batch"] = Comment("records per step")
    else:
        _add_epochs(draft, model, proved)
    for name in ("momentum", "nesterov", "decay"):
        if getattr(model.optimiser, name):
            params[name] = getattr(model.optimiser, name)
    said = {
        True: Comment("the server's next model is the mean of all answers"),
        False: Comment("the next model is not the plain mean of all clients' answers"),
        None: Comment("no round shows how the server combines models"),
    }
    params["server"] = "mean" if is_mean else "unknown"
    comments["params.server"] = said[is_mean]


def _add_epochs(draft: Draft, model: GuessedModel, proved: bool) -> None:
    """Add the passes over all records of a client, or over those of a round."""
    draft.values["params"] |= {"epochs": model.steps, "batch": 0}
    passes = "passes over a client's records in a round"
    draft.comments["params.epochs"] = Comment(passes, proved)
    all_ = "records per step; 0: all of them"
    if model.records is not None and model.records.differ:
        all_ = "a step uses all records of its round; how a round draws them is not known"
    draft.comments["params.batch"] = Comment(all_, proved)


def _of_rate(model: GuessedModel, spread: float) -> str:
    """Return the comment on the step size of clients."""
    said = f"accurate to {spread:.0e}"
    if model.steps == 1:
        return f"{said}; one step with Nesterov momentum would be one of lr / (1 + momentum)"
    return said


def _add_weights(draft: Draft, model: GuessedModel) -> None:
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
    if model.changed:
        alpha = Comment(model.changed, known=False)
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


def _add_duals(draft: Draft, solved: DualSolution | None) -> None:
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


def _add_model(draft: Draft, model: GuessedModel) -> None:
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
    picture = fit.image(math.prod(spec.shape))
    if not model.levels and len(spec.shape) == 1 < len(picture):
        text = f"not proved to be pixels; pictures would be {list(picture)}"
        draft.comments["model.shape"] = Comment(text)
    if model.found is None:
        draft.comments["model.name"] = Comment("of the right size, but not proved")


def add_order(draft: Draft, model: GuessedModel, arrangement: Arrangement, possible: int) -> None:
    """Add the order of the parameters in a message.

    Args:
        arrangement: the order and axes that explain the messages best.
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
