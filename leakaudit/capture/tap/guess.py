"""Guess what a log's messages are, and say how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leakaudit.capture.tap import description, duals, fit, heard, starter
from leakaudit.capture.tap.description import Description
from leakaudit.capture.tap.reading import RankLog
from leakaudit.capture.tap.starter import ASK
from leakaudit.capture.tap.wires import latest
from leakaudit.errors import LeakauditError
from leakaudit.tasks.task import Task
from leakaudit.trace import TaskSpec

PROVED = 0.01  # miss of a gradient that was computed anew


@dataclass(frozen=True)
class Guess:
    """What was found. said: in one line. evidence: why. toml: a description to start from. description: None where it has gaps."""

    said: str
    evidence: tuple[str, ...]
    toml: str
    description: Description | None


def named(
    model: str | None,
    args: Mapping[str, Any],
    shape: tuple[int, ...] | None,
    classes: int | None,
    loss: str,
) -> Task | None:
    """Return the task that a user names for a guess, None where no model is named."""
    if model is None:
        return None
    if shape is None or classes is None:
        raise LeakauditError(
            "--model needs --shape and --classes: what goes in, and how many classes come out"
        )
    return Task.build(
        TaskSpec(model, dict(args), loss=loss, shape=shape, classes=classes), trusted=True
    )


def guess(logs: Sequence[RankLog], task: Task | None = None) -> Guess:
    """Look at the messages of a log; `task` is the model, where somebody knows it.

    Raises LeakauditError where the log holds no vectors, or none of the size of the model.
    """
    listened = heard.listen(latest(logs), task)
    payload, sure, why = heard.payload(listened)
    evidence, said = [why], {"payload": sure}
    d, count = listened.sizes[-1], sum(map(len, listened.streams.values()))
    evidence.append(f"{count} messages of {d} numbers on {len(listened.streams)} wires")
    first = "start" if payload == "weights" and heard.same_start(listened) else "update"
    if payload == "weights":
        said["first"] = (
            "all ranks' first messages are equal"
            if first == "start"
            else "the first messages differ from rank to rank"
        )
    samples: Sequence[fit.Sample] = heard.samples(listened, payload)
    tasks = (
        [task]
        if task is not None
        else [t for widths in heard.agreed(samples, listened.sizes) for t in fit.candidates(widths)]
    )
    solved = duals.solve(listened, tasks) if payload == "duals" else None
    found, samples = (solved.fit, solved.samples) if solved else (fit.fit(tasks, samples), samples)
    proved = (
        found is not None
        and found.miss < PROVED
        and (solved is None or abs(found.step - 1) < PROVED)
    )
    evidence.append(_evidence(found if proved else None, tasks, task is not None, d))
    values: dict[str, Any] = {
        "payload": payload,
        "protocol": description.USUAL[payload],
        "first": first,
        "params": {},
        "model": {},
    }
    chosen = (found.task if found is not None else tasks[0]) if tasks else None
    _params(values, said, payload, found if proved else None, solved if proved else None)
    _model(
        values,
        said,
        chosen,
        fit.levels(chosen, samples) if chosen is not None and proved else 0,
        proved,
    )
    text = starter.toml(values, said, tuple(evidence))
    gaps = [name for name, comment in said.items() if comment.startswith(ASK)]
    known = (
        f"say yourself: {', '.join(gaps)}"
        if gaps
        else f"{_listed(values['params'])}; {_named(values['model'])}"
    )
    line = f"{payload} ({sure}), {values['protocol']}; {known}"
    return Guess(line, tuple(evidence), text, None if gaps else description.of(values))


def _evidence(found: fit.Fit | None, tasks: Sequence[Task], given: bool, d: int) -> str:
    """Return what stands behind the model."""
    if found is not None:
        miss = f"{found.miss:.1g}"
        return f"a gradient computed anew at the record that a message shows misses the message by {miss}: model, loss and step are right"
    if given:
        return "the model's size fits; nothing more could be proved from the messages"
    if tasks:
        return "the widths are those of the tensors, or of a first layer that shows single records; the activation is a guess"
    return f"no layer of single records is seen, and {d} numbers fit many models: name yours with --model, --shape and --classes"


def _params(
    values: dict[str, Any],
    said: dict[str, str],
    payload: str,
    found: fit.Fit | None,
    solved: duals.Solved | None,
) -> None:
    """Fill in the protocol's constants, and what stands behind each."""
    params = values["params"]
    if payload == "weights":
        params["alpha"] = short(found.step, found.spread) if found else 0.1
        said["params.alpha"] = f"found to {found.spread:.0e}" if found else f"{ASK}: the step size"
        params["order"] = found.point if found else "combine"
        said["params.order"] = (
            "combine: the gradient is taken at the model before averaging; adapt: after it"
        )
    if payload == "duals":
        alpha, rho = (
            (short(v, solved.fit.spread) for v in (solved.alpha, solved.rho))
            if solved
            else (0.05, 0.4)
        )
        params.update(alpha=alpha, rho=rho, theta=1.0, differential=False, z0=0.0)
        said |= {
            "params.alpha": "the step size",
            "params.rho": "the penalty",
            "params.z0": "duals begin at zero",
        }
        if solved is None:
            said |= {name: f"{ASK}: {said[name]}" for name in ("params.alpha", "params.rho")}
        elif solved.sign < 0:
            values["messages"] = {"scale": -1.0}
    if payload == "gradients":
        said["protocol"] = "gradients go to a server, or into a sum"
    if found:
        params["samples"] = 1
        said["params.samples"] = "records behind a gradient"


def _model(
    values: dict[str, Any], said: dict[str, str], task: Task | None, levels: int, proved: bool
) -> None:
    """Fill in the model, a made-up one where none is known."""
    if task is None:
        values["model"] = {
            "name": "mlp",
            "args": {"hidden": "100"},
            "shape": [1, 28, 28],
            "classes": 10,
            "loss": "cross_entropy",
        }
        said["model.name"] = f"{ASK}: the model that was trained"
        return
    spec = task.spec
    values["model"] = {
        **{
            "name": spec.model,
            "args": dict(spec.args),
            "shape": list(spec.shape),
            "classes": spec.classes,
            "loss": spec.loss,
        },
        **({"levels": levels} if levels else {}),
    }
    if not proved:
        said["model.name"] = "of the right size; not proved"


def short(value: float, spread: float) -> float:
    """Return a value in the fewest digits that agree with what was found."""
    near = max(4 * spread, 1e-5)
    return next(
        v
        for n in range(1, 18)
        if abs((v := float(f"{value:.{n}g}")) - value) <= near * abs(value) or n == 17
    )


def _listed(params: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in params.items())


def _named(model: Mapping[str, Any]) -> str:
    return (
        f"{model['name']} {_listed(model['args'])} for inputs {'x'.join(map(str, model['shape']))}"
    )
