"""Decisions about tapped messages that other tests only see from afar."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from leakaudit.capture.tap.merge import _record_truth, about
from leakaudit.capture.tap.messages import arranged, private, states


def test_records_of_a_truth_belong_to_their_nodes() -> None:
    told: list[tuple[int, list[int], list[int], list[int]]] = []

    def truth(owner: int, x: np.ndarray, y: np.ndarray, index: np.ndarray) -> None:
        told.append((owner, x[:, 0].tolist(), y.tolist(), index.tolist()))

    records = (np.array([[5], [6], [7]]), np.array([0, 1, 2]), np.array([3, 1, 3]))
    _record_truth(cast(Any, SimpleNamespace(truth=truth)), records)
    assert told == [(1, [6], [1], [1]), (3, [5, 7], [0, 2], [0, 2])]


@pytest.mark.parametrize(
    ("name", "buffer"),
    [
        ("bn.running_mean", True),
        ("bn.running_var", True),
        ("bn.num_batches_tracked", True),
        ("bn.weight", False),
        ("", False),
    ],
)
def test_statistics_of_batches_are_no_parameters(name: str, buffer: bool) -> None:
    event = cast(Any, SimpleNamespace(notes={"name": name}))
    assert states._is_named_buffer(event) is buffer


def test_a_start_model_is_scaled_like_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arranged, "common", lambda *_: torch.tensor([1.0, -2.0]))
    monkeypatch.setattr(arranged, "_graph", lambda *_: None)
    monkeypatch.setattr(arranged, "_kinds", lambda *_: {})
    found = arranged.peers(cast(Any, SimpleNamespace(scale=3.0, start=0)), [], 2)
    assert found.start is not None
    assert found.start.tolist() == [3.0, -6.0]


def test_the_share_of_the_tap_is_that_of_all_processes() -> None:
    def log(rank: int, seconds: float, spent: float) -> Any:
        return SimpleNamespace(rank=rank, seconds=seconds, spent=spent, closed=True, about={})

    layout = SimpleNamespace(task=SimpleNamespace(layout=SimpleNamespace(size=1)))
    plan = SimpleNamespace(sent=(), missing=(), left_out={}, notes=(), description=layout)
    found = cast(Any, about(cast(Any, plan), [log(0, 6.0, 1.5), log(1, 2.0, 0.5)], 0))
    assert (found["tap"]["share"], found["tap"]["seconds"]) == (0.25, 2.0)


def test_the_noise_of_opacus_is_its_multiplier_times_the_clip() -> None:
    assert private._Stated(1.5, 2.0, 4.0, False).sigma == 3.0
