"""The model that a tapped program used, as the tap saved it (`log.finder`)."""

from __future__ import annotations

import shutil
from pathlib import Path

from msgspec import Struct

from leakaudit._util.decoding import from_json
from leakaudit.capture.tap.log import finder
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import TaskSpec
from leakaudit.tasks.task import Task

NOT_FOUND = (
    "the program's model was not found: no module that was called in training has as many "
    "parameters as a message has numbers; name it with --describe"
)
LARGEST = 1 << 20  # bytes of the facts, far above what the tap writes: a choice


class _ModelFacts(Struct, frozen=True):
    """What the tap wrote about a model."""

    name: str = ""  # module:class of the model
    # arguments of its constructor, as far as they are attributes of the model
    args: dict[str, bool | int | float | str | None] = {}
    unknown: list[str] = []  # arguments of its constructor that are not known
    training: bool = False  # whether the model was in train mode
    parameters: int = 0
    frozen: list[str] = []  # names of the parameters that are not trained
    losses: list[str] = []  # losses that the program computed
    why: str = ""  # why the model was not exported; empty if it was
    shape: list[int] = []  # shape of one input
    outputs: int = 0  # number of outputs; 0 if the output is not one vector per input, or per token
    tokens: bool = False  # whether the inputs are whole numbers
    each: bool = False  # whether there is an output for every token
    # whether the program passed labels to the model, which then computes the loss
    labels: bool = False
    following: bool = False  # whether the targets of its loss are the next tokens of its input
    # number of inputs for which the program was exported; None for any number
    batch: int | None = None
    # inputs without which the program was exported: they contained only ones
    left_out: list[str] = []
    varied: list[str] = []  # those that contained other values


def take(folder: Path, trace: Path) -> tuple[Task | None, str, list[str]]:
    """Copy the model from the log beside the trace, and check the program.

    Returns its task, if it can be run, why its loss is not known, or empty, and lines for the user.
    """
    path = folder / finder.FACTS
    if not path.is_file() or not 0 < path.stat().st_size < LARGEST:
        return None, "", [NOT_FOUND]
    try:
        facts = from_json(path.read_bytes(), _ModelFacts)
    except (ValueError, RecursionError) as error:
        raise LeakauditError(
            f"{path}: expected what the tap wrote about a model: {error}"
        ) from None
    stem = trace.name.removesuffix(".pt")
    for name in finder.FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, trace.with_name(f"{stem}.{name}"))
    said = [_about(facts)]
    if facts.why:
        said.append(f"the model was not exported as a program: {facts.why}")
        return None, "", said
    if facts.left_out:
        said.append(
            f"the program was exported without {', '.join(facts.left_out)}, which contained "
            "only ones in the first call"
        )
    if facts.varied:
        said.append(
            f"the program was exported without {', '.join(facts.varied)}, which the model uses: "
            "gradients of records with other values than the usual ones cannot be computed again"
        )
    loss, assumed = _loss(facts)
    if facts.outputs == 1 and facts.losses == ["cross_entropy"]:
        said.append("cross_entropy of a single output is 0 for every input: its gradient is zero")
    shape = list(facts.shape)
    if facts.each and facts.labels:
        said.append(
            "the program passed labels to the model: as in transformers, each token is taken for "
            "the label of the one before it, so a record is one token shorter than an input"
        )
        shape[-1] -= 1
    spec = TaskSpec(
        f"{stem}.{finder.PROGRAM}",
        loss=loss,
        shape=tuple(shape),
        classes=2 if loss == "binary" else facts.outputs,
        beside=str(trace.absolute().parent),
    )
    try:
        task = Task.build(spec)
    except LeakauditError as error:
        said.append(f"the exported program cannot be used: {error}")
        return None, "", said
    return task, assumed, said


def _about(facts: _ModelFacts) -> str:
    args = ", ".join(f"{name}={value!r}" for name, value in facts.args.items())
    unknown = ""
    if facts.unknown:
        unknown = f"; not known: {', '.join(facts.unknown)}"
    mode = "train" if facts.training else "evaluation"
    return f"model {facts.name}({args}) in {mode} mode, {facts.parameters} parameters{unknown}"


def _loss(facts: _ModelFacts) -> tuple[str, str]:
    if facts.each:
        if facts.losses == ["cross_entropy"] and (facts.labels or facts.following):
            return "next_token", ""
        return "next_token", "it has an output for every token; next_token is likely"
    likely = "binary" if facts.outputs == 1 else "cross_entropy"
    if facts.losses == [likely]:
        return likely, ""
    if not facts.losses:
        return likely, "no loss of torch.nn.functional was observed; cross_entropy or binary"
    return likely, f"the program computed {', '.join(facts.losses)}"
