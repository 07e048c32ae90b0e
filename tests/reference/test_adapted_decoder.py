"""Tokens behind low-rank adapters of a decoder."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate
from leakaudit.core.trace import Json, TaskSpec
from leakaudit.inversion.attacking import attack_one
from leakaudit.tasks.task import Task

D = torch.float64
LENGTH = 6


def attacked(
    layers: str, batch: int, dtype: torch.dtype = D, steps: int = 2
) -> tuple[la.Reconstruction, Tensor]:
    """What the gradient of a step at rank 16 shows, and the sequences."""
    args: dict[str, Json] = {"width": 32, "rank": 16, "layers": layers}
    spec = TaskSpec("adapters:decoder", args, "next_token", (LENGTH,), 256, data="text")
    task = Task.build(spec, dtype=D, trusted=True)
    g = Generator().manual_seed(batch)
    x = torch.randint(256, (batch, LENGTH), generator=g)
    y = torch.randint(256, (batch,), generator=g)
    theta = task.init(g).to(dtype)
    value = task.gradient(theta, x, y)
    for _ in range(1, steps):
        theta = theta - 0.1 * value
        value = task.gradient(theta, x, y)
    precision = torch.finfo(dtype).eps
    leak = GradientLeak(
        0,
        torch.tensor([steps]),
        torch.eye(1, dtype=D),
        value[None],
        precision / 3 * value.double().square().mean().sqrt()[None],
        (0, task.layout.size),
        theta=theta[None],
        batch=batch,
        records=batch,
        wire=precision,
    )
    return attack_one(leak, task, "sequences", Generator().manual_seed(0)), x


@pytest.mark.parametrize("dtype", [D, torch.float32])
def test_sequences_come_back_from_the_adapters_of_two_layers(dtype: torch.dtype) -> None:
    found, x = attacked("c_attn c_fc", 2, dtype)
    assert sorted(found.x.long().tolist()) == sorted(x.tolist())
    assert found.certificate is Certificate.APPROXIMATE
    assert not found.certified


def test_the_adapter_of_the_first_attention_shows_one_sequence() -> None:
    found, x = attacked("c_attn", 1)
    assert found.x.long().tolist() == x.tolist()


def test_and_the_tokens_of_several() -> None:
    found, x = attacked("c_attn", 2)
    assert found.tokens is not None
    assert found.tokens.tolist() == x.unique().tolist()
    assert not len(found.x)


def test_more_tokens_than_the_rank_hide_each_other() -> None:
    found, _ = attacked("c_attn", 3)
    assert found.certificate is Certificate.FAILED


def test_the_first_step_shows_no_tokens() -> None:
    found, _ = attacked("c_attn c_fc", 1, steps=1)
    assert found.certificate is Certificate.FAILED
    assert "before the first step, when B is zero" in found.note
