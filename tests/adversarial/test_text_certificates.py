"""No false certificate for texts, in models that are narrower than a batch has tokens.

``LEAKAUDIT_FRESH_SEED`` and ``LEAKAUDIT_FRESH_CASES`` draw other batches.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from leakaudit.attacks import Sequences
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import TaskSpec
from leakaudit.tasks.task import Task

D = torch.float64
BEHIND = "blocks.0.up.weight"


def narrow(width: int, length: int, depth: int = 1, tied: bool = False, tokens: int = 256) -> Task:
    args = {"width": width, "heads": 2, "depth": depth, "tied": tied}
    spec = TaskSpec("gpt", args, "next_token", (length,), tokens, data="text")
    return Task.build(spec, dtype=D)


def start(made: Task, seed: int, steps: int, x: Tensor, y: Tensor) -> Tensor:
    """Weights drawn at random, and trained on the batch for some steps."""
    theta = made.init(Generator().manual_seed(seed)).double()
    for _ in range(steps):
        slope = made.gradient(theta, x, y)
        theta = theta - 0.5 * slope / float(slope.norm().clamp_min(1.0))
    return theta


def attacked(
    made: Task, thetas: Tensor, x: Tensor, y: Tensor, dtype: torch.dtype
) -> Reconstruction:
    """The gradient at one model, or the difference of those at two."""
    thetas = thetas.to(dtype)
    combination = torch.tensor([[1.0, -1.0][: len(thetas)]], dtype=D)
    every = torch.stack([made.gradient(theta, x.to(dtype), y) for theta in thetas])
    leak = GradientLeak(
        0,
        torch.arange(len(thetas)),
        combination,
        (combination @ every.to(D)).to(dtype),
        torch.zeros(1, dtype=D),
        (0, made.layout.size),
        theta=thetas.to(D),
        batch=len(x),
        wire=0.0 if dtype == D else torch.finfo(dtype).eps,
    )
    return Sequences()(leak, made, Generator().manual_seed(0))


def records(x: Tensor, y: Tensor) -> list[list[int]]:
    """Records without their order."""
    return sorted(torch.cat([x.long(), y.long()[:, None]], 1).tolist())


def batch(g: np.random.Generator, b: int, length: int) -> tuple[Tensor, Tensor]:
    """Texts that share prefixes: whole texts, beginnings, all but a token, or few letters."""
    kind = g.integers(5)
    letters = int(g.choice([2, 3, 256]))
    x = g.integers(0, letters, (b, length))
    if kind == 0:
        x = x[g.integers(0, max(1, b // 2), b)]
    elif kind == 1:
        same = int(g.integers(1, length))
        x[:, :same] = x[0, :same]
    elif kind == 2:
        x[:] = x[0]
        x[np.arange(b), g.integers(0, length, b)] = g.integers(0, 256, b)
    elif kind == 3:
        x = np.stack([g.permutation(x[0]) for _ in range(b)])
    return torch.tensor(x, dtype=D), torch.tensor(g.integers(0, letters, b))


def test_no_text_is_certified_falsely(fresh_seed: int, fresh_cases: Callable[[int], int]) -> None:
    certified = 0
    for seed in range(1000 * fresh_seed, 1000 * fresh_seed + fresh_cases(40)):
        g = np.random.default_rng(seed)
        b, length = int(g.choice([2, 4, 6])), int(g.choice([4, 8]))
        width = int(g.choice([8, 16, 24]))
        made = narrow(width, length, int(g.choice([1, 2])), bool(g.random() < 0.3))
        x, y = batch(g, b, length)
        theta = start(made, seed, int(g.choice([0, 0, 10])), x, y)
        moved = theta + 0.1 * theta.std() * torch.tensor(g.normal(size=len(theta)))
        thetas = torch.stack([theta, moved])[: int(g.choice([1, 1, 2]))]
        found = attacked(made, thetas, x, y, [D, torch.float32][int(g.integers(2))])
        if found.certificate is Certificate.EXACT:
            assert found.y is not None
            assert records(found.x, found.y) == records(x, y), seed
            certified += len(thetas) * b * length > width - 2
    assert certified  # beyond the width, too


def test_a_gradient_has_the_rank_of_its_number_of_prefixes(
    fresh_seed: int, fresh_cases: Callable[[int], int]
) -> None:
    """The certificate assumes this of weights in general position, up to h - 1."""
    for seed in range(1000 * fresh_seed, 1000 * fresh_seed + fresh_cases(60)):
        g = np.random.default_rng(seed)
        b, length = int(g.choice([2, 4, 6])), int(g.choice([2, 4]))
        made = narrow(8, length, int(g.choice([1, 2])), tokens=256)
        x, y = batch(g, b, length)
        prefixes = {tuple(row[:k].tolist()) for row in x for k in range(1, length + 1)}
        gradient = made.gradient(start(made, seed, 0, x, y), x, y)
        size = torch.linalg.svdvals(made.layout.split(gradient)[BEHIND])
        assert int((size > 1e-11 * size[0]).sum()) == min(len(prefixes), 7), seed


@pytest.mark.parametrize(("copies", "certified"), [(8, 8), (9, 0)])
def test_a_batch_has_no_more_tokens_than_the_layer_has_neurons(copies: int, certified: int) -> None:
    """The slopes of 36 tokens in 32 neurons depend on each other."""
    made = narrow(8, 4)
    x = torch.tensor([[65.0, 66, 67, 68]], dtype=D).expand(copies, -1)
    y = torch.full((copies,), 69)
    found = attacked(made, start(made, 0, 0, x, y)[None], x, y, D)
    assert records(found.x, y) == records(x, y)
    assert found.certified == certified
    assert certified or "36 tokens could occur, and their layer has only 32" in found.note
