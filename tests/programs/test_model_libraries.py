"""Models of transformers as tasks, and exported from a program."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from one_gradient import leaked
from torch import Generator, nn

import leakaudit as la
from leakaudit.attacks import Sequences
from leakaudit.capture.tap.log.finder import Finder
from leakaudit.core.errors import LeakauditError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate
from leakaudit.core.trace import TaskSpec
from leakaudit.tasks import _torchvision, remarks
from leakaudit.tasks.task import Task

if find_spec("transformers"):  # which imports torchvision, if it is installed
    with suppress(LeakauditError):
        _torchvision.torchvision()
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")  # of transformers itself

BERT = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 8,
}


def spec(model: str, **args: Any) -> TaskSpec:
    return TaskSpec(model, args, shape=(6,), classes=3)


@pytest.mark.parametrize(
    ("model", "args"),
    [
        ("transformers:BertForSequenceClassification", BERT),
        ("transformers:AutoModelForSequenceClassification", {**BERT, "model_type": "bert"}),
    ],
)
def test_a_model_from_its_configuration(model: str, args: dict[str, Any]) -> None:
    """Its gradients are those of transformers, and the tokens follow from them."""
    task = Task.build(spec(model, **args), trusted=True)
    assert task.tokens == 40
    assert task.masked
    assert remarks.TOKENS in remarks.of(task)
    assert remarks.ATTENTION in remarks.of(task)
    theta = task.init(Generator().manual_seed(0))
    x = torch.tensor([[5, 9, 5, 30, 1, 2]])
    y = torch.tensor([1])
    gradient = task.gradient(theta, x, y)
    config = transformers.BertConfig(num_labels=3, **BERT)
    net = transformers.BertForSequenceClassification(config).eval()
    nn.utils.vector_to_parameters(theta, net.parameters())
    found = torch.autograd.grad(net(input_ids=x, labels=y).loss, list(net.parameters()))
    own = torch.cat([g.flatten() for g in found])
    torch.testing.assert_close(gradient, own, rtol=1e-4, atol=1e-6)

    leaks = leaked(task, gradient, theta)
    (attacked,) = la.attack(leaks, generator=Generator().manual_seed(0), task=task)
    assert attacked.attack == "tokens"
    assert attacked.certificate.name == "APPROXIMATE"
    torch.testing.assert_close(attacked.x.long(), x)


def test_an_untrusted_model_is_not_built() -> None:
    with pytest.raises(LeakauditError, match="pass --trust-model"):
        Task.build(spec("transformers:BertForSequenceClassification", **BERT))
    with pytest.raises(LeakauditError, match="model_type"):
        Task.build(spec("transformers:AutoModelForSequenceClassification", **BERT), trusted=True)


def test_a_program_of_a_transformer(tmp_path: Path) -> None:
    """Exported as a training loop calls it, with labels and a mask of ones."""
    config = transformers.BertConfig(num_labels=3, **BERT)
    net = transformers.BertForSequenceClassification(config).train()
    x = torch.randint(1, 40, (2, 6), generator=Generator().manual_seed(0))
    y = torch.tensor([0, 1])
    given = {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": y}
    Finder(str(tmp_path)).save_called(net, (), given)
    task = Task.build(TaskSpec("model.pt2", shape=(6,), classes=3, beside=str(tmp_path)))
    assert task.tokens == 40
    assert task.masked
    assert list(task.layout.names) == [name for name, _ in net.named_parameters()]
    theta = nn.utils.parameters_to_vector(net.parameters()).detach()
    found = torch.autograd.grad(net.eval()(**given).loss, list(net.parameters()))
    own = torch.cat([g.flatten() for g in found])
    torch.testing.assert_close(task.gradient(theta, x, y), own, rtol=1e-4, atol=1e-6)


def test_a_program_of_gpt2(tmp_path: Path) -> None:
    """Its forward branches on its tokens, so several nodes are processed one by one."""
    args = {"vocab_size": 40, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8}
    args |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    task = Task.build(spec("transformers:GPT2ForSequenceClassification", **args), trusted=True)
    theta = task.init(Generator().manual_seed(0)).double()
    x = torch.randint(1, 40, (2, 6), generator=Generator().manual_seed(0))
    y = torch.tensor([0, 1])
    gradient = task.gradient(theta, x, y)
    several = task.gradients(torch.stack([theta] * 2), torch.stack([x] * 2), torch.stack([y] * 2))
    torch.testing.assert_close(several[1], gradient)
    net = transformers.GPT2ForSequenceClassification(
        transformers.GPT2Config(num_labels=3, **args)
    ).train()
    Finder(str(tmp_path)).save_called(net, (), {"input_ids": x})
    program = Task.build(TaskSpec("model.pt2", shape=(6,), classes=3, beside=str(tmp_path)))
    torch.testing.assert_close(program.gradient(theta, x, y), gradient)


@pytest.mark.parametrize("tied", [True, False])
def test_all_sequences_of_a_gpt2_come_back(tied: bool, tmp_path: Path) -> None:
    """Of transformers' own model, as it is tied by default, and as a program exported from it."""
    args: dict[str, Any] = {
        "vocab_size": 256,
        "n_embd": 128,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 32,
    }
    args |= {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": tied}
    args |= dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    text: dict[str, Any] = {"loss": "next_token", "shape": (16,), "classes": 256, "data": "text"}
    task = Task.build(
        TaskSpec("transformers:GPT2LMHeadModel", args, **text), dtype=torch.float64, trusted=True
    )
    net = transformers.GPT2LMHeadModel(transformers.GPT2Config(**args)).train()
    x = torch.stack([torch.arange(16) * k % 120 + 3 for k in (1, 5, 7)])
    y = torch.tensor([9, 200, 4])
    Finder(str(tmp_path)).save_called(net, (), {"input_ids": x})
    program = Task.build(TaskSpec("model.pt2", beside=str(tmp_path), **text))
    theta = task.init(Generator().manual_seed(0)).double()
    assert program.layout == task.layout
    for made in (task, program):
        leak = GradientLeak(
            0,
            torch.ones(1, dtype=torch.long),
            torch.ones(1, 1, dtype=torch.float64),
            task.gradient(theta, x, y)[None],
            torch.zeros(1),
            (0, task.layout.size),
            theta=theta[None],
            batch=3,
        )
        found = Sequences()(leak, made, Generator().manual_seed(0))
        assert found.certificate is Certificate.EXACT, found.note
        assert found.y is not None
        wanted = torch.cat([x, y[:, None]], 1).tolist()
        assert sorted(torch.cat([found.x, found.y[:, None]], 1).tolist()) == sorted(wanted)
