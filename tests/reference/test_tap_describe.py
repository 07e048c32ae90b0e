"""From a log to a trace, on logs that are written here: descriptions, tensors that make up a model,
servers, guesses.
"""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="arg-type, call-overload, index, misc, operator, union-attr"

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.capture.fitting.fit import image, widths
from leakaudit.capture.tap import merge
from leakaudit.capture.tap.guessing import confirm, observed, payloads
from leakaudit.capture.tap.guessing.confirm import contradictions, doubt
from leakaudit.capture.tap.guessing.guess import guess
from leakaudit.capture.tap.log.reading import read_logs
from leakaudit.capture.tap.log.writing import Log
from leakaudit.capture.tap.messages import description, wires
from leakaudit.capture.tap.messages.private import PrivateGradients
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Trace
from leakaudit.protocols.optimiser import Kind, Optimiser, OptimiserState
from leakaudit.tasks.task import Task
from leakaudit.traces import trace_file

MODEL: dict[str, Any] = {"name": "mlp", "args": {"hidden": "6"}, "shape": [1, 4, 4], "classes": 3}
TASK = Task.build(
    la.TaskSpec("mlp", {"hidden": "6"}, shape=(1, 4, 4), classes=3), dtype=torch.float64
)
D = TASK.layout.size
PLAIN = Optimiser()
Write = Callable[[Sequence[Log]], None]


def described(**values: Any) -> description.MessageDescription:
    return description.of(
        {"payload": "weights", "params": {"alpha": 0.1}, "model": MODEL, **values}
    )


def logged(folder: Path, ranks: int, write: Write) -> tuple[Any, ...]:
    logs = [Log(folder, k, world=ranks) for k in range(ranks)]
    write(logs)
    for log in logs:
        log.close()
    return read_logs(folder)


def trace_of(folder: Path, ranks: int, write: Write, **values: Any) -> Trace:
    logs = logged(folder / "log", ranks, write)
    merge.write(wires.plan(described(**values), logs), logs, folder / "trace.pt")
    return trace_file.load(folder / "trace.pt")


def data(nodes: int) -> tuple[Tensor, Tensor]:
    """One record in k/255 for every node, x (N, 1, 1, 4, 4), y (N, 1)."""
    random = Generator().manual_seed(5)
    return torch.randint(
        0, 256, (nodes, 1, 1, 4, 4), generator=random
    ).double() / 255, torch.arange(nodes)[:, None] % 3


def start() -> Tensor:
    return TASK.init(Generator().manual_seed(1))


def averaging(
    order: str = "combine",
    own_start: bool = False,
    rounds: int = 5,
    optimiser: Optimiser = PLAIN,
    late: float = 0.05,
) -> Write:
    """D-PSGD on a triangle, alpha = 0.05, and `late` from round 10 on; all weights are 1/3."""

    def write(logs: Sequence[Log]) -> None:
        x, y = data(3)
        w = start().repeat(3, 1)
        w = (
            w + 0.01 * torch.randn(3, D, generator=Generator().manual_seed(2), dtype=w.dtype)
            if own_start
            else w
        )
        memory = OptimiserState()
        for t in range(rounds):
            alpha = 0.05 if t < 10 else late
            mean = w.mean(0, keepdim=True).expand(3, -1)
            if order == "combine":
                sent, w = w, optimiser.step(memory, alpha, mean, TASK.gradients(w, x, y))
            else:
                sent = optimiser.step(memory, alpha, w, TASK.gradients(w, x, y))
                w = sent.mean(0, keepdim=True).repeat(3, 1)
            for i, log in enumerate(logs):
                for j in {0, 1, 2} - {i}:
                    log.write("send", sent[i], peer=j)

    return write


# --- descriptions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dpsgd", "ecl"])
def test_the_examples_descriptions_can_be_read(name: str, project: Path) -> None:
    found = description.read(project / "examples" / "tap" / f"{name}.toml")
    assert found.protocol == {"dpsgd": "dpsgd", "ecl": "pdmm"}[name]
    assert found.sizes[-1] == sum(found.sizes[:-1])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "payload: expected weights, gradients or duals, got None"),
        ('payload = "weight"', "payload: expected weights"),
        ('payload = "weights"\npaylod = 1', "paylod: unknown key; did you mean 'payload'"),
        ('payload = "weights"\nfirst = "last"', "first: expected start or update"),
        (
            'payload = "weights"\nprotocol = "dpsdg"',
            "there is no victim 'dpsdg'; did you mean 'dpsgd'",
        ),
        ('payload = "weights"\nprotocol = 7', "protocol: expected the name of a victim"),
        ('payload = "weights"\nparams = 3', r"params: expected a table \[params\]"),
        (
            'payload = "weights"\n[params]\nalfa = 1',
            "params.alfa: unknown key; did you mean 'alpha'",
        ),
        ('payload = "weights"\n[params]\nalpha = -1', "expected alpha > 0"),
        ('payload = "weights"', "model.name: is missing"),
        ('payload = "weights"\n[model]\nname = "mlp"', "model.shape: is missing"),
        ('payload = "weights"\n[model]\nname = "mpl"\nshape = [4]', "mpl"),
        ('payload = "weights"\n[model]\nname = "mlp"\nshape = 4', "model.shape: expected list"),
        (
            'payload = "weights"\n[model]\nname = "mlp"\nshape = [4]\nclasses = true',
            "model.classes: expected int",
        ),
        (
            'payload = "weights"\n[model]\nname = "mlp"\nshape = [4]\n[messages]\norder = ["x"]',
            "messages.order: the model has no parameter 'x'",
        ),
        (
            'payload = "weights"\n[model]\nname = "mlp"\nshape = [4]\n[messages]\nscale = 0.0',
            "messages.scale: expected a finite number",
        ),
        (
            'payload = "weights"\n[model]\nname = "mlp"\nshape = [4]\n[messages]\nkinds = {a = "w"}',
            "expected whole numbers as tags",
        ),
        (
            'payload = "weights"\n[model]\nname = "mlp"\nshape = [4]\n[messages]\nreceive = true',
            "messages.receive: unknown key",
        ),
        (
            'payload = "weights"\n[model]\nname = "no.such:thing"\nshape = [4]',
            "No module named 'no'",
        ),
        ("payload = ", "Invalid value"),
    ],
)
def test_a_description_that_does_not_fit_is_refused_by_key(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "tap.toml"
    path.write_text(text)
    with pytest.raises(LeakauditError, match=complaint) as error:
        description.read(path, trusted=True)
    assert str(error.value).startswith(f"description {path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("order", ["combine", "adapt"])
def test_a_protocol_may_be_described_in_a_file(tmp_path: Path, project: Path, order: str) -> None:
    file = project / "tests" / "protocol_files" / f"dpsgd_{order}.toml"
    first = "start" if order == "combine" else "update"
    given: dict[str, Any] = {"protocol": str(file), "params": {"alpha": 0.05}, "first": first}
    trace = trace_of(tmp_path / "mine", 3, averaging(order), **given)
    given |= {"protocol": "dpsgd", "params": {"alpha": 0.05, "order": order}}
    bundled = trace_of(tmp_path / "bundled", 3, averaging(order), **given)
    assert trace.protocol == f"dpsgd-{order}"
    assert trace.params == {"alpha": 0.05}
    assert trace.rounds == bundled.rounds
    for mine, theirs in zip(la.leaks(trace), la.leaks(bundled), strict=True):
        assert mine.node == theirs.node
        assert torch.equal(mine.combination, theirs.combination)
        torch.testing.assert_close(mine.value, theirs.value, rtol=1e-9, atol=1e-12)


def test_a_models_own_factory_is_found_beside_the_description(tmp_path: Path) -> None:
    (tmp_path / "my_tapped_net.py").write_text(
        "from torch import nn\ndef net(shape, classes): return nn.Linear(shape[0], classes)\n"
    )
    (tmp_path / "tap.toml").write_text(
        'payload = "weights"\n[model]\nname = "my_tapped_net:net"\nshape = [5]\nclasses = 3\n'
    )
    found = description.read(tmp_path / "tap.toml", "my_tapped_net:net")
    assert found.sizes == (15, 3, 18)


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False])
def test_a_model_may_travel_whole_or_in_parts_with_other_tensors_between(
    tmp_path: Path, whole: bool
) -> None:
    sent = torch.randn(3, 2, D, generator=Generator().manual_seed(0))

    def write(logs: Sequence[Log]) -> None:
        for t in range(3):
            for i, log in enumerate(logs):
                parts = [sent[t, i]] if whole else list(TASK.layout.split(sent[t, i]).values())
                for tag, part in enumerate(parts):
                    log.write("send", part, peer=1 - i, tag=tag)
                log.write("send", torch.tensor(0.25), peer=1 - i, tag=7)
                log.write("allreduce", torch.arange(5))

    trace = trace_of(tmp_path, 2, write, first="update")
    (m,) = trace.messages
    assert trace.rounds == 3
    assert all(
        torch.equal(m.payload[int(m.row[k])], sent[int(m.round[k]) - 1, int(m.src[k])])
        for k in range(6)
    )


def test_parameters_may_be_sent_in_another_order(tmp_path: Path) -> None:
    vector, names = (
        torch.randn(D, generator=Generator().manual_seed(0)),
        list(TASK.layout.names)[::-1],
    )
    parts = TASK.layout.split(vector)

    def write(logs: Sequence[Log]) -> None:
        for i, log in enumerate(logs):
            log.write("send", torch.cat([parts[n].flatten() for n in names]), peer=1 - i)

    trace = trace_of(tmp_path, 2, write, first="update", messages={"order": names})
    assert torch.equal(trace.messages[0].payload[0], vector)


def test_tags_choose_messages_and_say_their_kinds(tmp_path: Path) -> None:
    def write(logs: Sequence[Log]) -> None:
        for i, log in enumerate(logs):
            for tag in (4, 5, 6):
                log.write("send", torch.full((D,), float(tag)), peer=1 - i, tag=tag)

    params: Mapping[str, Any] = {"alpha": 0.1}
    trace = trace_of(
        tmp_path,
        2,
        write,
        first="update",
        protocol="tracking",
        params=params,
        messages={"kinds": {"4": "w", "6": "y"}},
    )
    (m,) = trace.messages
    kinds = {(m.kinds[int(m.kind[k])], float(m.payload[int(m.row[k]), 0])) for k in range(len(m))}
    assert kinds == {("w", 4.0), ("y", 6.0)}
    with pytest.raises(
        LeakauditError, match=r"tracking sends 2 kinds of messages \(w, y\); assign the tags"
    ):
        trace_of(tmp_path, 2, write, first="update", protocol="tracking", params=params)


def test_a_log_without_the_model_is_refused_and_says_what_it_holds(tmp_path: Path) -> None:
    def others(logs: Sequence[Log]) -> None:
        for log in logs:
            log.write("send", torch.ones(7), peer=1)

    with pytest.raises(
        LeakauditError,
        match=f"no message has the size of the model \\({D} numbers.*the log contains 2 send of 7 numbers",
    ):
        trace_of(tmp_path, 2, others)


def test_what_a_program_says_of_a_message_goes_before_the_count_and_is_not_believed_blindly(
    tmp_path: Path,
) -> None:
    def write(logs: Sequence[Log], far: int = 0) -> None:
        for i, log in enumerate(logs):
            for t in (2, 4):
                log.write("send", torch.full((D,), float(t)), peer=1 - i, round=t + far, kind="w")

    trace = trace_of(tmp_path / "near", 2, write, first="update")
    assert trace.messages[0].round.tolist() == [2, 2, 4, 4]
    assert {tuple(m["rounds"]) for m in trace.provenance["missing"]} == {(1, 1), (3, 3)}
    with pytest.raises(
        LeakauditError,
        match="a message claims to be of round 2000000004, but the log contains 4 messages",
    ):
        trace_of(tmp_path / "far", 2, lambda logs: write(logs, 2_000_000_000), first="update")


def test_a_node_that_never_sent_is_named(tmp_path: Path) -> None:
    def write(logs: Sequence[Log]) -> None:
        for t in range(3):
            for i in (0, 2):
                logs[i].write("send", torch.full((D,), float(t)), peer=1)

    trace = trace_of(tmp_path, 3, write, first="update")
    assert not trace.complete
    assert {(m["src"], m["dst"], *m["rounds"]) for m in trace.provenance["missing"]} == {
        (1, 0, 1, 3),
        (1, 2, 1, 3),
    }


def test_a_log_that_does_not_fit_max_bytes_leaves_no_file(tmp_path: Path) -> None:
    logs = logged(tmp_path / "log", 3, averaging())
    with pytest.raises(LeakauditError, match="max_bytes"):
        merge.write(wires.plan(described(), logs), logs, tmp_path / "trace.pt", max_bytes=100)
    assert [p.name for p in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize(("code", "complete"), [(0, True), (1, False)])
def test_a_program_that_failed_leaves_an_incomplete_trace(
    code: int, complete: bool, tmp_path: Path
) -> None:
    logs = logged(tmp_path / "log", 3, averaging())
    made = merge.write(wires.plan(described(), logs), logs, tmp_path / "trace.pt", code)
    assert made.complete is complete


def test_first_models_of_their_own_make_the_first_gradient_unknown(tmp_path: Path) -> None:
    """Every gradient but that of the first update is recovered, against autograd."""
    trace = trace_of(tmp_path, 3, averaging(own_start=True), params={"alpha": 0.05, "samples": 1})
    x, y = data(3)
    assert "w0" not in trace.public
    assert "first models differ" in trace.provenance["tap"]["notes"][0]
    for leak in la.leaks(trace):
        assert leak.theta is not None
        assert (leak.combination != 0).sum() == 4
        for theta, value in zip(
            leak.theta, torch.linalg.pinv(leak.combination) @ leak.value, strict=True
        ):
            assert torch.allclose(
                value, TASK.gradient(theta, x[leak.node], y[leak.node]), atol=1e-10
            )


# --- a server, or a sum -----------------------------------------------------------------------------------------------


def gathering(server: int | None, step: float, divided: bool = False) -> Write:
    """FedSGD over three clients: gradients to a rank, which sends the model, or into a sum; step of
    the model.
    """

    def write(logs: Sequence[Log]) -> None:
        x, y = data(3)
        clients = [k for k in range(len(logs)) if k != server]
        w = start()
        for t in range(4):
            g = TASK.gradients(w.repeat(3, 1), x, y)
            for n, rank in enumerate(clients):
                if server is None:
                    logs[rank].write("allreduce", g[n] / 3 if divided else g[n])
                else:
                    logs[server].write("send", w, peer=rank)
                    logs[rank].write("send", g[n], peer=server)
            if server is None and t == 0:
                logs[0].write("broadcast", w)
            w = w - step * (1.0 if t % 2 else 1.5 if step < 0 else 1.0) * g.mean(0)

    return write


@pytest.mark.parametrize(("server", "ranks"), [(0, 4), (2, 4), (None, 3)])
def test_gradients_to_a_server_or_into_a_sum_are_leaks_of_single_gradients(
    tmp_path: Path, server: int | None, ranks: int
) -> None:
    trace = trace_of(
        tmp_path, ranks, gathering(server, 0.2), payload="gradients", params={"samples": 1}
    )
    assert (trace.protocol, trace.graph.nodes, trace.rounds) == ("fedsgd", 4, 4)
    assert torch.equal(trace.public["w0"], start())
    x, y = data(3)
    leaks = la.leaks(trace)
    assert len(leaks) == 3
    for leak in leaks:
        values = torch.linalg.pinv(leak.combination) @ leak.value
        assert len(values) == 4
        if server is not None:
            assert leak.theta is not None
            assert trace.params["lr"] == pytest.approx(0.2)
            own = [TASK.gradient(theta, x[leak.node], y[leak.node]) for theta in leak.theta]
            assert torch.allclose(values, torch.stack(own), atol=1e-10)
        else:
            assert torch.allclose(
                values[0], TASK.gradient(start(), x[leak.node], y[leak.node]), atol=1e-10
            )


def test_nothing_is_derived_from_a_step_that_is_not_known(tmp_path: Path) -> None:
    """A server that moves along the gradient: gradients and models stay as they were sent."""
    trace = trace_of(tmp_path, 4, gathering(3, -0.2), payload="gradients", params={"samples": 1})
    assert trace.params["server"] == "unknown"
    (why,) = [n for n in trace.provenance["tap"]["notes"] if "optimiser is not known" in n]
    assert "none of those that leakaudit tests predicts the models, but 3 steps are too few" in why
    assert "momentum and weight decay (record at least 6 rounds)" in why
    x, y = data(3)
    for leak in la.leaks(trace):
        assert leak.theta is not None
        for theta, value in zip(
            leak.theta, torch.linalg.pinv(leak.combination) @ leak.value, strict=True
        ):
            assert torch.allclose(
                value, TASK.gradient(theta, x[leak.node], y[leak.node]), atol=1e-10
            )


def test_a_scale_makes_the_gradient_of_what_was_sent(tmp_path: Path) -> None:
    sent = trace_of(
        tmp_path,
        3,
        gathering(None, 0.2, divided=True),
        payload="gradients",
        params={},
        messages={"scale": 3.0},
    )
    (leak, *_) = la.leaks(sent)
    x, y = data(3)
    value = (torch.linalg.pinv(leak.combination) @ leak.value)[0]
    assert torch.allclose(value, TASK.gradient(start(), x[0], y[0]), atol=1e-10)


def test_a_server_that_is_none_of_the_ranks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LeakauditError, match="rank 9 does not exist"):
        trace_of(
            tmp_path, 4, gathering(0, 0.2), payload="gradients", params={}, messages={"server": 9}
        )


# --- guesses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["combine", "adapt"])
def test_a_guess_finds_step_order_and_model_and_its_text_says_the_same(
    tmp_path: Path, order: str
) -> None:
    found = guess(logged(tmp_path, 3, averaging(order)))
    assert found.description is not None
    assert dict(found.description.params) == {"alpha": 0.05, "order": order, "samples": 1}
    assert found.description.task.layout.size == D
    assert found.description.task.spec.levels == 255
    assert description.of(tomllib.loads(found.toml)).params == found.description.params
    assert any("gradient recomputed" in line for line in found.evidence)


@pytest.mark.parametrize(
    ("order", "constants"),
    [
        ("combine", {"momentum": 0.9}),
        ("combine", {"decay": 0.001}),
        ("adapt", {"decay": 0.001}),
        ("combine", {"momentum": 0.8, "nesterov": True, "decay": 0.001}),
    ],
    ids=str,
)
def test_a_guess_names_the_optimiser_of_the_nodes(
    tmp_path: Path, order: str, constants: dict[str, Any]
) -> None:
    """The trace that it makes gives back every gradient, against autograd."""
    write = averaging(order, rounds=8, optimiser=Optimiser("sgd", **constants))
    logs = logged(tmp_path / "log", 3, write)
    found = guess(logs)
    assert found.description is not None
    expected = {"alpha": 0.05, "order": order, "samples": 1, **constants}
    assert dict(found.description.params) == expected
    assert contradictions(found.description, logs) == []
    plain = replace(found.description, params={"alpha": 0.05, "order": order})
    assert contradictions(plain, logs)
    merge.write(wires.plan(found.description, logs), logs, tmp_path / "trace.pt")
    x, y = data(3)
    leaks = la.leaks(trace_file.load(tmp_path / "trace.pt"))
    assert len(leaks) == 3
    for leak in leaks:
        assert leak.theta is not None
        values = torch.linalg.pinv(leak.combination) @ leak.value
        for theta, value in zip(leak.theta, values, strict=True):
            own = TASK.gradient(theta, x[leak.node], y[leak.node])
            torch.testing.assert_close(value, own, atol=1e-9, rtol=1e-6)


def test_momentum_whose_first_step_was_not_observed_is_not_known(tmp_path: Path) -> None:
    momentum = Optimiser(momentum=0.9)
    found = guess(logged(tmp_path, 3, averaging("adapt", rounds=8, optimiser=momentum)))
    assert found.description is None
    assert "params.alpha, params.order, params.optimiser" in found.said


@pytest.mark.parametrize("kind", ["adam", "adamw", "adagrad"])
def test_steps_that_hide_the_records_are_not_called_sgd(tmp_path: Path, kind: Kind) -> None:
    found = guess(logged(tmp_path, 3, averaging(rounds=8, optimiser=Optimiser(kind))))
    assert found.description is None
    assert "params.optimiser" in found.said
    assert 'optimiser = "NOT KNOWN"' in found.toml


def consensus(sign: int, rounds: int = 4) -> Write:
    """PDMM on a triangle with alpha = 0.03, rho = 0.7, gradient steps; sign = -1: A_ij = -1 for i <
    j.
    """

    def write(logs: Sequence[Log]) -> None:
        x, y = data(3)
        w, arcs = start().repeat(3, 1), [(i, j) for i in range(3) for j in range(3) if i != j]
        a = {(i, j): sign if i < j else -sign for i, j in arcs}
        z = dict.fromkeys(arcs, torch.zeros(D, dtype=torch.float64))  # z[i, j]: held by i
        for _ in range(rounds):
            g = TASK.gradients(w, x, y)
            pull = torch.stack(
                [
                    torch.stack([a[i, j] * z[i, j] for j in range(3) if j != i]).sum(0)
                    for i in range(3)
                ]
            )
            w = w - 0.03 * (g + pull + 0.7 * 2 * w)
            sent = {(i, j): z[i, j] + 2 * 0.7 * a[i, j] * w[i] for i, j in arcs}
            for i, j in arcs:
                for part in TASK.layout.split(sent[i, j]).values():
                    logs[i].write("send", part, peer=j)
            z = {(j, i): sent[i, j] for i, j in arcs}

    return write


@pytest.mark.parametrize("order", ["combine", "adapt"])
def test_a_description_that_contradicts_the_messages_is_found_out(
    tmp_path: Path, order: str
) -> None:
    logs = logged(tmp_path, 3, averaging(order))
    right = guess(logs).description
    assert right is not None
    assert contradictions(right, logs) == []
    other = {"combine": "adapt", "adapt": "combine"}[order]
    (line,) = contradictions(replace(right, params={**right.params, "order": other}), logs)
    assert line.startswith(f"params.order: '{other}' contradicts the messages")
    (line,) = contradictions(replace(right, params={**right.params, "alpha": 0.06}), logs)
    assert line == "params.alpha: 0.06 contradicts the messages, which show 0.05"


def test_a_confirmation_names_what_no_gradient_confirms(tmp_path: Path) -> None:
    logs = logged(tmp_path / "same", 3, averaging(rounds=14))
    right = guess(logs).description
    assert right is not None
    assert doubt(right, logs) == ""
    logs = logged(tmp_path / "changes", 3, averaging(rounds=14, late=0.025))
    assert contradictions(right, logs) == []
    assert doubt(right, logs).startswith(
        "sgd, step size 0.05 explains the first steps, but not step 11"
    )
    tanh = replace(right.task.spec, args={"hidden": "6", "act": "tanh"})
    other = replace(right, task=Task.build(tanh))
    assert doubt(other, logs).startswith("no recomputed gradient equals those of the messages")


def test_nesterov_momentum_contradicts_a_description_without_it(tmp_path: Path) -> None:
    optimiser = Optimiser(momentum=0.8, nesterov=True)
    logs = logged(tmp_path, 3, averaging(rounds=8, optimiser=optimiser))
    right = guess(logs).description
    assert right is not None
    (line,) = contradictions(replace(right, params={**right.params, "nesterov": False}), logs)
    assert line == "params.nesterov: False contradicts the messages, which show True"


def test_no_other_protocol_describes_the_sums_of_opacus() -> None:
    stated = PrivateGradients((), (0, 1), None, params={"clip": 1.0, "sigma": 0.0, "noisy": "all"})
    assert list(confirm._of_private(described(), stated)) == [
        "protocol: dpsgd contradicts the program: Opacus sends clipped gradients"
    ]


def test_duals_contradict_a_wrong_penalty(tmp_path: Path) -> None:
    logs = logged(tmp_path, 3, consensus(1))
    right = guess(logs).description
    assert right is not None
    assert contradictions(right, logs) == []
    (line,) = contradictions(replace(right, params={**right.params, "rho": 0.4}), logs)
    assert line == "params.rho: 0.4 contradicts the messages, which show 0.7"
    (line,) = contradictions(replace(right, scale=-1.0), logs)
    assert line == "messages.scale: -1 contradicts the messages, which show 1"


@pytest.mark.parametrize("sign", [1, -1])
def test_a_guess_finds_the_constants_behind_duals_of_either_sign(tmp_path: Path, sign: int) -> None:
    """The description that it writes gives back every gradient after the first round, against
    autograd.
    """
    logs = logged(tmp_path / "log", 3, consensus(sign))
    found = guess(logs)
    assert found.description is not None
    assert found.description.params["alpha"] == 0.03
    assert found.description.params["rho"] == 0.7
    assert found.description.scale == sign
    merge.write(wires.plan(found.description, logs), logs, tmp_path / "trace.pt")
    x, y = data(3)
    leaks = la.leaks(trace_file.load(tmp_path / "trace.pt"))
    assert len(leaks) == 3
    for leak in leaks:
        assert leak.theta is not None
        for theta, value in zip(
            leak.theta, torch.linalg.pinv(leak.combination) @ leak.value, strict=True
        ):
            assert torch.allclose(
                value, TASK.gradient(theta, x[leak.node], y[leak.node]), atol=1e-9
            )


def test_a_guess_takes_the_model_that_is_named(tmp_path: Path) -> None:
    task = Task.build(la.TaskSpec("mlp", {"hidden": "6", "act": "relu"}, shape=(16,), classes=3))
    found = guess(logged(tmp_path, 3, averaging()), task)
    assert found.description is not None
    assert found.description.task.spec.shape == (16,)
    assert found.description.params["alpha"] == 0.05


@pytest.mark.parametrize("rounds", [1, 4])
def test_messages_of_a_single_rank_are_not_named(tmp_path: Path, rounds: int) -> None:
    """A server that stopped before any client answered: models, but nothing to compare them with.

    FedLab's example does so.
    """
    random = Generator().manual_seed(0)

    def write(logs: Sequence[Log]) -> None:
        for t in range(rounds):
            model = start() + 0.01 * t * torch.randn(D, generator=random, dtype=torch.float64)
            logs[0].write("send", model, peer=1)

    found = guess(logged(tmp_path, 2, write))
    assert found.description is None
    assert found.said.startswith("payload NOT KNOWN, protocol NOT KNOWN; to be filled in: payload")
    assert "only one rank sends, so no comparison shows what is sent" in found.toml


def test_a_guess_does_not_invent_a_model(tmp_path: Path) -> None:
    """Messages without a gradient in them: weights are seen, step and model are asked for."""

    def write(logs: Sequence[Log]) -> None:
        random, w = (
            Generator().manual_seed(0),
            torch.randn(500, generator=Generator().manual_seed(1)),
        )
        for _ in range(4):
            for i, log in enumerate(logs):
                log.write("send", w + 0.01 * torch.randn(500, generator=random), peer=1 - i)

    found = guess(logged(tmp_path, 2, write))
    assert found.description is None
    gaps = "params.alpha, params.order, params.optimiser, model.name, model.shape, model.classes"
    assert found.said == f"weights (likely), dpsgd; to be filled in: {gaps}"
    assert 'alpha = "NOT KNOWN"' in found.toml
    with pytest.raises(LeakauditError, match=r"params\.alpha: still NOT KNOWN; enter the value"):
        description.of(tomllib.loads(found.toml))
    filled = found.toml.replace('alpha = "NOT KNOWN"', "alpha = 0.1")
    filled = filled.replace('order = "NOT KNOWN"', 'order = "adapt"')
    filled = filled.replace('optimiser = "NOT KNOWN"', 'optimiser = "sgd"')
    with pytest.raises(LeakauditError, match=r"model\.name: still NOT KNOWN"):
        description.of(tomllib.loads(filled))


@pytest.mark.parametrize("server", [0, 1, 3])
@pytest.mark.parametrize("step", [0.2, -0.2])
def test_models_down_and_gradients_up_are_not_guessed_as_duals(
    tmp_path: Path, server: int, step: float
) -> None:
    """What client and server add to each other's last message is w' - g and g' - w: nearly
    opposite.
    """
    logs = logged(tmp_path, 4, gathering(server, step))
    seen = observed.collect(logs, None)
    assert np.median(list(payloads._swaps(seen))) < payloads.OPPOSED
    assert min(payloads._kept(seen)) > 5 * payloads.KEPT
    assert not any(payloads._wires_agree(seen))
    assert payloads.payload(seen).sure == "unknown"
    found = guess(logs)  # a recomputed gradient shows it
    assert found.said.startswith("gradients (sure), fedsgd; ")


@pytest.mark.parametrize("clients", [2, 3, 4, 8])
@pytest.mark.parametrize("server", [False, True])
def test_equal_gradients_are_never_guessed_as_models_for_sure(
    tmp_path: Path, server: bool, clients: int
) -> None:
    """Clients with the same data send the same, as models in consensus do; only a server's model
    lies elsewhere.
    """

    def write(logs: Sequence[Log]) -> None:
        x, y = data(1)
        w = start()[None]
        for _ in range(4):
            g = TASK.gradients(w, x, y)
            for n in range(clients):
                if server:
                    logs[-1].write("send", w[0], peer=n)
                    logs[n].write("send", g[0], peer=clients)
                else:
                    for other in set(range(clients)) - {n}:
                        logs[n].write("send", g[0], peer=other)
            w = w - 0.05 * g

    ranks = clients + server
    sent = payloads.payload(observed.collect(logged(tmp_path, ranks, write), TASK))
    assert sent.sure == "unknown"


@pytest.mark.parametrize("sign", [1, -1])
def test_duals_are_sure_because_all_wires_of_a_node_show_the_same_model(
    tmp_path: Path, sign: int
) -> None:
    sent = payloads.payload(observed.collect(logged(tmp_path, 3, consensus(sign)), TASK))
    assert (sent.payload, sent.sure) == ("duals", "sure")


def test_clients_that_send_the_way_to_their_optimum_are_never_sure_to_send_duals(
    tmp_path: Path,
) -> None:
    """Their model and their message have a constant sum, as two neighbours' duals do."""

    def write(logs: Sequence[Log]) -> None:
        random = Generator().manual_seed(0)
        w = torch.randn(40, generator=random)
        optima = 0.1 * w + 0.01 * torch.randn(3, 40, generator=random)
        for _ in range(4):
            ways = optima - w
            for n, way in enumerate(ways, 1):
                logs[0].write("send", w, peer=n)
                logs[n].write("send", way, peer=0)
            w = w + ways.mean(0)

    sent = payloads.payload(observed.collect(logged(tmp_path, 4, write), None))
    assert sent.sure != "sure"


def test_answers_that_are_no_models_have_no_protocol(tmp_path: Path) -> None:
    """Five epochs of Adam move a client's model so far that it looks like something else."""

    def write(logs: Sequence[Log]) -> None:
        random = Generator().manual_seed(0)
        w = torch.randn(40, generator=random)
        for t in range(1, 4):
            answers = torch.randn(2, 40, generator=random)
            for n in range(2):
                logs[2].write("send", w, peer=n, round=t, server=2)
                logs[n].write("send", answers[n], peer=2, round=t, server=2)
            w = answers.mean(0)

    found = guess(logged(tmp_path, 3, write))
    assert found.said.startswith("payload NOT KNOWN, protocol NOT KNOWN; ")


def hooked(gradient: Tensor, step: float) -> Write:
    """Two ranks whose hook of DistributedDataParallel averages a gradient of 20 + 1 numbers."""

    def write(logs: Sequence[Log]) -> None:
        places = {"lane": "model 0", "of": 2, "parameters": [0, 1], "last": True}
        w = torch.ones(21)
        for _ in range(4):
            logs[0].write("model", w, **places, sizes=[20, 1], names=["weight", "bias"])
            for log in logs:
                log.write("ddp", gradient, **places)
            w = w - step * gradient

    return write


def test_gradients_of_zeros_name_neither_a_direction_nor_a_loss(tmp_path: Path) -> None:
    """The tutorial of torch on DistributedDataParallel applies cross_entropy to one output, so that
    its loss and its gradients are zero.
    """
    logs = logged(tmp_path / "log", 2, hooked(torch.zeros(21), 0.1))
    found = guess(logs)
    assert found.said == "gradients (sure), fedsgd; to be filled in: model.loss"
    assert any("gradients, which are zero" in line for line in found.evidence)
    assert not any("direction" in line for line in found.evidence)
    entered = description.of(tomllib.loads(found.toml.replace('"NOT KNOWN"', '"binary"')))
    plan = wires.plan(entered, logs)
    assert plan.description.params["server"] == "unknown"
    assert any("the models do not move" in note for note in plan.notes)


def test_models_that_hardly_move_are_not_called_coarse(tmp_path: Path) -> None:
    """A first step of a warm-up is often as small as the rounding of the models."""
    logs = logged(tmp_path / "log", 2, hooked(torch.linspace(1.0, 2.0, 21), 1e-6))
    stated = {"name": "logistic", "shape": [20], "classes": 2, "loss": "binary"}
    plan = wires.plan(described(payload="gradients", params={}, model=stated), logs)
    assert any("move too little" in note for note in plan.notes)


def test_vectors_of_zeros_that_no_hook_logged_are_not_known(tmp_path: Path) -> None:
    def write(logs: Sequence[Log]) -> None:
        for _ in range(4):
            for log in logs:
                log.write("allreduce", torch.zeros(21))

    sent = payloads.payload(observed.collect(logged(tmp_path, 2, write), None))
    assert sent.sure == "unknown"


def one_output(payload: str, hidden: int = 0, rounds: int = 4) -> Write:
    """Two ranks send the parameters of a model of 9 inputs and one output one by one."""
    sizes = (9 * hidden, hidden, hidden, 1) if hidden else (9, 1)

    def write(logs: Sequence[Log]) -> None:
        random = Generator().manual_seed(0)
        near = torch.randn(sum(sizes), generator=random)
        held = {0: torch.zeros(sum(sizes)), 1: torch.zeros(sum(sizes))}
        for _ in range(rounds):
            noise = torch.randn(2, sum(sizes), generator=random)
            models = near + 0.01 * noise
            sent = {
                "gradients": noise,
                "weights": models,
                "duals": torch.stack([held[0] + models[0], held[1] - models[1]]),
            }[payload]
            for i, log in enumerate(logs):
                for part in sent[i].split(sizes):
                    if payload == "gradients":
                        log.write("allreduce", part.clone())
                    else:
                        log.write("send", part.clone(), peer=1 - i)
            held = {0: sent[1], 1: sent[0]}

    return write


@pytest.mark.parametrize("hidden", [0, 1, 4])
@pytest.mark.parametrize("payload", ["gradients", "weights", "duals"])
def test_a_model_with_one_output_is_guessed_from_the_lengths_of_its_tensors(
    tmp_path: Path, payload: str, hidden: int
) -> None:
    """Its one row always has rank one, which proves nothing; the guess does not say that it
    does.
    """
    found = guess(logged(tmp_path, 2, one_output(payload, hidden)))
    said = "payload NOT KNOWN" if payload == "gradients" else f"{payload} ("
    assert found.said.startswith(said)
    assert not any("gradient recomputed" in line for line in found.evidence)
    model = tomllib.loads(found.toml)["model"]
    if payload != "duals" and hidden == 4:  # noise: not of rank one
        assert "model.name" in found.said
        return
    assert (model["name"], model["shape"]) == ("mlp" if hidden else "logistic", [9])
    assert (model["loss"], model["classes"]) == ("NOT KNOWN", 2)
    assert any("one output fits loss binary as well as squared" in e for e in found.evidence)


def test_a_model_of_another_size_is_refused_by_a_guess(tmp_path: Path) -> None:
    task = Task.build(la.TaskSpec("logistic", shape=(1, 9, 9), classes=3))
    with pytest.raises(LeakauditError, match="no message of the model's size"):
        guess(logged(tmp_path, 3, averaging()), task)


def test_widths_are_all_networks_of_a_size() -> None:
    assert (625, 128, 2) in set(widths(80386, ()))
    assert all(
        (n + 1) * h + (h + 1) * c == 80386
        for n, h, c in (w for w in widths(80386, ()) if len(w) == 3)
    )
    assert list(widths(80386, (80000, 128, 256, 2))) == [(625, 128, 2)]
    assert (image(625), image(3072), image(17)) == ((1, 25, 25), (3, 32, 32), (17,))
