"""`auto` reports the worst that is true, and does not stop at estimates that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from torch import Generator

import leakaudit as la
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.protocols.scenario import Scenario

NOT_CONFIRMED = "not confirmed"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Reconstruction, float]]:
    """Results for rows of a table behind 8 neurons, and the largest error of each pair.

    So few neurons leave the exact attack with estimates.
    """
    file = tmp_path_factory.mktemp("table") / "table.npz"
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 12)).astype("float32")
    np.savez(file, x=x, y=draw.integers(0, 3, 200))
    scenario = Scenario(
        "fedsgd",
        nodes=12,
        rounds=1,
        samples=2,
        data=f"npz:{file}",
        model="mlp",
        set={"act": "relu", "hidden": "8"},
    )
    trace, truth = la.record(scenario)
    results = la.attack(la.leaks(trace), generator=Generator().manual_seed(0))
    scores = la.score(results, truth)
    errors = [[error for error in one.relative_error or () if error is not None] for one in scores]
    return [(result, max(some)) for result, some in zip(results, errors, strict=True)]


def test_a_search_replaces_estimates_that_do_not_reproduce_the_gradients(
    found: list[tuple[Reconstruction, float]],
) -> None:
    searched = [(result, error) for result, error in found if result.attack == "dlg"]
    assert len(searched) >= 2
    for result, error in searched:
        assert result.certificate is Certificate.APPROXIMATE
        assert error < 1e-3


def test_estimates_that_do_are_kept_with_their_labels(
    found: list[tuple[Reconstruction, float]],
) -> None:
    kept = [one for one in found if one[0].attack == "exact" and NOT_CONFIRMED not in one[0].note]
    assert len(kept) >= 6
    for result, error in kept:
        assert result.y is not None
        assert error < 1e-4


def test_estimates_that_are_wrong_say_that_they_are_not_confirmed(
    found: list[tuple[Reconstruction, float]],
) -> None:
    wrong = [result for result, error in found if error > 0.1]
    assert wrong, "this case needs one that no attack solves"
    for result in wrong:
        assert NOT_CONFIRMED in result.note
        assert result.certificate is Certificate.APPROXIMATE
