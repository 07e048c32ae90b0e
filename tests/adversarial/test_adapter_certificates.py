"""No false certificate for batches behind a low-rank adapter, whatever the program does.

The families are those of `strange_batches`; gradients are computed by hand, from those of a network
without adapters. ``LEAKAUDIT_FRESH_SEED`` and ``LEAKAUDIT_FRESH_CASES`` draw other cases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import strange_batches
import torch
from strange_batches import Case, Count
from torch import Generator, Tensor

from leakaudit.core.errors import AttackError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.trace import Json, TaskSpec
from leakaudit.inversion.attacking import attack_one
from leakaudit.tasks.task import Task

D = torch.float64
ACTS = {
    "relu": torch.relu,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "gelu": torch.nn.functional.gelu,
    "tanh": torch.tanh,
    "silu": torch.nn.functional.silu,
}


def attacked(case: Case, seed: int) -> Count:
    """Attack every client of a case whose first layer is frozen, with an adapter."""
    g = Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    clients, b, p = case.x.shape
    if not case.hidden:
        case = replace(case, hidden=48)
    name = next(name for name, act in ACTS.items() if act is case.act)
    if name == "relu":
        name = str(rng.choice(["relu", "gelu", "tanh"]))
        case = replace(case, act=ACTS[name])
    rank, scale = int(rng.choice([2, 4, 8, 16])), float(rng.choice([0.5, 1, 2, 16]))
    trained, bias = str(rng.choice(["first", "head"])), bool(rng.random() < 0.7)
    outputs = 1 if case.loss == "binary" else case.classes
    shapes = [(case.hidden, p), (case.hidden,), (outputs, case.hidden), (outputs,)]
    scales = [p**-0.5, 0.1 * bias, case.hidden**-0.5, 0.1]
    w = [torch.randn(s, generator=g, dtype=D) * a for s, a in zip(shapes, scales, strict=True)]
    case.start(w)
    w = [part.float().to(D) for part in w]  # as the model stores its constants
    if not bias:
        w[1].zero_()
    args: dict[str, Json] = {
        "hidden": case.hidden,
        "rank": rank,
        "act": name,
        "scale": scale,
        "trained": trained,
        "bias": bias,
    }
    constants = {"1.base.weight": w[0], "1.base.bias": w[1]}
    if not bias:
        del constants["1.base.bias"]
    if trained == "first":
        constants |= {"3.weight": w[2], "3.bias": w[3]}
    spec = TaskSpec(
        "adapters:mlp",
        args,
        case.loss,
        case.shape or (p,),
        case.classes,
        levels=case.levels,
        constants=constants,
    )
    task = Task.build(spec, dtype=D, trusted=True)
    down = torch.randn(rank, p, generator=g, dtype=D) * p**-0.5
    up = torch.zeros(case.hidden, rank, dtype=D)
    total = Count(records=clients * b)
    for i in range(clients):
        flat = torch.cat([down.flatten(), up.flatten()])
        if trained == "head":
            flat = torch.cat([flat, w[2].flatten(), w[3]])
        flat = flat.to(case.dtype)
        thetas, values, received = [], [], []
        for t in range(1, int(rng.choice([2, 3, 4])) + 1):
            parts = task.layout.split(flat.to(D))
            low, high = parts["1.A"], parts["1.B"]
            whole = [w[0] + scale * high @ low, w[1], *w[2:]]
            if trained == "head":
                whole[2:] = parts["3.weight"], parts["3.bias"]
            x = case.view(case.x[i], t, g)
            y = case.y[i, torch.arange(len(x)) % b]
            split = strange_batches.gradient(whole, x, y, case, t, g)
            of_weight, _, *of_head = split.split([part.numel() for part in whole])
            slope = of_weight.reshape(w[0].shape)
            factors = [scale * high.T @ slope, scale * slope @ low.T]
            sent = torch.cat(
                [part.flatten() for part in (*factors, *of_head)][: 2 + 2 * (trained == "head")]
            )
            sent = sent + case.decay * flat.to(D)
            sent = case.wire(sent.to(case.dtype), g).to(case.dtype)
            thetas.append(flat)
            values.append(sent)
            received.append(x)
            flat = flat - case.lr * sent
        total.add(judged(case, task, thetas, values, torch.cat(received), i))
    return total


def judged(
    case: Case,
    task: Task,
    thetas: list[Tensor],
    values: list[Tensor],
    received: Tensor,
    node: int,
) -> Count:
    """Attack one client's gradients as they are declared."""
    b = case.x.shape[1]
    told = {"samples": b, **case.tell}
    samples = told.get("samples")
    batch = told.get("batch", samples)
    value = torch.stack(values)
    precision = torch.finfo(case.dtype).eps
    leak = GradientLeak(
        node,
        torch.arange(1, len(values) + 1),
        torch.eye(len(values), dtype=case.dtype),
        value,
        precision / 3 * value.double().square().mean(1).sqrt(),
        (0, task.layout.size),
        theta=torch.stack(thetas),
        batch=None if batch is None else int(batch),
        records=None if samples is None else int(samples),
        wire=precision,
    )
    try:
        found = attack_one(leak, task, "exact", Generator().manual_seed(0))
    except AttackError:
        return Count()
    return strange_batches.compared(found, received, case.levels)


def count(family: str, seeds: range) -> Count:
    """What is certified of the first client of some cases."""
    total = Count()
    for seed in seeds:
        case = strange_batches.FAMILIES[family](np.random.default_rng(seed))
        total.add(attacked(replace(case, x=case.x[:1], y=case.y[:1]), seed))
    return total


@pytest.mark.slow
@pytest.mark.parametrize("family", strange_batches.FAMILIES)
def test_no_input_behind_an_adapter_is_certified_falsely(
    family: str, fresh_seed: int, fresh_cases: Callable[[int], int]
) -> None:
    first = 1000 * fresh_seed
    total = count(family, range(first, first + fresh_cases(1)))
    assert not total.false, total.cases
    assert not total.missed, total.cases


def test_ordinary_photographs_are_certified() -> None:
    assert count("photographs", range(1)).exact == 4


@pytest.mark.parametrize("family", ["mixup", "twins", "undeclared decay", "rows alike"])
def test_what_programs_do_is_not(family: str) -> None:
    total = count(family, range(1))
    assert not total.false, total.cases
    assert not total.missed, total.cases
