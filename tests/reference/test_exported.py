"""Programs of torch.export as models: the gradients of the eager model, and no code of the file."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from one_gradient import leaked
from torch import Generator, Tensor, nn
from torch.export import Dim, export, save

import leakaudit as la
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import TaskSpec
from leakaudit.tasks.task import Task


class Normed(nn.Module):
    """Batch normalisation and dropout between two linear layers."""

    def __init__(self, chance: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(12, 7)
        self.bn = nn.BatchNorm1d(7)
        self.dropout = nn.Dropout(chance)
        self.last = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.dropout(torch.relu(self.bn(self.first(x.flatten(1))))))
        return out


class Residual(nn.Module):
    """Convolutions that work in place, as torchvision's do."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(1, 4, 3, padding=1)
        self.two = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.one(x))
        out = self.two(x)
        out += x
        logits: Tensor = self.fc(self.relu(out).mean((2, 3)))
        return logits


class Attention(nn.Module):
    """Tokens, positions, one encoder layer."""

    def __init__(self, chance: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.places = nn.Embedding(5, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, chance, batch_first=True)
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        where = torch.arange(x.shape[1], device=x.device)
        h = self.encoder(self.words(x) + self.places(where))
        out: Tensor = self.out(h.mean(1))
        return out


class Fused(nn.Module):
    """Attention whose fused kernel writes its result in another order than the reference formula.

    `contiguous` then does nothing, and the program has a view only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        words = self.words(x)
        heads = words.unflatten(2, (2, 8)).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).contiguous().view(words.shape).mean(1))
        return out


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 3))


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.random.set_rng_state(Generator().manual_seed(0).get_state())
        return make()


def exported(net: nn.Module, x: Tensor, path: Path, dynamic: bool = True) -> Path:
    shapes = ({0: Dim.AUTO},) if dynamic else None
    save(export(net, (x,), dynamic_shapes=shapes, strict=False), path)
    return path


def task_of(path: Path, shape: tuple[int, ...], **args: Any) -> Task:
    spec = TaskSpec(path.name, args, shape=shape, classes=3, beside=str(path.parent))
    return Task.build(spec)


def inputs(kind: str) -> Tensor:
    source = Generator().manual_seed(1)
    if kind in TOKENS:
        return torch.randint(20, (4, 5), generator=source)
    return torch.rand(4, 1, 3, 4, generator=source)


MAKE: dict[str, Callable[[], nn.Module]] = {
    "normed": Normed,
    "mlp": mlp,
    "residual": Residual,
    "attention": Attention,
    "fused": Fused,
}
TOKENS = ("attention", "fused")


@pytest.mark.parametrize(("kind", "dynamic"), [*((kind, True) for kind in MAKE), ("normed", False)])
def test_gradients_are_those_of_the_eager_model(kind: str, dynamic: bool, tmp_path: Path) -> None:
    """In parameters, twice, and for several models at once."""
    net = seeded(MAKE[kind])
    x = inputs(kind)
    y = torch.tensor([0, 1, 2, 1])
    state = copy.deepcopy(net.state_dict())
    task = task_of(exported(net, x, tmp_path / "net.pt2", dynamic), tuple(x.shape[1:]))
    assert list(task.layout.names) == [name for name, _ in net.named_parameters()]
    theta = torch.cat([p.detach().flatten() for p in net.parameters()]).double()

    net = net.double()
    points = x if kind in TOKENS else x.double().requires_grad_()
    loss = nn.functional.cross_entropy(net(points), y)
    own = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
    expected = torch.cat([g.flatten() for g in own])
    leaf = theta.clone().requires_grad_()
    given = points if kind in TOKENS else points.detach().clone().requires_grad_()
    found = task.gradient(leaf, given, y, create_graph=True)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        loss = nn.functional.cross_entropy(net(points), y)
        own = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        expected = torch.cat([g.flatten() for g in own])
        twice = torch.autograd.grad(expected.square().sum(), list(net.parameters()))
    flat = torch.cat([g.flatten() for g in twice])
    again = torch.autograd.grad(found.square().sum(), leaf)[0]
    torch.testing.assert_close(again, flat, rtol=1e-8, atol=1e-10)

    several = task.gradients(
        torch.stack([theta] * 2), torch.stack([points.detach()] * 2), torch.stack([y] * 2)
    )
    torch.testing.assert_close(several[1], expected.detach(), rtol=1e-9, atol=1e-12)
    for name, value in task.buffers.items():  # running statistics stay as they were exported
        torch.testing.assert_close(value, state[name])


def test_a_fixed_batch_takes_any_number(tmp_path: Path) -> None:
    net = seeded(mlp)
    x = inputs("mlp")
    task = task_of(exported(net, x, tmp_path / "net.pt2", dynamic=False), (1, 3, 4))
    theta = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(task.logits(theta, x[:3]), net(x[:3]))
    torch.testing.assert_close(task.logits(theta, torch.cat([x, x])), net(torch.cat([x, x])))
    normed = task_of(exported(seeded(Normed), x, tmp_path / "normed.pt2", dynamic=False), (1, 3, 4))
    weights = torch.cat([p.detach().flatten() for p in seeded(Normed).parameters()])
    with pytest.raises(LeakauditError, match="exported for batches of 4"):
        normed.logits(weights, x[:3])


def test_running_statistics_on_request(tmp_path: Path) -> None:
    net = seeded(Normed)
    x = inputs("normed")
    path = exported(net, x, tmp_path / "net.pt2")
    theta = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(task_of(path, (1, 3, 4), bn="eval").logits(theta, x), net.eval()(x))
    still = exported(net.eval(), x, tmp_path / "still.pt2")
    torch.testing.assert_close(task_of(still, (1, 3, 4)).logits(theta, x), net(x))
    with pytest.raises(LeakauditError, match="exported without statistics of the batch"):
        task_of(still, (1, 3, 4), bn="train")


def test_an_attack_runs_the_program(tmp_path: Path) -> None:
    """The image behind a first linear layer is proved; the program stands beside the trace."""
    net = seeded(mlp)
    (tmp_path / "made").mkdir()
    path = exported(net, torch.rand(4, 1, 3, 4), tmp_path / "made" / "net.pt2")
    trace_path = tmp_path / "run" / "trace.pt"
    x = torch.randint(256, (1, 1, 3, 4), generator=Generator().manual_seed(3)) / 255
    _record(trace_path, path, net, x)
    trace = la.load(trace_path)
    assert trace.task.model == "net.pt2"
    assert (tmp_path / "run" / "net.pt2").read_bytes() == path.read_bytes()
    (found,) = la.attack(la.leaks(trace), generator=Generator().manual_seed(0))
    assert found.certificate.name == "EXACT"
    torch.testing.assert_close(found.x, x)
    other = exported(seeded(Normed), torch.rand(4, 1, 3, 4), tmp_path / "other.pt2")
    (tmp_path / "run" / "net.pt2").write_bytes(other.read_bytes())
    with pytest.raises(LeakauditError, match="sha256 differs"):
        Task.build(la.load(trace_path).task)


def _record(trace_path: Path, model: Path, net: nn.Module, x: Tensor) -> None:
    """One round of FedSGD with one client."""
    spec = TaskSpec(model.name, shape=(1, 3, 4), classes=3, levels=255, beside=str(model.parent))
    theta = torch.cat([p.detach().flatten() for p in net.parameters()])
    gradient = Task.build(spec).gradient(theta, x, torch.tensor([1]))
    with la.Recorder(
        trace_path,
        protocol="fedsgd",
        task=spec,
        graph=la.Graph(2, ((0, 1),)),
        params={"lr": 0.1, "samples": 1},
        rounds=1,
    ) as recorder:
        recorder.send(round=1, src=1, dst=[0], kind="w", value=theta)
        recorder.send(round=1, src=0, dst=1, kind="g", value=gradient)


@pytest.mark.parametrize("chance", [0.0, 0.5])
def test_unknown_masks_give_no_certificate(chance: float, tmp_path: Path) -> None:
    """The first layer receives 2 x or 0: on the grid of the pixels, and wrong."""
    net = seeded(lambda: nn.Sequential(nn.Dropout(chance), *mlp()))
    path = exported(net, torch.rand(4, 1, 3, 4), tmp_path / "net.pt2")
    task = task_of(path, (1, 3, 4))
    assert task.masked == (chance > 0)
    x = torch.randint(128, (1, 1, 3, 4), generator=Generator().manual_seed(3)) / 255
    masked = x * torch.tensor([0.0, 2.0]).repeat(6).view(1, 1, 3, 4) if chance else x
    _record(tmp_path / "trace.pt", path, seeded(mlp), masked)
    (found,) = la.attack(la.leaks(la.load(tmp_path / "trace.pt")), generator=Generator())
    assert found.certificate.name == ("APPROXIMATE" if chance else "EXACT")
    assert found.certified == (0 if chance else 1)
    assert ("random masks" in found.note) == (chance > 0)


def test_tokens_and_their_order(tmp_path: Path) -> None:
    net = seeded(Attention)
    path = exported(net, inputs("attention"), tmp_path / "net.pt2")
    spec = TaskSpec(path.name, shape=(5,), classes=3, beside=str(tmp_path))
    task = Task.build(spec)
    assert task.tokens == 20
    assert task.embeddings == ("words.weight", "places.weight")
    x = torch.tensor([[3, 17, 3, 0, 9]])
    theta = torch.cat([p.detach().flatten() for p in net.parameters()])
    for batch, records in ((1, x), (2, torch.cat([x, x.flip(1) + 1]))):
        gradient = task.gradient(theta, records, torch.tensor([1, 2][:batch]))
        leaks = leaked(task, gradient, theta, batch)
        (found,) = la.attack(leaks, generator=Generator().manual_seed(0), task=task)
        assert found.attack == "tokens"
        assert found.certificate.name == "APPROXIMATE"
        different = sorted(set(records.flatten().tolist()))
        assert f"{len(different)} different tokens: {', '.join(map(str, different))}" in found.note
        if batch == 1:
            torch.testing.assert_close(found.x.long(), x)
        else:
            assert not len(found.x)
        with pytest.raises(LeakauditError, match="inputs of the model are tokens"):
            la.attack(leaks, "dlg", generator=Generator(), task=task)


# What follows are hostile files: none of them may run code.


def repacked(path: Path, out: Path, change: dict[str, Callable[[bytes], bytes]]) -> Path:
    """Copy an archive with some of its records changed or added."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as new:
        prefix = old.namelist()[0].partition("/")[0]
        names = [info.filename for info in old.infolist()]
        for name in names:
            short = name.partition("/")[2]
            new.writestr(name, change.get(short, bytes)(old.read(name)))
        for short, make in change.items():
            if f"{prefix}/{short}" not in names:
                new.writestr(f"{prefix}/{short}", make(b""))
    return out


class Bomb:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
GRAPH = "models/model.json"


def edited(edit: Callable[[Any], None]) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        value = json.loads(data)
        edit(value)
        return json.dumps(value).encode()

    return change


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return exported(seeded(mlp), torch.rand(4, 1, 3, 4), tmp_path / "good.pt2")


def pickled_weight(value: Any) -> None:
    value["config"]["1.weight"] |= {"use_pickle": True, "tensor_meta": None}


def custom_object(value: Any) -> None:
    value["config"]["c"] = {
        "path_name": "opaque_obj_0",
        "is_param": False,
        "use_pickle": True,
        "tensor_meta": None,
    }


def no_stride(value: Any) -> None:
    meta = value["config"]["1.weight"]["tensor_meta"]
    meta["sizes"] = [{"as_int": 1 << 40}, {"as_int": 12}]
    meta["strides"] = [{"as_int": 0}, {"as_int": 0}]


def reads_files(value: Any) -> None:
    value["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.aten.from_file.default"


def calls_python(value: Any) -> None:
    value["graph_module"]["graph"]["nodes"][0]["target"] = "os.system"


def other_output(value: Any) -> None:
    value["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.aten.add.out"


def large(value: Any) -> None:
    node = value["graph_module"]["graph"]["nodes"][0]
    node["target"] = "torch.ops.aten.full.default"
    node["inputs"] = [
        {"name": "size", "arg": {"as_ints": [1 << 40]}, "kind": 1},
        {"name": "fill_value", "arg": {"as_float": 1.0}, "kind": 1},
    ]


def before_its_time(value: Any) -> None:
    nodes = value["graph_module"]["graph"]["nodes"]
    nodes.insert(0, nodes.pop())


def newer(value: Any) -> None:
    value["schema_version"]["major"] = 9


HOSTILE: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "pickled weight": (WEIGHTS, pickled_weight, "is pickled, which could execute code"),
    "custom object": (CONSTANTS, custom_object, "is pickled, which could execute code"),
    "stride 0": (WEIGHTS, no_stride, "more than are stored"),
    "reads files": (GRAPH, reads_files, "from_file.default' is not one of those"),
    "calls Python": (GRAPH, calls_python, "'os.system' is not one of those"),
    "writes into a tensor": (GRAPH, other_output, "add.out' is not one of those"),
    "large tensor": (GRAPH, large, "requests a tensor of"),
    "wrong order": (GRAPH, before_its_time, "before it is computed"),
    "newer format": (GRAPH, newer, "has version 9"),
}


@pytest.mark.parametrize("kind", list(HOSTILE))
def test_hostile_programs_are_rejected(kind: str, good: Path, tmp_path: Path) -> None:
    record, edit, message = HOSTILE[kind]
    bad = repacked(good, tmp_path / "bad.pt2", {record: edited(edit)})
    with pytest.raises(LeakauditError, match=message) as raised:
        task_of(bad, (1, 3, 4))
    assert "\n" not in str(raised.value)


def test_nothing_is_unpickled_or_evaluated(good: Path, tmp_path: Path) -> None:
    """torch.export.load unpickles sample inputs and evaluates symbols; here they are ignored."""
    mark = tmp_path / "executed"
    evaluated = tmp_path / "evaluated"

    def sample(_: bytes) -> bytes:
        buffer = io.BytesIO()
        torch.save(Bomb(mark), buffer, pickle_module=pickle)
        return buffer.getvalue()

    def symbol(value: Any) -> None:
        form = value["graph_module"]["graph"]["tensor_values"][_input(value)]
        code = f"__import__('os').mkdir({str(evaluated)!r})"
        form["sizes"][0] = {"as_expr": {"expr_str": code, "hint": {"as_int": 4}}}
        value["guards_code"] = [code]

    inputs_of = repacked(good, tmp_path / "a.pt2", {"data/sample_inputs/model.pt": sample})
    with warnings.catch_warnings(), suppress(Exception):  # it may succeed
        warnings.simplefilter("ignore")
        torch.export.load(inputs_of)
    assert mark.exists(), "torch.export.load no longer unpickles sample inputs: see docs/models.md"
    mark.rmdir()
    task_of(inputs_of, (1, 3, 4))
    assert not mark.exists()

    symbols = repacked(good, tmp_path / "b.pt2", {GRAPH: edited(symbol)})
    task_of(symbols, (1, 3, 4))
    assert not evaluated.exists()
    with suppress(Exception):  # it may succeed
        torch.export.load(symbols)
    assert evaluated.exists(), "torch.export.load no longer evaluates symbols: see docs/models.md"


def _input(value: Any) -> str:
    for spec in value["graph_module"]["signature"]["input_specs"]:
        if "user_input" in spec:
            name: str = spec["user_input"]["arg"]["as_tensor"]["name"]
            return name
    raise AssertionError


def test_compiled_parts_are_rejected(good: Path, tmp_path: Path) -> None:
    bad = repacked(good, tmp_path / "bad.pt2", {"data/aotinductor/model/x.so": lambda _: b"ELF"})
    with pytest.raises(LeakauditError, match="compiled library"):
        task_of(bad, (1, 3, 4))


@pytest.mark.parametrize("content", [b"", b"PK\5\6" + bytes(18), b"not a program"])
def test_other_files_are_rejected(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    path.write_bytes(content)
    with pytest.raises(LeakauditError, match=r"net\.pt2") as raised:
        task_of(path, (1, 3, 4))
    assert "\n" not in str(raised.value)


def test_a_missing_program_names_its_folder(tmp_path: Path) -> None:
    with pytest.raises(LeakauditError, match="there is no such file in"):
        task_of(tmp_path / "net.pt2", (1, 3, 4))


def test_another_shape_is_rejected(good: Path) -> None:
    with pytest.raises(LeakauditError, match=r"exported for inputs of shape \(1, 3, 4\)"):
        task_of(good, (1, 4, 4))


def test_a_program_that_changes_its_buffer_is_rejected(tmp_path: Path) -> None:
    class Counts(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(12, 3)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            out: Tensor = self.fc(x.flatten(1)) * self.calls
            return out

    path = exported(seeded(Counts), torch.rand(4, 1, 3, 4), tmp_path / "net.pt2")
    with pytest.raises(LeakauditError, match="changes its tensor"):
        task_of(path, (1, 3, 4))


def test_a_model_of_torchvision() -> None:
    """By its name, without an adapter; it is the registered one."""
    own = Task.build(
        TaskSpec("torchvision.models:resnet18", shape=(3, 32, 32), classes=10), trusted=True
    )
    assert own.layout == Task.build(TaskSpec("resnet18", shape=(3, 32, 32), classes=10)).layout
    assert not own.masked
    with pytest.raises(LeakauditError, match="pass --trust-model"):
        Task.build(TaskSpec("torchvision.models:resnet18", shape=(3, 32, 32), classes=10))
