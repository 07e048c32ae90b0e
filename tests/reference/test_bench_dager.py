"""The comparison with DAGER: the layout of its network, its settings and how both are scored."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

LENGTH = 8


@pytest.fixture
def dager(monkeypatch: pytest.MonkeyPatch, project: Path) -> ModuleType:
    """Import bench/dager.py."""
    monkeypatch.syspath_prepend(str(project / "bench"))
    return importlib.import_module("dager")


def gpt2_logits(weights: list[Tensor], x: Tensor, depth: int, heads: int) -> Tensor:
    """GPT-2 as transformers stores it: transposed layers, and one for queries, keys and values."""
    rest = iter(weights)
    stream = next(rest)[x] + next(rest)[: x.shape[1]]
    for _ in range(depth):
        inside = F.layer_norm(stream, stream.shape[-1:], next(rest), next(rest))
        joint = inside @ next(rest) + next(rest)
        query, key, value = (
            part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in joint.chunk(3, dim=-1)
        )
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        seen = seen.transpose(1, 2).flatten(2)
        stream = stream + seen @ next(rest) + next(rest)
        inside = F.layer_norm(stream, stream.shape[-1:], next(rest), next(rest))
        hidden = F.gelu(inside @ next(rest) + next(rest))
        stream = stream + hidden @ next(rest) + next(rest)
    out = F.layer_norm(stream, stream.shape[-1:], next(rest), next(rest))
    return out @ next(rest).T


def test_the_weights_are_those_of_gpt2_in_its_layout(dager: ModuleType) -> None:
    made = dager.case(2, 64, 128, 2, LENGTH)
    # Biases and scales of a new network are zeros and ones, which would hide an exchange.
    noise = torch.randn(len(made.theta), generator=Generator().manual_seed(0), dtype=torch.float64)
    theta = made.theta + 0.1 * noise
    weights = dager.in_their_layout(made.task.layout.split(theta), made.depth)
    assert made.depth == 2
    assert sum(weight.numel() for weight in weights) == len(theta)
    expected = made.task.logits(theta, made.x)
    torch.testing.assert_close(gpt2_logits(weights, made.x, 2, 2), expected)


@pytest.mark.parametrize(
    ("count", "tolerance", "expected"),
    [(2, "rule", "1e-7"), (4, "rule", "1e-8"), (16, "rule", "1e-8"), (32, "rule", "1e-9")],
)
def test_the_rank_tolerance_follows_its_readme(
    dager: ModuleType, count: int, tolerance: str, expected: str
) -> None:
    words = dager.settings(count, 32, tolerance)
    assert words[words.index("--rank_tol") + 1] == expected
    assert "--rank_tol" not in dager.settings(count, 32, "none")
    assert dager.settings(count, 64, "none")[-1] == "double"


def test_every_sequence_is_compared_with_the_nearest_one(dager: ModuleType) -> None:
    x = torch.tensor([[97, 98, 99], [100, 101, 102]])
    exact, share, nearest = dager.scores([[100, 101, 256], [97, 98, 99], [100]], x)
    assert exact == 1
    assert share == pytest.approx(5 / 6)
    assert nearest.tolist() == [[97, 98, 99], [100, 101, 32]]
    assert dager.scores([], x)[:2] == (0, 0.0)


def test_ours_finds_the_batch_and_is_stopped_in_time(dager: ModuleType) -> None:
    made = dager.case(2, 32, 128, 2, LENGTH)
    found = dager.ours(made, 60)
    assert dager.scores(found.found, made.x)[0] == found.certified == 2
    assert "| 2 of 2 |" in dager.row(made, "ours", found)
    limits = importlib.import_module("_limits")

    def forever() -> None:
        while True:
            pass

    with pytest.raises(limits.OutOfTimeError), limits.at_most(1):
        forever()


def test_without_a_checkout_it_says_what_to_do(project: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(project / "bench" / "dager.py"), "--dager", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "clone insait-institute/dager-gradient-inversion" in done.stderr
