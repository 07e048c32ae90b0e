"""The draft of a description: what was found, with gaps for what the user must fill in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from leakaudit._util import config
from leakaudit.capture.fitting import fit
from leakaudit.capture.fitting.factors import Factors
from leakaudit.capture.fitting.stepping import shortest
from leakaudit.capture.tap.guessing import hub
from leakaudit.capture.tap.guessing.duals import DualSolution
from leakaudit.capture.tap.guessing.explanation import GuessedModel, MessageExplanation
from leakaudit.capture.tap.guessing.observed import ChannelVectors
from leakaudit.capture.tap.guessing.program import STATED, ProgramStatement, StatedRecords
from leakaudit.capture.tap.log.finder import LOSSES
from leakaudit.capture.tap.messages.description import ASK, USUAL
from leakaudit.capture.tap.messages.layouts import renamed
from leakaudit.capture.tap.messages.private import PrivateGradients
from leakaudit.protocols.optimiser import Optimiser

LIST = "see 'leakaudit list victims'"
NEAREST = 1e-5  # relative distance within which a constant is rounded even if samples agree better
SPREADS = 4  # otherwise, number of the samples' spreads within which it is rounded: a choice
MODEL = {  # default comment for a key of [model]
    "name": "see 'leakaudit list models'; or package.module:factory, or file.pt2",
    "args": "arguments of the model",
    "shape": "shape of one input: channels, height, width; or its length",
    "classes": "",
    "loss": "cross_entropy, binary, squared or next_token",
    "mean": "the model receives (input - mean) / std; one entry, or one per channel",
    "std": "",
    "levels": "255 if inputs are k/255, else 0",
}
SCALE = "what a node sends, times this, is the protocol's value; a server's models are not scaled"
OF_MESSAGES = {  # default comment for a key of [messages], which is SCALE otherwise
    "stream": "process group or model of the messages; the log has others of the same size",
    "scales": "round = its scale from then on",
}
HEAD = (
    "# The program's messages, for --describe of `leakaudit tap` and `leakaudit trace import`. "
    "Inferred from them: check and correct it."
)
PARAMS = (
    "[params]  # the protocol's constants; for omitted ones, the defaults of "
    "'leakaudit record {protocol} --help'"
)
SAMPLES = "# samples = …              # records per node: not known"
MESSAGES = (
    f"# scale = 4.0              # {SCALE}; e.g. 4.0 if 4 ranks divide gradients before the sum",
    "# tags = [0]               # tags of the messages to use",
    '# order = ["layer1.bias", "layer1.weight.T"]  # the parameters in the order of a message; '
    ".T: stored as (in, out)",
)


@dataclass(frozen=True)
class _Draft:
    """A description under construction, by dotted keys such as ``params.alpha``."""

    # in the form that `description.of` expects
    values: dict[str, Any] = field(default_factory=lambda: {"params": {}, "model": {}})
    # the comment beside a value, and whether the value is known; otherwise `ASK` takes its place
    comments: dict[str, tuple[str, bool]] = field(default_factory=dict)

    def put(self, key: str, value: Any, comment: str | None = None, known: bool = True) -> None:
        """Set a value and its comment; None for that which is usual for this key."""
        table, _, name = key.rpartition(".")
        held = self.values.setdefault(table, {}) if table else self.values
        held[name] = value
        if comment is not None:
            self.note(key, comment, known)

    def note(self, key: str, comment: str, known: bool = True) -> None:
        """Set the comment beside a value."""
        self.comments[key] = comment, known

    def ask(self, key: str, comment: str) -> None:
        """Leave a value open, which the user must fill in."""
        self.note(key, comment, known=False)

    @property
    def gaps(self) -> list[str]:
        """Keys that the user must fill in."""
        return [key for key, (_, known) in self.comments.items() if not known]

    def toml(self, evidence: Sequence[str]) -> str:
        """Return the text of the description."""
        lines = [HEAD, *(f"# {line}" for line in evidence)]
        lines += [self._line(name, self.values[name]) for name in ("payload", "protocol", "first")]
        params = self.values["params"]
        lines += ["", PARAMS.format(protocol=self.values["protocol"])]
        lines += [self._line(f"params.{name}", value) for name, value in params.items()]
        if "samples" not in params:
            shown, _ = self.comments.get("params.samples", ("", True))
            lines.append(f"{SAMPLES}; {shown}" if shown else SAMPLES)
        lines += ["", "[model]"]
        for name, value in self.values["model"].items():
            lines.append(self._line(f"model.{name}", value, MODEL.get(name, "")))
        messages = self.values.get("messages", {})
        lines += ["", "[messages]" if messages else "# [messages]"]
        for name, value in messages.items():
            lines.append(self._line(f"messages.{name}", value, OF_MESSAGES.get(name, SCALE)))
        return "\n".join((*lines, *MESSAGES)) + "\n"

    def _line(self, key: str, value: Any, usual: str = "") -> str:
        comment, known = self.comments.get(key, (usual, True))
        name = key.rpartition(".")[2]
        text = f"{name} = {config.inline(value if known else ASK)}"
        return f"{text:26} # {comment}" if comment else text


def drafted(explained: MessageExplanation, changed: str = "", assumed: str = "") -> _Draft:
    """Return the description that an explanation suggests; changed: why it names no protocol."""
    seen = explained.seen
    model = explained.model
    server = explained.server
    draft = _Draft()
    _add_head(draft, explained)
    if explained.stated is not None:
        _add_private(draft, explained.stated)
    elif server is None:
        _add_params(draft, explained)
    else:
        _add_samples(draft, model, hub.examples(seen))
        _add_server(draft, explained, hub.is_mean(seen, server))
    if changed:
        draft.ask("protocol", changed)
    elif server is not None and not hub.is_one_model(seen, server):
        draft.ask("protocol", "the server sends different models to its clients in a round")
    _add_model(draft, model, explained.program)
    if model.contradicted and seen.hooked and explained.stated is None:
        why = "another model, activation or loss: no recomputed gradient equals those of the hook"
        if model.doubt:
            draft.ask(_open(model), model.doubt)
        else:
            draft.ask("model.name", why)
    if assumed and model.found is None:
        draft.ask("model.loss", assumed)
    return draft


def blank() -> _Draft:
    """Return a description in which the user must fill in everything."""
    draft = _Draft()
    draft.put("payload", "", "weights, gradients or duals", known=False)
    draft.put("protocol", "", LIST, known=False)
    draft.put("first", "update")
    _add_model(draft, GuessedModel(None), None)
    return draft


def _add_head(draft: _Draft, explained: MessageExplanation) -> None:
    sent = explained.sent
    seen = explained.seen
    draft.put("payload", sent.payload, sent.sure)
    draft.put("protocol", USUAL[sent.payload])
    draft.put("first", "update")
    if seen.lane is not None:
        draft.put("messages.stream", seen.lane)
    if sent.sure == "unknown":
        draft.ask("payload", sent.why)
        draft.ask("protocol", LIST)
    if sent.payload == "gradients" and len(seen.graph.edges) > 1 and seen.centre is None:
        draft.ask("protocol", f"vectors travel between nodes without a server: {LIST}")
    if sent.payload == "weights" and explained.server is not None:
        draft.put("protocol", "fedavg", "clients receive a model and send one back")
        draft.put("first", "start")
    elif sent.payload == "weights":
        _add_start(draft, seen)


def _add_start(draft: _Draft, seen: ChannelVectors) -> None:
    if seen.same_start:
        draft.put("first", "start", "the ranks' first messages are equal")
    else:
        draft.note("first", "the ranks' first messages differ")
    if seen.centre is not None:
        draft.ask("protocol", f"models travel between a server and clients: {LIST}")
    if not seen.graph.edges:
        # Weights that all ranks add up: how many local steps lie between two averages, and whether
        # the ranks divide before they add, does not follow from the messages.
        draft.put(
            "protocol",
            "fedavg",
            'all ranks average: "fedavg", with lr, the local steps as epochs, and server = "mean" '
            "if they continue from the average; scale = number of ranks under [messages] if they "
            "divide before the sum",
            known=False,
        )


def _add_params(draft: _Draft, explained: MessageExplanation) -> None:
    payload = explained.sent.payload
    model = explained.model
    stated = explained.program
    if stated is not None and stated.averages:
        _add_averages(draft, stated)
        return
    if payload == "weights" and "protocol" in draft.comments:
        return
    if payload == "weights":
        _add_weights(draft, model)
    elif payload == "duals":
        _add_duals(draft, model.solved)
    else:
        if "protocol" not in draft.comments:
            draft.note("protocol", "gradients are sent to a server, or added up")
        if model.contradicted and not explained.seen.hooked:
            _ask_payload(draft, model)
        _add_scale(draft, model.factors)
    if stated is not None:
        _add_stated(draft, stated)
    _add_records(draft, model, stated)


def _add_stated(draft: _Draft, stated: ProgramStatement) -> None:
    """Add the optimiser and the loss scale, unless the messages contradict them."""
    if not stated.optimiser or stated.contradicted:
        return
    if stated.why:
        draft.put("params.server", "unknown", f"{stated.why} ({stated.comment})")
    for name, value in stated.params.items():
        draft.put(f"params.{name}", value, stated.comment)
    if stated.scales:
        first, *later = stated.scales.values()
        draft.put(
            "messages.scale",
            first,
            "what is sent is a multiple of the gradient: a loss is scaled, or ranks divide",
        )
        if later:
            scales = {str(t): factor for t, factor in list(stated.scales.items())[1:]}
            draft.put("messages.scales", scales, f"{STATED}: the scale of the loss changes")


def _add_averages(draft: _Draft, stated: ProgramStatement) -> None:
    """Add local steps whose results all ranks average."""
    draft.put("protocol", "fedavg", f"{STATED}: all ranks average after local steps")
    draft.put("first", "update")
    for name, value in stated.params.items():
        counted = name in ("steps", "keep")
        draft.put(f"params.{name}", value, STATED if counted else stated.comment)
    if "optimiser" not in stated.params:
        draft.put("params.lr", 0.0, f"{stated.why}: {stated.comment}", known=False)
    if "steps" not in stated.params:
        draft.put("params.steps", 0, stated.why, known=False)
    records = stated.records
    if records.batch:
        draft.put("params.batch", records.batch, f"{STATED}: {records.text}")
    if stated.scales:
        (factor,) = stated.scales.values()
        draft.put(
            "messages.scale", factor, "ranks divide before they add up, as the next models show"
        )


def _add_records(draft: _Draft, model: GuessedModel, stated: ProgramStatement | None) -> None:
    shown = model.records
    records = StatedRecords() if stated is None else stated.records
    if records.batch and (shown is None or shown.most <= records.batch):
        name = "samples" if records.reused else "batch"
        draft.put(f"params.{name}", records.batch, f"{STATED}: {records.text}")
        if not records.reused:
            draft.note("params.samples", "a rank may have more than those of one step")
        return
    if model.reused:
        draft.put("params.samples", 1, f"records per rank: {model.reused}")
        return
    single = shown.single if shown is not None else model.apart
    if model.found is not None and single:
        draft.put("params.batch", 1, "records per gradient")
    if shown is not None:
        draft.note("params.samples", shown.text)


def _add_private(draft: _Draft, stated: PrivateGradients) -> None:
    draft.note("payload", f"sums over a rank's records: {stated.words}")
    if stated.why:
        draft.ask("protocol", stated.why)
        return
    draft.note("protocol", "all ranks add them up")
    draft.values["params"] |= stated.params
    draft.note("params.clip", "of each record's gradient, as Opacus states")
    draft.note("params.sigma", "of a sum; the noise in the messages has this size")
    draft.note("params.noisy", "only rank 0 adds noise")
    if stated.scale != 1:
        draft.put("messages.scale", stated.scale)


def _ask_payload(draft: _Draft, model: GuessedModel) -> None:
    """Leave open what is sent: vectors that show single records, but equal no gradient."""
    if model.factors is not None and model.factors.loss_only:
        draft.ask(_open(model), model.doubt)
        return
    draft.ask(
        "payload",
        "gradients of several records or of another model (activation, loss), or updates after "
        "several steps: no recomputed gradient equals them",
    )
    draft.ask("protocol", LIST)


def _open(model: GuessedModel) -> str:
    """Return the key that gradients leave open if they match none that is recomputed."""
    if model.factors is None or not model.factors.loss_only:
        return "model.name"
    return "messages.scale" if model.factors.by_round else "model.loss"


def _add_scale(draft: _Draft, factors: Factors | None) -> None:
    if factors is None or factors.clipped:
        return
    if not factors.proved:
        if factors.fits and factors.by_round:
            draft.values["messages"] = {"scale": 1.0}
    elif factors.is_loss_scale:
        first, *later = factors.runs
        draft.values["messages"] = {"scale": 1 / first[1]}
        if later:
            scales = {str(t): 1 / factor for t, factor in later}
            draft.put("messages.scales", scales, factors.why)
    elif abs(factors.factor - 1) > NEAREST:
        draft.values["messages"] = {"scale": _rounded(1 / factors.factor, factors.spread)}


def _add_samples(draft: _Draft, model: GuessedModel, examples: set[int]) -> None:
    shown = model.records
    if model.reused:
        draft.put("params.samples", 1, f"records per client: {model.reused}")
    elif shown is not None and shown.differ:
        draft.note("params.samples", shown.text)
    elif len(examples) == 1:
        draft.put("params.samples", next(iter(examples)), "records per client, as clients report")


def _add_server(draft: _Draft, explained: MessageExplanation, is_mean: bool | None) -> None:
    model = explained.model
    found = model.found
    proved = found is not None
    if explained.sent.payload == "gradients":
        draft.note("payload", "or differences of models, or something else", proved)
        if not proved:
            draft.ask("protocol", LIST)
        return
    # Recomputed gradients prove SGD on one record, and no other training.
    if found is not None:
        comment = f"accurate to {found.spread:.0e}"
        if found.steps == 1:
            comment += "; one step with Nesterov momentum would be one of lr / (1 + momentum)"
        draft.put("params.lr", _rounded(found.step, found.spread), comment)
    else:
        draft.put("params.lr", 0.0, "step size of SGD, e.g. 0.1", known=False)
    if model.moved:
        draft.put("params.optimiser", "adam", "adam, adamw or adagrad", known=False)
        draft.ask("params.lr", f"{model.moved:.3g} for one step of Adam, half of it for two")
    new = model.records is not None and model.records.single and model.records.differ
    if found is not None and new and found.steps == 1:
        draft.put("params.steps", 1, "steps in a round; later ones use new records")
        draft.put("params.batch", 1, "records per step")
    else:
        passes = "passes over a client's records in a round"
        draft.put("params.epochs", 1 if found is None else found.steps, passes, proved)
        every = "records per step; 0: all of them"
        if model.records is not None and model.records.differ:
            every = "a step uses all records of its round; how a round draws them is not known"
        draft.put("params.batch", 0, every, proved)
    if found is not None:
        _add_memory(draft, found.optimiser)
    said = {
        True: "the server's next model is the mean of all answers",
        False: "the next model is not the plain mean of all clients' answers",
        None: "no round shows how the server combines models",
    }
    draft.put("params.server", "mean" if is_mean else "unknown", said[is_mean])


def _add_memory(draft: _Draft, optimiser: Optimiser) -> None:
    for name in ("momentum", "nesterov", "decay"):
        if getattr(optimiser, name):
            draft.put(f"params.{name}", getattr(optimiser, name))


def _add_weights(draft: _Draft, model: GuessedModel) -> None:
    named = model.stepping
    alpha = 0.0
    why = "the step size, e.g. 0.1"
    known = False
    if named is not None:
        why = f"{named.text}; it predicts what it was not fitted to"
        known = named.rate is not None
        alpha = named.rate or 0.0
    elif model.found is not None:
        alpha = _rounded(model.found.step, model.found.spread)
        why = "of the first step; a log of one step does not show the optimiser"
        known = True
    if model.changed:
        why = model.changed
        known = False
    draft.put("params.alpha", alpha, why, known)
    draft.put(
        "params.order",
        "" if model.found is None else model.found.point,
        '"combine": gradient at the model before averaging; "adapt": after averaging',
        known=named is not None,
    )
    if named is None:
        if model.found is None:
            draft.put("params.optimiser", "sgd", "sgd, adam, adamw or adagrad", known=False)
        return
    if named.optimiser.kind != "sgd":
        draft.put("params.optimiser", named.optimiser.kind)
    _add_memory(draft, named.optimiser)
    if named.clip:
        draft.put("params.clip", named.clip)


def _add_duals(draft: _Draft, solved: DualSolution | None) -> None:
    alpha = 0.0
    rho = 0.0
    if solved is not None:
        alpha = _rounded(solved.alpha, solved.fit.spread)
        rho = _rounded(solved.rho, solved.fit.spread)
        if solved.sign < 0:
            draft.put("messages.scale", -1.0)
    known = solved is not None
    draft.put("params.alpha", alpha, "the step size, e.g. 0.05", known)
    draft.put("params.rho", rho, "the penalty, e.g. 0.4", known)
    draft.put("params.theta", 1.0)
    draft.put("params.differential", False)
    draft.put("params.z0", 0.0, "duals start at zero")


def _add_model(draft: _Draft, model: GuessedModel, stated: ProgramStatement | None) -> None:
    if model.task is None:
        asked = (
            "the model that was trained: 'leakaudit list models', package.module:factory, "
            "or file.pt2"
        )
        draft.put("model.name", "", asked, known=False)
        draft.put("model.args", {})
        draft.put("model.shape", [], "shape of one input, e.g. [1, 28, 28]", known=False)
        draft.put("model.classes", 0, "number of classes", known=False)
        draft.put("model.loss", "cross_entropy")
        if stated is not None:
            _add_stated_model(draft, stated)
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
    if not (model.levels or model.task.tokens) and len(spec.shape) == 1 < len(picture):
        text = f"not proved to be pixels; pictures would be {list(picture)}"
        draft.note("model.shape", text)
    if model.found is None:
        draft.note("model.name", "of the right size, but not proved")


def _add_stated_model(draft: _Draft, stated: ProgramStatement) -> None:
    if stated.shape:
        draft.put("model.shape", list(stated.shape), f"{STATED}: one record of its input")
    loss = LOSSES.get(stated.loss, "") if stated.plain else ""
    if stated.loss and not loss:
        draft.ask("model.loss", f"the program computes {stated.loss}, which is none of these")
        return
    if not loss:
        return
    draft.put("model.loss", loss, STATED)
    if loss == "cross_entropy" and stated.outputs:
        draft.put("model.classes", stated.outputs, f"{STATED}: outputs of the model")


def add_order(draft: _Draft, model: GuessedModel, order: Sequence[str], possible: int) -> None:
    """Add the order of the parameters that explains the messages best, of some possible ones."""
    if model.task is None:
        return
    text = "the parameters in a message; .T: stored as (in, out)"
    known = True
    if model.found is not None:
        text += "; proved by the recomputed gradient"
    elif possible == 1:
        text += "; of the right shapes, not proved"
    else:
        text = "the parameters in a message, with .T if stored as (in, out): shapes fit both"
        known = False
    draft.put("messages.order", renamed(order, model.task.layout.names), text, known)


def _rounded(value: float, spread: float) -> float:
    """Return a constant with the fewest digits that agree with the samples."""
    return shortest(value, max(SPREADS * spread, NEAREST))
