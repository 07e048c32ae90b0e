"""Decisions about tapped messages that other tests only see from afar."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from leakaudit.capture.tap.merge import _record_truth
from leakaudit.capture.tap.messages import states


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
