"""The last bits of messages: what sums of floating-point numbers leave in them is no alarm."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import leakaudit as la
from leakaudit.protocols.declared import protocol_of
from leakaudit.views.conformance import bits

NOISY = {"sigma": 0.5, "clip": 1.0, "noise": "message"}


def recorded(seed: int) -> la.Trace:
    trace, _ = la.record(
        la.Scenario(
            victim="dpsgd",
            nodes=4,
            graph="ring",
            rounds=6,
            data="faces",
            model="logistic",
            seed=seed,
            set=NOISY,
        )
    )
    return trace


def said(change: bool) -> list[str]:
    """Return what the bits of four recordings contain besides noise, with or without a payload."""
    looked = bits.Bits()
    generator = torch.Generator().manual_seed(0)
    for seed in range(4):
        trace = recorded(seed)
        if change:
            words = trace.messages[0].payload.view(torch.int32)
            payload = torch.randint(0, 4, words.shape[1:], generator=generator.manual_seed(0))
            words.copy_((words & ~3) | payload.int())
        looked.add(trace, protocol_of(trace).start)
    return [str(one) for one in looked.wrong()]


def test_sums_in_float32_leave_zeros_only() -> None:
    assert said(change=False) == []


def test_two_bits_of_every_message() -> None:
    assert any("the last bits" in one for one in said(change=True))


@pytest.mark.parametrize("count", [1, 30, 1000])
@pytest.mark.parametrize("flips", [2, 9])
def test_random_bits_exceed_the_limit_as_rarely_as_stated(count: int, flips: int) -> None:
    """At exp(-3) the limit is exceeded at most so often, also if zeros are more frequent."""
    generator = np.random.default_rng(0)
    for share in (0.5, 0.4):
        sums = 2 * generator.binomial(flips, share, size=(2000, count)) - flips
        totals = (np.maximum(sums, 0) ** 2 / flips).sum(1)
        rate = float((totals > bits._largest_positive(count, 3.0)).mean())
        assert rate <= math.exp(-3) + 3 * math.sqrt(math.exp(-3) / 2000)


SCALED: dict[str, Callable[[Tensor, float], Tensor]] = {
    "times": lambda draws, sigma: sigma * draws,
    "divided": lambda draws, sigma: draws / (1 / sigma),
    "normal_": lambda draws, sigma: torch.empty_like(draws).normal_(0, sigma),
}


@pytest.mark.parametrize("sigma", [0.2, 0.1, 0.05, 0.3, 1 / 3, 0.01])
@pytest.mark.parametrize("how", SCALED)
def test_messages_that_are_nothing_but_scaled_noise(how: str, sigma: float) -> None:
    """The last two bits of `0.2 * randn` are 1 in 60 % of float32 numbers, for example."""
    random = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    task = la.TaskSpec("logistic", shape=(500,), classes=2)
    told = {"sigma": sigma, "lr": 0.1}
    graph = la.Graph(3, ((0, 2), (1, 2)))
    size = la.Task.build(task).layout.size
    with la.Recorder(None, protocol="fedsgd", task=task, graph=graph, params=told) as recorder:
        for t in range(1, 21):
            recorder.send(round=t, src=2, dst=[0, 1], kind="w", value=torch.ones(size))
            for node in range(2):
                noise = SCALED[how](torch.randn(size, generator=random), sigma)
                recorder.send(round=t, src=node, dst=2, kind="g", value=noise)
    looked = bits.Bits()
    looked.add(recorder.trace, protocol_of(recorder.trace).start)
    assert [str(one) for one in looked.wrong()] == []
