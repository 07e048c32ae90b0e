"""The model of a tapped program.

What is saved, that nothing of the program changes, and why an export fails.
"""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.distributed.fsdp import fully_shard

import leakaudit as la
from leakaudit.capture.tap import saved
from leakaudit.capture.tap.log.finder import LOSSES, Finder
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import TaskSpec
from leakaudit.tasks import remarks
from leakaudit.tasks.task import Task

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self, hidden, chance):
        super().__init__()
        self.hidden = hidden
        self.first = nn.Linear(12, hidden)
        self.dropout = nn.Dropout(chance)
        self.last = nn.Linear(hidden, 3)

    def forward(self, x):
        return self.last(self.dropout(torch.tanh(self.first(x.flatten(1)))))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net(8, 0.5 if sys.argv[1] == "dropout" else 0.0)
    if sys.argv[1] == "frozen":
        net.last.requires_grad_(False)
    model = net if sys.argv[1] == "gossip" else DistributedDataParallel(net)
    source = torch.Generator().manual_seed(rank)
    x = torch.randint(256, (1, 1, 3, 4), generator=source) / 255
    y = torch.tensor([rank])
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(4):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
        if sys.argv[1] == "gossip":
            sent = nn.utils.parameters_to_vector(net.parameters()).detach()
            came = torch.empty_like(sent)
            work = dist.isend(sent.clone(), 1 - rank)
            dist.recv(came, 1 - rank)
            work.wait()
            nn.utils.vector_to_parameters((sent + came) / 2, net.parameters())
    flat = nn.utils.parameters_to_vector(net.parameters()).detach()
    torch.save({"x": x, "w": flat, "drawn": torch.rand(3)}, f"kept{rank}.pt")
    dist.destroy_process_group()
"""


def run(folder: Path, how: str, tap: bool) -> tuple[str, list[dict[str, Tensor]]]:
    """Run the program; return what is said, and what its processes kept."""
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "train.py", how]
    if tap:
        start = [sys.executable, "-m", "leakaudit", "tap", "--model-from", "program"]
        command = [*start, "-o", "trace.pt", "--", *command]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    kept = [torch.load(folder / f"kept{rank}.pt", weights_only=True) for rank in range(2)]
    return done.stderr, kept


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "gossip", "dropout", "frozen"])
def test_the_model_of_a_program(how: str, tmp_path: Path) -> None:
    """The results are those without the tap; the program's images are found without its code."""
    _, alone = run(tmp_path / "alone", how, tap=False)
    said, kept = run(tmp_path / "tapped", how, tap=True)
    for one, other in zip(alone, kept, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert "model train:Net(hidden=8) in train mode, 131 parameters" in said
    trace = la.load(tmp_path / "tapped" / "trace.pt")
    assert trace.task.model == "trace.model.pt2"
    names = ("first.weight", "first.bias", "last.weight", "last.bias")
    assert trace.layout.names == (names[:2] if how == "frozen" else names)
    state = torch.load(tmp_path / "tapped" / "trace.model.pt", weights_only=True)
    assert tuple(state) == names
    found = la.attack(la.leaks(trace), generator=Generator().manual_seed(0))
    assert len(found) == 2
    for picture in found:
        if how == "dropout":
            assert picture.certificate.name != "EXACT"
            assert picture.certified == 0
        else:
            # Without the last layer no label is read, so pixels of k/255 are not proved.
            proved = how != "frozen"
            assert (picture.certificate.name == "EXACT") == proved
            near = 0.0 if proved else 1e-4
            torch.testing.assert_close(picture.x, kept[picture.node]["x"], rtol=0, atol=near)
    assert ("random masks" in said) == (how == "dropout")
    assert ("are frozen and do not travel" in said) == (how == "frozen")


def small(chance: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(chance), nn.Linear(5, 3))


def facts(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "model.json").read_text())
    return found


def test_saving_leaves_no_trace_in_the_program(tmp_path: Path) -> None:
    """No random numbers, no change of mode or statistics, no data in the file."""
    net = small(0.5)
    before = copy.deepcopy(net.state_dict())
    attributes = {name: sorted(module.__dict__) for name, module in net.named_modules()}
    states = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    x = torch.randn(4, 6, generator=Generator().manual_seed(5))
    Finder(str(tmp_path)).save_called(net, (x,), {})
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), repr(np.random.get_state()))  # noqa: NPY002
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
    assert attributes == {name: sorted(module.__dict__) for name, module in net.named_modules()}
    assert net.training
    content = (tmp_path / "model.pt2").read_bytes()
    assert x[0].numpy().tobytes() not in content
    assert str(Path(__file__).parent).encode() not in content
    assert facts(tmp_path)["shape"] == [6]
    assert facts(tmp_path)["outputs"] == 3


def test_a_program_is_taken_beside_the_trace(tmp_path: Path) -> None:
    (tmp_path / "t.tap").mkdir()
    finder = Finder(str(tmp_path / "t.tap"))
    net = small(0.5)
    finder.save_called(net, (torch.zeros(4, 6),), {})
    task, assumed, _ = saved.take(tmp_path / "t.tap", tmp_path / "t.pt")
    assert task is not None
    assert task.spec.model == "t.model.pt2"
    assert "no loss" in assumed
    assert task.masked
    assert remarks.MASKED in remarks.of(task)
    assert remarks.COUPLED in remarks.of(task)
    assert saved.take(tmp_path, tmp_path / "t.pt") == (None, "", [saved.NOT_FOUND])


def test_a_model_that_is_sent_before_its_first_call_is_found(tmp_path: Path) -> None:
    finder = Finder(str(tmp_path))
    net = small(0.0)
    sent = torch.zeros(sum(p.numel() for p in net.parameters()))
    finder.travels(sent)
    assert not finder.done
    finder._note(net, (torch.zeros(4, 6),), {})
    finder.travels(sent)
    assert facts(tmp_path)["parameters"] == sent.numel()


def test_the_loss_of_a_validation_is_not_taken_for_that_of_the_training(tmp_path: Path) -> None:
    """timm trains with smoothed labels, by a function of its own, and validates with
    cross_entropy.
    """
    functions = ModuleType("functions")
    for name in LOSSES:
        setattr(functions, name, getattr(nn.functional, name))
    finder = Finder(str(tmp_path))
    finder.watch_losses(functions)
    net = small()
    x = torch.zeros(4, 6)
    y = torch.zeros(4, dtype=torch.long)
    finder.save_called(net, (x,), {})
    with torch.no_grad():
        functions.cross_entropy(net(x), y)
    assert facts(tmp_path)["losses"] == []
    functions.cross_entropy(net(x), y).backward()
    assert facts(tmp_path)["losses"] == ["cross_entropy"]


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        out: Tensor = self.fc(x * weights)
        return out


class Branches(nn.Module):
    """Depends on values, which torch.export does not support."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x if x.sum().item() > 3 else -x)
        return out


def hooked() -> nn.Module:
    net = small()
    net.register_forward_hook(lambda *_: None)
    return net


@pytest.mark.parametrize(
    ("make", "inputs", "why"),
    [
        (Several, 2, "its outputs depend on several inputs: x, weights"),
        (Branches, 1, ""),
        (hooked, 1, "has forward hooks"),
    ],
)
def test_an_export_that_fails_says_why(make: Any, inputs: int, why: str, tmp_path: Path) -> None:
    finder = Finder(str(tmp_path))
    finder.save_called(make(), tuple(torch.rand(4, 6) for _ in range(inputs)), {})
    said = facts(tmp_path)["why"]
    assert said
    assert "\n" not in said
    assert why.removeprefix("has ") in said
    assert not (tmp_path / "model.pt2").exists()
    (tmp_path / "out").mkdir()
    task, _, lines = saved.take(tmp_path, tmp_path / "out" / "t.pt")
    assert task is None
    assert lines[-1].startswith("the model was not exported as a program: ")


def test_the_arguments_of_transformers(tmp_path: Path) -> None:
    """Labels and masks of ones are omitted; a mask with zeros is not."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 3)

        def forward(
            self, x: Tensor, mask: Tensor | None = None, labels: Tensor | None = None
        ) -> dict[str, Tensor]:
            h = x if mask is None else x * mask
            return {"logits": self.fc(h)}

    x = torch.rand(2, 6)
    named = {"mask": torch.ones(2, 6), "labels": torch.tensor([0, 1])}
    Finder(str(tmp_path / "a")).save_called(Model(), (x,), named)
    assert facts(tmp_path / "a")["left_out"] == ["mask"]
    spec = TaskSpec("model.pt2", shape=(6,), classes=3, beside=str(tmp_path / "a"))
    assert Task.build(spec).layout.names == ("fc.weight", "fc.bias")
    assert facts(tmp_path / "a")["varied"] == []
    named["mask"] = torch.tensor([[1.0, 1, 1, 1, 0, 0]] * 2)
    Finder(str(tmp_path / "b")).save_called(Model(), (x,), named)
    assert facts(tmp_path / "b")["varied"] == ["mask"]
    (tmp_path / "out").mkdir()
    _, _, said = saved.take(tmp_path / "b", tmp_path / "out" / "t.pt")
    assert "exported without mask, which the model uses" in said[-1]


class Language(nn.Module):
    """Returns all logits beside the loss of the targets, and only the last ones without them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        hidden = self.tokens(x)
        if targets is None:
            return self.head(hidden[:, -1:]), None
        logits = self.head(hidden)
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("shift", [1, 2])
def test_outputs_beside_a_loss_are_those_of_the_exported_model(tmp_path: Path, shift: int) -> None:
    """The loss is that of the next tokens only if the targets are these."""
    net = Language()
    text = torch.randint(11, (4, 9), generator=Generator().manual_seed(3))
    x, y = text[:, : 9 - shift], text[:, shift:]
    functions = ModuleType("functions")
    for name in LOSSES:
        setattr(functions, name, getattr(nn.functional, name))
    (tmp_path / "t.tap").mkdir()
    finder = Finder(str(tmp_path / "t.tap"))
    finder.watch_losses(functions)
    finder.save_called(net, (x, y), {})
    logits, _ = net(x, y)
    functions.cross_entropy(logits.flatten(0, 1), y.flatten()).backward()
    task, assumed, said = saved.take(tmp_path / "t.tap", tmp_path / "t.pt")
    assert task is not None, said
    assert (task.spec.loss, task.spec.shape, task.spec.classes) == ("next_token", (9 - shift,), 11)
    assert bool(assumed) == (shift == 2)
    theta = nn.utils.parameters_to_vector(net.parameters()).detach()
    torch.testing.assert_close(task.logits(theta, x), logits.detach())


def test_a_sharded_model_is_exported_without_what_fsdp2_attached(tmp_path: Path) -> None:
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        theta = nn.utils.parameters_to_vector(net.parameters()).detach()
        x = torch.rand(4, 6)
        wanted = net(x).detach()
        for module in (net[0], net):
            fully_shard(module)
        (tmp_path / "t.tap").mkdir()
        Finder(str(tmp_path / "t.tap")).save_called(net, (x,), {})
    finally:
        dist.destroy_process_group()
    assert facts(tmp_path / "t.tap")["name"] == "torch.nn.modules.container:Sequential"
    task, _, said = saved.take(tmp_path / "t.tap", tmp_path / "t.pt")
    assert task is not None, said
    torch.testing.assert_close(task.logits(theta, x), wanted)
    assert not (tmp_path / "t.model.pt").exists()  # a process holds a part of the state


@pytest.mark.parametrize("normal", [True, False])
def test_the_negative_logarithm_of_probabilities_is_cross_entropy(
    tmp_path: Path, normal: bool
) -> None:
    functions = ModuleType("functions")
    for name in LOSSES:
        setattr(functions, name, getattr(nn.functional, name))
    finder = Finder(str(tmp_path))
    finder.watch_losses(functions)
    net = nn.Sequential(nn.Linear(6, 3), nn.LogSoftmax(1) if normal else nn.Identity())
    finder.save_called(net, (torch.zeros(4, 6),), {})
    out = net(torch.rand(4, 6, generator=Generator().manual_seed(1)))
    functions.nll_loss(out, torch.zeros(4, dtype=torch.long)).backward()
    assert facts(tmp_path)["losses"] == ["cross_entropy" if normal else "nll_loss"]


def test_the_network_in_a_module_whose_forward_is_replaced_is_exported(tmp_path: Path) -> None:
    """Lightning computes a loss from a batch in place of the forward of its module."""
    whole = nn.Module()
    net = small()
    whole.add_module("net", net)

    def step(batch: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(net(batch[0]), batch[1])

    whole.forward = step
    finder = Finder(str(tmp_path))
    kind = ModuleType("kind")
    kind.Module = type("Module", (), {"__call__": nn.Module.__call__})  # type: ignore[attr-defined]
    finder.watch(kind)
    finder.save_called(whole, ([torch.zeros(4, 6), torch.zeros(4)],), {})
    assert not finder.done
    kind.Module.__call__(whole.net, torch.zeros(4, 6))
    assert facts(tmp_path)["name"] == "torch.nn.modules.container:Sequential"
    assert facts(tmp_path)["shape"] == [6]
    other = Finder(str(tmp_path / "other"))
    for _ in range(2):  # the step calls no such module
        other.save_called(whole, ([torch.zeros(4, 6), torch.zeros(4)],), {})
    assert facts(tmp_path / "other")["why"] == "its forward was replaced on the object"


def test_hooks_of_a_framework_are_not_exported(tmp_path: Path) -> None:
    """Those of Opacus keep inputs for gradients of single records; other hooks may do anything."""

    def keep(*_: object) -> None:
        raise AssertionError("the hook was called")

    keep.__module__ = "opacus.grad_sample.grad_sample_module"
    net = small()
    net.register_forward_hook(keep)
    Finder(str(tmp_path)).save_called(net, (torch.zeros(4, 6),), {})
    assert "why" not in facts(tmp_path)
    assert len(net._forward_hooks) == 1


def test_facts_of_another_form_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text('{"name": 3}')
    with pytest.raises(LeakauditError, match="expected what the tap wrote about a model"):
        saved.take(tmp_path, tmp_path / "t.pt")
