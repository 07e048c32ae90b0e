"""Messages in the wire format: three kinds of payload files, orders and axes, kinds, incomplete and
hostile folders. The messages are those of a small training run, so that what is inferred is known.
"""

from __future__ import annotations

import json
import os
import runpy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.capture.tap.messages import layouts
from leakaudit.capture.wire import folder as wire_folder
from leakaudit.cli import main
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Layout, Trace
from leakaudit.tasks.task import Task
from leakaudit.traces import trace_file

TASK = Task.build(
    la.TaskSpec("mlp", {"hidden": "6"}, shape=(1, 4, 4), classes=3), dtype=torch.float64
)
NAMES = TASK.layout.names
D = TASK.layout.size
ALPHA = 0.05
DESCRIPTION = f"""
payload = "weights"
[params]
alpha = {ALPHA}
[model]
name = "mlp"
args = {{ hidden = "6" }}
shape = [1, 4, 4]
classes = 3
"""
JAX_NAMES = ("a/bias", "a/kernel", "b/bias", "b/kernel")
JAX_ORDER = ("layer1.bias", "layer1.weight.T", "layer2.bias", "layer2.weight.T")
Send = Callable[..., None]


@pytest.fixture
def send(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Send:
    """The writer that the documentation shows, for a folder ``messages`` of the working folder."""
    monkeypatch.chdir(tmp_path)
    record: Send = runpy.run_path(str(project / "examples" / "wire" / "wire.py"))["record_message"]

    def write(*args: Any, **more: Any) -> None:
        record("messages", *args, **more)

    return write


def models(task: Task = TASK, rounds: int = 5) -> list[Tensor]:
    """D-PSGD on a triangle from a common start: the three models (3, d) of each round."""
    random = Generator().manual_seed(5)
    x = torch.randint(0, 256, (3, 1, *task.spec.shape), generator=random).double() / 255
    y = torch.arange(3)[:, None] % task.spec.classes
    w = task.init(Generator().manual_seed(1)).repeat(3, 1)
    found = []
    for _ in range(rounds):
        found.append(w.float())
        w = w.mean(0, keepdim=True).expand(3, -1) - ALPHA * task.gradients(w, x, y)
    return found


def as_torch(task: Task, w: Tensor) -> dict[str, np.ndarray]:
    """The parameters of a model (d,) by name, as PyTorch holds them."""
    return {name: part.numpy() for name, part in task.layout.split(w).items()}


def as_jax(w: Tensor) -> dict[str, np.ndarray]:
    """The parameters sorted by name, with kernels as (in, out)."""
    own = as_torch(TASK, w)
    sent = {}
    for name, parameter in zip(JAX_NAMES, JAX_ORDER, strict=True):
        sent[name] = own[parameter.removesuffix(".T")].T
    return sent


def others(node: int) -> list[int]:
    return [j for j in range(3) if j != node]


def sent(
    send: Send, form: Callable[[Tensor], Mapping[str, np.ndarray]], task: Task = TASK, **more: Any
) -> None:
    """Write all messages of the run."""
    for t, w in enumerate(models(task)):
        for i in range(3):
            send(t, i, others(i), form(w[i]), **more)


def imported(
    *options: str, describe: str = "", code: int = 0, partial: bool = False
) -> Trace | None:
    """Import the messages; partial: some that the protocol sends are missing, which is code 3."""
    if describe:
        Path("own.toml").write_text(describe)
        options = (*options, "--describe", "own.toml")
    expected = 3 if partial else code
    assert main(["trace", "import", "messages", "-o", "trace.pt", *options]) == expected
    if code:
        assert not Path("trace.pt").exists()
        assert not list(Path().glob(".import-*"))
        return None
    return trace_file.load(Path("trace.pt"))


def held(trace: Trace | None) -> dict[tuple[int, int, int], Tensor]:
    """(round, src, dst) -> payload."""
    assert trace is not None
    (m,) = trace.messages
    return {
        (int(m.round[k]), int(m.src[k]), int(m.dst[k])): m.payload[int(m.row[k])]
        for k in range(len(m))
    }


def check(trace: Trace | None, task: Task = TASK) -> None:
    """The trace contains the models of the run, bit for bit."""
    assert trace is not None
    run = models(task)
    assert torch.equal(trace.public["w0"], run[0][0])
    found = held(trace)
    assert len(found) == 4 * 6
    for (t, i, _), value in found.items():
        assert torch.equal(value, run[t][i])


# --- what is inferred and what is described -----------------------------------------------------


@pytest.mark.parametrize(
    "form", [lambda w: as_torch(TASK, w), as_jax, lambda w: {"flat": w.numpy()}]
)
def test_model_constants_order_and_axes_are_inferred(
    send: Send,
    form: Callable[[Tensor], Mapping[str, np.ndarray]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    sent(send, form)
    check(imported())
    said = capsys.readouterr().err
    assert "dpsgd; alpha=0.05 order=combine samples=1; mlp hidden=6 act=relu" in said
    assert "recomputed gradients confirm the model and the order" in said


def test_a_flat_vector_in_another_order_is_not_known_until_it_is_described(
    send: Send, capsys: pytest.CaptureFixture[str]
) -> None:
    sent(send, lambda w: {"flat": np.concatenate([a.ravel() for a in as_jax(w).values()])})
    imported(code=3)
    draft = Path("trace.toml").read_text()
    assert 'name = "NOT KNOWN"' in draft
    assert "--describe trace.toml" in capsys.readouterr().err
    order = f"[messages]\norder = {json.dumps(JAX_ORDER)}"
    check(imported(describe=DESCRIPTION + order))
    # Axes that no shape contradicts are contradicted by the gradients.
    Path("trace.pt").unlink()
    wrong = order.replace(".T", "")
    imported(describe=DESCRIPTION + wrong, code=2)
    said = capsys.readouterr().err
    assert "messages.order: [layer1.bias, layer1.weight, layer2.bias, layer2.weight]" in said
    assert "show [layer1.bias, layer1.weight.T, layer2.bias, layer2.weight.T]" in said


def test_square_kernels_that_are_described_wrongly_contradict_the_gradients(
    send: Send, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = la.TaskSpec("mlp", {"hidden": "16,16"}, shape=(1, 4, 4), classes=3)
    task = Task.build(spec, dtype=torch.float64)
    sent(send, lambda w: {f"{k}": a.T for k, a in enumerate(as_torch(task, w).values())}, task)
    describe = DESCRIPTION.replace('"6"', '"16,16"')
    right = ["layer1.weight.T", "layer1.bias", "layer2.weight.T", "layer2.bias"]
    right += ["layer3.weight.T", "layer3.bias"]
    wrong = [*right[:2], "layer2.weight", *right[3:]]
    imported(describe=f"{describe}[messages]\norder = {json.dumps(wrong)}", code=2)
    assert f"show [{', '.join(right)}]" in capsys.readouterr().err
    check(imported(describe=f"{describe}[messages]\norder = {json.dumps(right)}"), task)


def test_tensors_with_other_names_need_an_order_and_the_error_suggests_it(
    send: Send, capsys: pytest.CaptureFixture[str]
) -> None:
    sent(send, as_jax)
    imported(describe=DESCRIPTION, code=2)
    said = capsys.readouterr().err
    assert "messages.jsonl, line 1: tensors (a/bias 6, a/kernel 16x6, b/bias 3" in said
    assert f"[messages] order = {json.dumps(JAX_ORDER)}" in said
    check(imported(describe=f"{DESCRIPTION}[messages]\norder = {json.dumps(JAX_ORDER)}"))


def test_an_order_with_the_wrong_axes_contradicts_the_shapes(
    send: Send, capsys: pytest.CaptureFixture[str]
) -> None:
    sent(send, as_jax)
    order = json.dumps([name.removesuffix(".T") for name in JAX_ORDER])
    imported(describe=f"{DESCRIPTION}[messages]\norder = {order}", code=2)
    said = capsys.readouterr().err
    assert "'a/kernel' has shape [16, 6], but layer1.weight has shape [6, 16]" in said


def test_the_axes_of_a_convolution_are_turned() -> None:
    layout = Layout(("conv.weight", "conv.bias"), ((4, 3, 5, 2), (4,)))
    own = torch.arange(4 * 3 * 5 * 2).reshape(4, 3, 5, 2)
    place, _ = layouts.places(["conv.weight.HWIO", "conv.bias"], layout)
    message = torch.from_numpy(np.ascontiguousarray(own.numpy().transpose(2, 3, 1, 0)))
    assert place.shape == (5, 2, 3, 4)
    assert torch.equal(place.arranged(message.reshape(-1)), own.reshape(-1))
    with pytest.raises(la.LeakauditError, match=r"suffix .T is for parameters with 2 axes"):
        layouts.places(["conv.weight.T", "conv.bias"], layout)


def test_shapes_that_allow_both_axes_and_gradients_that_prove_none_leave_a_gap(send: Send) -> None:
    square = np.random.default_rng(0).standard_normal((5, 5)).astype(np.float32)
    for i in range(3):
        send(0, i, others(i), {"w": square, "b": square[0] + 0.01 * i})
    imported(code=3)
    said = Path("trace.toml").read_text()
    assert 'payload = "NOT KNOWN"' in said  # vectors alone never prove gradients
    assert "\norder = " not in said


def test_the_first_layer_shows_the_axes_of_a_square_kernel_without_any_model(send: Send) -> None:
    task = Task.build(la.TaskSpec("logistic", shape=(4,), classes=4), dtype=torch.float64)
    x = torch.rand(2, 1, 4, generator=Generator().manual_seed(0), dtype=torch.float64)
    w = task.init(Generator().manual_seed(1))
    g = task.gradients(w.repeat(2, 1), x, torch.tensor([[0], [1]]))
    for t in range(3):
        for i in range(2):
            send(t, i, 2, {name: part.T for name, part in as_torch(task, g[i]).items()})
    imported(code=3)
    said = Path("trace.toml").read_text()
    assert 'order = ["linear.weight.T", "linear.bias"]' in said
    said = said.replace('payload = "NOT KNOWN"', 'payload = "gradients"')
    said = said.replace('protocol = "NOT KNOWN"', 'protocol = "fedsgd"')
    trace = imported(
        describe=said.replace("[params]", '[params]\nserver = "unknown"'), partial=True
    )
    assert trace is not None
    assert trace.params["server"] == "unknown"
    assert torch.equal(held(trace)[1, 0, 2], g[0].float())


def test_gradients_that_a_program_scales_are_found_or_contradicted(
    send: Send, capsys: pytest.CaptureFixture[str]
) -> None:
    task = Task.build(la.TaskSpec("logistic", shape=(1, 4, 4), classes=3), dtype=torch.float64)
    x = torch.randint(0, 256, (2, 1, 1, 4, 4), generator=Generator().manual_seed(0)).double() / 255
    w = task.init(Generator().manual_seed(1))
    for t in range(4):
        send(t, 2, "all", as_torch(task, w))
        g = task.gradients(w.repeat(2, 1), x, torch.tensor([[0], [1]]))
        for i in range(2):
            send(t, i, 2, as_torch(task, -0.5 * g[i]))
        w = w - 0.1 * g.mean(0)
    trace = imported()
    assert "scale = -2.0" in Path("trace.toml").read_text()
    assert trace is not None
    assert trace.params["lr"] == 0.1
    describe = Path("trace.toml").read_text().replace("scale = -2.0", "scale = 1.0")
    Path("trace.pt").unlink()
    imported(describe=describe, code=2)
    assert "messages.scale: 1 contradicts the messages" in capsys.readouterr().err


def averaged(send: Send, steps: int, updates: bool, records: int = 1) -> None:
    """FedAvg: a server and three clients that take several local steps."""
    random = Generator().manual_seed(5)
    x = torch.randint(0, 256, (3, records, 1, 4, 4), generator=random).double() / 255
    y = torch.arange(3 * records).reshape(3, records) % 3
    w = TASK.init(Generator().manual_seed(1))
    for t in range(6):
        send(t, 3, "all", as_jax(w))
        own = w.repeat(3, 1)
        for _ in range(steps):
            own = own - ALPHA * TASK.gradients(own, x, y)
        for i in range(3):
            send(t, i, 3, as_jax(own[i] - w if updates else own[i]))
        w = own.mean(0)


def test_updates_of_one_step_are_gradients(send: Send) -> None:
    averaged(send, 1, updates=True)
    trace = imported()
    assert trace is not None
    assert trace.params["lr"] == ALPHA
    assert f"scale = {-1 / ALPHA}" in Path("trace.toml").read_text()


@pytest.mark.parametrize("steps", [1, 5])
def test_averaged_models_are_those_of_fedavg(send: Send, steps: int) -> None:
    averaged(send, steps, updates=False)
    trace = imported()
    assert trace is not None
    assert trace.protocol == "fedavg"
    constants = {name: trace.params[name] for name in ("lr", "epochs", "server")}
    assert constants == {"lr": ALPHA, "epochs": steps, "server": "mean"}


@pytest.mark.parametrize(
    ("steps", "updates", "records", "unknown"),
    [
        (5, True, 1, ["payload", "protocol"]),  # equal no gradient at the server's model
        # of several records, nothing proves that the vectors are gradients
        (1, True, 4, ["payload", "protocol", "model.name", "model.shape", "model.classes"]),
    ],
)
def test_what_is_not_proved_is_not_named(
    send: Send,
    steps: int,
    updates: bool,
    records: int,
    unknown: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    averaged(send, steps, updates, records)
    imported(code=3)
    assert f"to be filled in: {', '.join(unknown)};" in capsys.readouterr().err
    assert Path("trace.toml").read_text().count('"NOT KNOWN"') == len(unknown)


@pytest.mark.parametrize("rounds", [4, 6])
def test_noise_between_peers_is_not_named(
    send: Send, rounds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    for t in range(rounds):
        for i in range(3):
            shapes = {"b": (6,), "k": (16, 6)}
            send(t, i, others(i), {name: random.standard_normal(n) for name, n in shapes.items()})
    imported(code=3)
    said = capsys.readouterr().err
    assert "protocol NOT KNOWN; to be filled in: payload, protocol, model.name" in said
    assert ("then 'leakaudit trace equations' looks for" in said) == (rounds == 6)


@pytest.mark.slow
def test_an_unknown_protocol_is_recorded_and_its_equations_are_found(
    send: Send, capsys: pytest.CaptureFixture[str]
) -> None:
    random = Generator().manual_seed(5)
    x = torch.randint(0, 256, (3, 1, 1, 4, 4), generator=random).double() / 255
    y = torch.arange(3)[:, None]
    w = TASK.init(Generator().manual_seed(1)).repeat(3, 1)
    mixing = torch.tensor([[5, 3, 2], [1, 6, 3], [0, 3, 7]], dtype=torch.float64) / 10
    for t in range(9):
        for i in range(3):
            send(t, i, others(i), as_torch(TASK, w[i].float()))
        w = mixing @ w - ALPHA * TASK.gradients(w, x, y)
    imported(code=3)
    assert "then 'leakaudit trace equations' looks for its equations" in capsys.readouterr().err
    undeclared = DESCRIPTION.replace(f"[params]\nalpha = {ALPHA}\n", 'protocol = "own:mine"\n')
    trace = imported(describe=f"{undeclared}levels = 255\n")
    assert trace is not None
    assert trace.protocol == "own:mine"
    assert "next: leakaudit trace equations trace.pt" in capsys.readouterr().err
    assert main(["trace", "equations", "trace.pt", "-o", "mine.toml"]) == 0
    found = Path("mine.toml").read_text()
    assert '["1/2", "3/10", "1/5"], ["1/10", "3/5", "3/10"], ["0", "3/10", "7/10"]' in found


# --- files of payloads --------------------------------------------------------------------------


def written(lines: Sequence[Mapping[str, Any]], file: str = "messages.jsonl") -> None:
    Path("messages").mkdir(exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (Path("messages") / file).write_text(text)


def stored(form: Callable[[Path, Tensor], dict[str, Any]]) -> None:
    """Write all messages of the run, each in a file of its own."""
    Path("messages").mkdir()
    lines = []
    for t, w in enumerate(models()):
        for i in range(3):
            path = Path("messages") / f"{t}_{i}"
            lines.append({"round": t, "src": i, "dst": "all", **form(path, w[i])})
    written(lines)


def as_npy(path: Path, w: Tensor) -> dict[str, Any]:
    np.save(path.with_suffix(".npy"), w.numpy())
    return {"file": f"{path.name}.npy"}


def as_safetensors(path: Path, w: Tensor) -> dict[str, Any]:
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(part) for name, part in as_torch(TASK, w).items()}
    arrays["layer1.running_mean"] = np.ones(6, np.float32)
    arrays["steps"] = np.ones(1, np.int64)
    save_file(arrays, path.with_suffix(".safetensors"))
    return {"file": f"{path.name}.safetensors"}


def test_npy_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored(as_npy)
    check(imported())


def test_safetensors_are_matched_by_name_and_other_tensors_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    stored(as_safetensors)
    check(imported(describe=DESCRIPTION))
    said = capsys.readouterr().err
    assert "not part of the model, and left out: steps, layer1.running_mean" in said


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_messages_of_several_number_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Node 1 sends another format than the others; the trace has the widest."""
    monkeypatch.chdir(tmp_path)
    Path("messages").mkdir()
    lines = []
    wanted: dict[tuple[int, int], Tensor] = {}
    with Path("messages", "m.bin").open("wb") as file:
        for t, w in enumerate(models(), 1):
            for i in range(3):
                format = dtype if i == 1 else "float32"
                value = w[i].to(getattr(torch, format))
                wanted[t, i] = value
                line = {"round": t, "src": i, "dst": "all", "file": "m.bin"}
                line |= {"offset": file.tell(), "dtype": format, "shapes": [[D]]}
                lines.append(line)
                file.write(value.view(torch.uint8).numpy().tobytes())
    written(lines)
    trace = imported(
        describe=DESCRIPTION.replace("[params]", 'first = "update"\n[params]', 1),
        partial=dtype == "float64",  # models in float32 are rounded more than the trace's format
    )
    assert trace is not None
    widest = torch.float64 if dtype == "float64" else torch.float32
    assert trace.dtype == widest
    found = held(trace)
    assert len(found) == 5 * 6
    for (t, i, _), value in found.items():
        assert torch.equal(value, wanted[t, i].to(widest))


# --- rounds, kinds, incomplete folders ----------------------------------------------------------


def test_rounds_are_those_of_the_program_and_lines_may_be_in_any_order_and_file(
    send: Send,
) -> None:
    for i in (2, 0, 1):
        for t, w in reversed(list(enumerate(models()))):
            send(7 + t, i, others(i), as_torch(TASK, w[i]), file=f"messages-{i}")
    check(imported(describe=DESCRIPTION))


def test_a_round_that_is_missing_is_named_and_does_not_move_the_others(
    send: Send, capsys: pytest.CaptureFixture[str]
) -> None:
    for t, w in enumerate(models()):
        for i in range(3):
            if (t, i) != (2, 1):
                send(t, i, others(i), as_torch(TASK, w[i]))
    trace = imported(describe=DESCRIPTION, partial=True)
    assert trace is not None
    assert not trace.complete
    assert "messages 'w' 1 -> 0 of round 2: missing" in capsys.readouterr().err
    assert torch.equal(held(trace)[3, 1, 0], models()[3][1])


@pytest.mark.parametrize("part", ["line", "numbers", "file"])
def test_a_program_that_was_killed_leaves_an_incomplete_trace(
    send: Send, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sent(send, lambda w: as_torch(TASK, w))
    lines = Path("messages", "messages.jsonl")
    numbers = Path("messages", "messages.bin")
    if part == "line":
        lines.write_bytes(lines.read_bytes()[:-9])
    if part == "numbers":
        os.truncate(numbers, numbers.stat().st_size - 4)
    if part == "file":
        text = lines.read_text().rstrip().rsplit("\n", 1)
        lines.write_text(f"{text[0]}\n{text[1].replace('messages.bin', 'none.npy')}\n")
        last = json.loads(text[1])
        last = {key: last[key] for key in ("round", "src", "dst")} | {"file": "none.npy"}
        lines.write_text(f"{text[0]}\n{json.dumps(last)}\n")
    trace = imported(describe=DESCRIPTION, partial=True)
    assert trace is not None
    assert not trace.complete
    assert len(held(trace)) == 4 * 6 - 2
    said = capsys.readouterr().err
    assert "messages 'w' 2 -> 0 of round 4: their sender's process had terminated" in said
    assert "line 15" in said
    assert "so the trace is incomplete" in said


def test_a_last_line_without_line_break_is_complete(send: Send) -> None:
    sent(send, lambda w: as_torch(TASK, w))
    lines = Path("messages", "messages.jsonl")
    lines.write_text(lines.read_text().rstrip("\n"))
    trace = imported(describe=DESCRIPTION)
    check(trace)
    assert trace is not None
    assert trace.complete


def test_kinds_of_the_protocol_are_accepted_and_others_refused_with_the_nearest(
    send: Send, capsys: pytest.CaptureFixture[str]
) -> None:
    sent(send, lambda w: as_torch(TASK, w), kind="w")
    check(imported(describe=DESCRIPTION))
    Path("trace.pt").unlink()
    lines = Path("messages", "messages.jsonl")
    lines.write_text(lines.read_text().replace('"kind": "w"', '"kind": "W"'))
    imported(describe=DESCRIPTION, code=2)
    said = capsys.readouterr().err
    assert "line 1: dpsgd does not send messages of kind 'W'" in said
    assert "w" in said.split("kind 'W'")[1]


def test_a_kind_that_the_protocol_sends_in_the_other_direction_is_refused(
    send: Send, capsys: pytest.CaptureFixture[str]
) -> None:
    vector = {"v": np.ones(D, np.float32)}
    for t in range(2):
        send(t, 2, "all", vector, kind="g")
        for i in range(2):
            send(t, i, 2, vector, kind="w")
    describe = DESCRIPTION.replace("weights", "gradients").replace("alpha", "lr")
    imported(describe=describe, code=2)
    assert "has kind 'w', but such a message of fedsgd has kind 'g'" in capsys.readouterr().err


def test_several_messages_on_a_channel_in_a_round_have_to_be_described(
    send: Send, capsys: pytest.CaptureFixture[str]
) -> None:
    for t, w in enumerate(models()):
        for i in range(3):
            send(t, i, others(i), as_torch(TASK, w[i]), tag=0)
            send(t, i, others(i), {"loss": np.ones(1)}, tag=1)
    imported(code=3)
    draft = Path("trace.toml").read_text()
    assert "line 2: a second message of its round on its channel" in draft
    assert 'payload = "NOT KNOWN"' in draft
    assert 'protocol = "NOT KNOWN"' in draft
    imported(describe=draft, code=2)
    assert "still NOT KNOWN" in capsys.readouterr().err
    check(imported(describe=f"{DESCRIPTION}[messages]\ntags = [0]"))


def test_messages_of_another_size_are_not_ignored(
    send: Send, capsys: pytest.CaptureFixture[str]
) -> None:
    sent(send, lambda w: as_torch(TASK, w))
    send(9, 0, 1, {"loss": np.ones(1)}, tag=1)
    imported(code=2)
    said = capsys.readouterr().err
    assert "line 16: tensors (loss 1) are not a model of 123 numbers" in said
    imported(describe=DESCRIPTION, code=2)
    assert "line 16: 1 numbers, but the model has 123" in capsys.readouterr().err


# --- what is refused ----------------------------------------------------------------------------

LINE: dict[str, Any] = {"round": 1, "src": 0, "dst": 1, "file": "m.bin"}
RAW = {**LINE, "dtype": "float32", "shapes": [[6]]}


def one(**values: Any) -> dict[str, Any]:
    return {**RAW, **values}


REFUSED: list[tuple[list[Any], str]] = [
    # the line
    (["{", RAW], "line 1: expected one JSON object"),
    (["[1, 2]", RAW], "line 1: expected one JSON object"),
    (["[" * 100_000, RAW], "line 1: expected one JSON object"),
    (["x" * (1 << 20), RAW], "line 1: longer than 1048576 bytes"),
    ([one(rond=1)], "unknown key 'rond'; did you mean 'round'?"),
    ([{"src": 0, "dst": 1, "file": "m.bin"}], "'round' is missing"),
    # numbers
    ([one(round=-1)], "round: expected a number from 0 to"),
    ([one(round=10**30)], "round: expected a number from 0 to"),
    ([one(round=1.5)], "round: expected a whole number, got 1.5"),
    ([one(round=True)], "round: expected a whole number, got True"),
    ([one(round=float("nan"))], "round: expected a whole number, got nan"),
    ([one(round="1")], "round: expected a whole number, got '1'"),
    ([one(round=0), one(round=2**31 - 1, src=1, dst=0)], "a message claims to be of round"),
    ([one(src=100_000)], "src: expected a number from 0 to 99999"),
    ([one(src=10**9)], "src: expected a number from 0 to 99999"),
    ([one(tag=1 << 48)], "tag: expected a number below 2^48"),
    ([one(tag=1 << 60)], "tag: expected a number below 2^48"),
    ([one(offset=-4)], "offset: expected a number from 0 to"),
    # receivers
    ([one(dst="everyone")], 'dst: expected a node, a list of nodes, or "all"'),
    ([one(dst=[])], "dst: expected at least one node"),
    ([one(dst=0)], "dst: node 0 sends to itself"),
    ([one(dst=[1, 1])], "dst: expected each node once"),
    ([one(dst=99_999)], "node 1 neither sends nor receives, but node 99999 does"),
    ([one(dst="all")], "dst: there is no other node"),
    ([RAW, RAW], "line 2: a second message of round 1 from 0 to 1 (the first:"),
    # paths
    ([one(file="../m.bin")], "is not inside the folder"),
    ([one(file="/etc/passwd")], "is not inside the folder"),
    ([one(file="link.bin")], "is not inside the folder"),
    ([one(file="fifo.bin")], "is not a regular file"),
    ([one(file=".")], "is not a regular file"),
    ([one(file="a\x00b")], "file: expected 1 to 500 printable characters"),
    ([one(file="a" * 501)], "file: expected 1 to 500 printable characters"),
    ([one(file="a" * 400)], "file: cannot read"),
    ([one(file="none.bin"), RAW], "line 1: file: 'none.bin' does not exist"),
    # payloads
    ([LINE], "dtype and shapes: both are needed for a raw file"),
    ([one(dtype="float8_e4m3fn")], "dtype: unsupported 'float8_e4m3fn'"),
    ([one(dtype="int32")], "dtype: unsupported 'int32'"),
    ([one(dtype="flot32")], "dtype: unsupported 'flot32'; did you mean 'float32'?"),
    ([one(shapes=[[6, -1]])], "shapes: expected up to 16 positive lengths"),
    ([one(shapes=[[0]])], "shapes: expected up to 16 positive lengths"),
    ([one(shapes=[])], "shapes: expected 1 to 10000 tensors, got 0"),
    ([one(shapes=[[1] * 17])], "shapes: expected up to 16 positive lengths"),
    ([one(shapes=[6])], "shapes: expected a list with the shape of each tensor"),
    ([one(shapes=[[1 << 39, 1 << 39]]), one(src=1, dst=0)], "exceed m.bin"),
    ([one(shapes=[[7]]), one(src=1, dst=0)], "line 1: shapes: 28 bytes from offset 0 on exceed"),
    ([one(names=["a", "b"])], "names: expected one for each of the 1 shapes, got 2"),
    ([one(names=["a", "a"])], "names: expected each tensor once"),
    ([one(names=["\x1b[2J"])], "names: expected 1 to 500 printable characters"),
    ([one(file="nan.bin")], "line 1: tensor number 1: 1 of 6 numbers are NaN or infinite"),
    ([one(file="inf.bin", names=["a"])], "line 1: tensor a: 1 of 6 numbers are NaN or infinite"),
    ([one(shapes=[[2, 2], [2]]), one(src=1, dst=0)], "line 2: tensors (6), but"),
    ([one(file="ok.npy")], "dtype: a .npy file states it itself"),
    ([{**LINE, "file": "object.npy"}, RAW], "cannot read object.npy as .npy"),
    ([{**LINE, "file": "cut.npy"}, RAW], "cannot read cut.npy as .npy"),
    ([{**LINE, "file": "whole.npy"}], "whole.npy holds int64; expected little-endian float16"),
    ([{**LINE, "file": "big.npy"}], "big.npy holds >f4; expected little-endian float16"),
    ([{**LINE, "file": "empty.npy"}], "empty.npy holds an empty array"),
    ([{**LINE, "file": "ok.npy", "names": ["a", "b"]}], "names: a .npy file holds one tensor"),
    ([{**LINE, "file": "cut.safetensors"}, RAW], "cannot read cut.safetensors as .safetensors"),
    ([{**LINE, "file": "odd.safetensors"}, RAW], "names: expected 1 to 500 printable characters"),
    ([{**LINE, "file": "worse.safetensors"}, RAW], "cannot read worse.safetensors"),
    ([{**LINE, "file": "ok.safetensors", "names": ["b"]}], "ok.safetensors has no tensor 'b'"),
    ([{**LINE, "file": "ok.safetensors", "names": ["i"]}], "tensor 'i' holds I64"),
    # the model
    ([one(shapes=[[5]])], "line 1: 5 numbers, but the model has 6"),
    ([one(shapes=[[3], [2], [1]])], "line 1: 3 tensors (3, 2, 1), but the model has 2 parameters"),
    ([one(shapes=[[4]], names=["linear.weight"])], "the message lacks 'linear.bias'"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with payloads of many kinds, for a model of six numbers."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "messages"
    path.mkdir()
    np.arange(6, dtype="<f4").tofile(path / "m.bin")
    np.array([0, 1, 2, 3, 4, np.nan], "<f4").tofile(path / "nan.bin")
    np.array([0, 1, 2, 3, 4, -np.inf], "<f4").tofile(path / "inf.bin")
    np.arange(6, dtype="<f4").tofile(tmp_path / "outside.bin")
    (path / "link.bin").symlink_to(tmp_path / "outside.bin")
    os.mkfifo(path / "fifo.bin")
    np.save(path / "ok.npy", np.ones(6, np.float32))
    np.save(path / "whole.npy", np.ones(6, np.int64))
    np.save(path / "big.npy", np.ones(6, ">f4"))
    np.save(path / "empty.npy", np.ones(0, np.float32))
    np.save(path / "object.npy", np.array([{}], object), allow_pickle=True)
    whole = (path / "ok.npy").read_bytes()
    (path / "cut.npy").write_bytes(whole[:-4])
    (path / "cut.safetensors").write_bytes(b"\xff" * 20)
    header = {"a": {"dtype": "F32", "shape": [6], "data_offsets": [0, 24]}}
    header["i"] = {"dtype": "I64", "shape": [1], "data_offsets": [24, 32]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    content = len(text).to_bytes(8, "little") + text + np.ones(6, "<f4").tobytes() + bytes(8)
    (path / "ok.safetensors").write_bytes(content)
    (path / "odd.safetensors").write_bytes(
        content.replace(b'{"a":', b'{"\\n":').replace(b"   ", b"  ", 1)
    )
    (path / "worse.safetensors").write_bytes(content.replace(b"F32", b"\\nF"))
    Path("own.toml").write_text(
        'payload = "weights"\nfirst = "update"\n[params]\nalpha = 0.1\n'
        '[model]\nname = "logistic"\nshape = [2]\nclasses = 2\n'
    )
    return path


@pytest.mark.parametrize(("lines", "complaint"), REFUSED, ids=[text for _, text in REFUSED])
def test_broken_and_hostile_lines_are_one_clear_line_and_leave_nothing(
    folder: Path, lines: list[Any], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "safetensors" in complaint or "I64" in complaint:
        pytest.importorskip("safetensors")
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "messages.jsonl").write_text("\n".join(texts) + "\n")
    before = sorted(path.name for path in Path().iterdir())
    command = ["trace", "import", "messages", "--describe", "own.toml", "-o", "no.pt"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
    assert "\x1b" not in said
    assert sorted(path.name for path in Path().iterdir()) == before


def test_the_valid_line_of_these_cases_is_accepted(folder: Path) -> None:
    """Otherwise they would prove nothing."""
    (folder / "messages.jsonl").write_text(json.dumps(RAW) + "\n")
    command = ["trace", "import", "messages", "--describe", "own.toml", "-o", "yes.pt"]
    assert main(command) == 3  # one of two messages, which is said
    assert held(trace_file.load(Path("yes.pt")))[1, 0, 1].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "line",
    [
        json.dumps(one(tag=(1 << 48) - 1)),
        json.dumps(one(shapes=[[1] * 15 + [6]])),
        json.dumps(one(names=["a" * 500])),
        json.dumps(RAW).ljust((1 << 20) - 1),
    ],
    ids=["tag", "axes", "name", "bytes of a line"],
)
def test_a_line_at_a_limit_is_accepted(folder: Path, line: str) -> None:
    """The next longer ones are among those that are refused above, but for the line itself."""
    (folder / "messages.jsonl").write_text(line + "\n")
    (message,) = wire_folder.read(folder, 1e9).messages
    assert message.line.src == 0
    (folder / "messages.jsonl").write_text(json.dumps(RAW).ljust(1 << 20) + "\n")
    with pytest.raises(LeakauditError, match="line 1: longer than 1048576 bytes"):
        wire_folder.read(folder, 1e9)


def test_as_many_messages_as_the_limit_are_accepted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each counts for every receiver: two lines of one, and one to two others."""
    lines = [one(round=0), one(round=1), one(round=2, src=2, dst=[0, 1])]
    (folder / "messages.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    monkeypatch.setattr(wire_folder, "MOST", 4)
    assert len(wire_folder.read(folder, 1e9).messages) == 3
    monkeypatch.setattr(wire_folder, "MOST", 3)
    with pytest.raises(LeakauditError, match="4 messages, counted for every receiver; at most 3"):
        wire_folder.read(folder, 1e9)
    monkeypatch.setattr(wire_folder, "MOST", 2)
    with pytest.raises(LeakauditError, match="more than 2 messages"):
        wire_folder.read(folder, 1e9)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("none", "cannot read none"), ("empty", "contains no messages.jsonl")],
)
def test_folders_without_messages(
    folder: Path, name: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    assert main(["trace", "import", name, "-o", "no.pt"]) == 2
    assert complaint in capsys.readouterr().err


def test_more_than_max_bytes_is_refused_before_it_is_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.truncate(folder / "m.bin", 1 << 40)  # sparse
    line = one(shapes=[[1 << 37]])
    (folder / "messages.jsonl").write_text(json.dumps(line) + "\n")
    assert main(["trace", "import", "messages", "-o", "no.pt", "--max-bytes", "1GB"]) == 2
    assert "but max_bytes allows" in capsys.readouterr().err


def test_a_messages_file_that_is_a_link_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("elsewhere.jsonl").write_text(json.dumps(RAW) + "\n")
    (folder / "messages.jsonl").symlink_to(Path("elsewhere.jsonl").resolve())
    assert main(["trace", "import", "messages", "-o", "no.pt"]) == 2
    assert "not a regular file" in capsys.readouterr().err


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["all", "m.bin", "ok.npy", "float32", "..", "fifo.bin"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(
    lines=st.lists(
        st.dictionaries(st.sampled_from([*RAW, "kind", "tag", "offset", "names"]), VALUES),
        min_size=1,
        max_size=3,
    ),
    cut=st.integers(0, 20),
)
@settings(
    max_examples=300, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
)
def test_whatever_a_line_contains_only_our_own_errors_are_raised(
    folder: Path, lines: list[dict[str, Any]], cut: int
) -> None:
    text = "".join(
        json.dumps({**RAW, "src": k, "dst": k + 1, **line}) + "\n" for k, line in enumerate(lines)
    )
    (folder / "messages.jsonl").write_text(text[: len(text) - cut])
    said = ""
    try:
        found = wire_folder.read(folder, 1e9)
    except la.LeakauditError as error:
        said = str(error)
    assert said or found.nodes > 1
    assert said.isprintable()
    assert len(said) < 2000
