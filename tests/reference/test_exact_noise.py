"""Exact recovery in noise: planted problems against closed forms, and real images against what a first prototype reached."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.inversion.exact import first_layer_rows, noisy_duals
from leakaudit.inversion.exact.noisy_duals import _NeuronRows
from leakaudit.inversion.exact.pixel_grid import NEAR, OFF, PixelGrid
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.scoring.scoring import Score

D = torch.float64


@pytest.fixture(scope="module")
def fashion(tmp_path_factory: pytest.TempPathFactory, shared_data: Callable[[str], Path]) -> str:
    """The test images of Fashion-MNIST, as a scenario names them."""
    raw, file = shared_data("fashion_mnist"), tmp_path_factory.mktemp("exact") / "fashion.npz"
    x = np.frombuffer(
        gzip.decompress((raw / "t10k-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16
    ).reshape(-1, 28, 28)
    y = np.frombuffer(
        gzip.decompress((raw / "t10k-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8
    ).astype(np.int64)
    np.savez(file, x=x, y=y)
    return f"npz:{file}"


def attacked(
    data: str, samples: int, std: float, seed: int = 0, **changes: Any
) -> tuple[Reconstruction, Score]:
    """Node 0 of five in a ring whose wires carry multiples of a cell: rounding with this standard deviation."""
    settings = {"hidden": 256, "z0": 0.1, "quantize": std * math.sqrt(12)}
    shape = {
        "nodes": 5,
        "graph": "ring",
        "rounds": 40,
        "wires": "node:0",
        "dtype": "float64",
        "set": settings,
        **changes,
    }
    recorder = recording.record(
        recording.plan(Scenario(data=data, samples=samples, seed=seed, **shape)), None
    )
    leaks = la.leaks(recorder.trace, nodes=[0], rounds=40)
    name = "auto" if samples == 1 else "exact"
    found = la.attack(leaks, name, generator=Generator().manual_seed(0))[0]
    return found, la.score(found, recorder.truth_record)[0]


def check(found: Reconstruction, score: Score, least: float) -> None:
    """The median PSNR, and that nothing is called exact which is not."""
    assert median(float(p or 0) for p in score.psnr or (0.0,)) >= least
    claimed = {k for k, c in enumerate(found.certificates) if c is Certificate.EXACT}
    right = {k for k, e in zip(score.matched, score.exact or (), strict=True) if e}
    assert claimed <= right
    assert (found.certificate is Certificate.EXACT) == (len(claimed) == len(score.matched))


# What the prototype reached in Gaussian noise of this standard deviation, less 3 dB, where it did not fail
@pytest.mark.parametrize(
    ("samples", "std", "least"),
    [(2, 1e-4, 50), pytest.param(4, 1e-5, 68, marks=pytest.mark.slow), (8, 1e-6, 81)],
)
def test_as_good_as_the_prototype(fashion: str, samples: int, std: float, least: float) -> None:
    check(*attacked(fashion, samples, std), least)


@pytest.mark.parametrize(
    ("samples", "std", "least"),
    [(4, 1e-4, 49), pytest.param(8, 1e-4, 46, marks=pytest.mark.slow)],
)
def test_where_the_prototype_failed(fashion: str, samples: int, std: float, least: float) -> None:
    """Within 4 dB of what the true patterns would give: 53 and 50 dB."""
    check(*attacked(fashion, samples, std), least)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("samples", "least"),
    [(1, (94, 74, 54)), (2, (90, 70, 50)), (4, (88, 68, 49)), (8, (81, 66, 46))],
)
def test_noise_of_other_runs(
    fashion: str, samples: int, least: tuple[float, ...], seed: int
) -> None:
    for std, limit in zip((1e-6, 1e-5, 1e-4), least, strict=True):
        check(*attacked(fashion, samples, std, seed), limit)


@pytest.mark.parametrize("std", [1e-4, 1e-3, 1e-2])
def test_faces_are_never_called_exact_wrongly(std: float) -> None:
    found, score = attacked("faces", 4, std, rounds=20)
    check(found, score, 0)
    assert found.certificate is not Certificate.EXACT


def planted(
    b: int, units: int = 120, rounds: int = 8, size: float = 30.0, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (units, rounds, b) with errors of unit variance, coordinates (b, b) of length 1 and patterns (units, b)."""
    g = Generator().manual_seed(seed)
    m = torch.linalg.qr(torch.randn(b, b, generator=g, dtype=D)).Q + 0.3 * torch.randn(
        b, b, generator=g, dtype=D
    )
    m = m / m.norm(dim=1, keepdim=True)
    active = torch.rand(units, b, generator=g) < 0.8
    delta = size * torch.randn(units, rounds, b, generator=g, dtype=D) * active[:, None]
    return delta @ m + torch.randn(units, rounds, b, generator=g, dtype=D), m, active


def test_true_coordinates_leave_chi_squared() -> None:
    """Of n rows and b columns, a neuron with a active samples leaves n (b - a) squares of errors."""
    rows, m, active = planted(6)
    freedom = rows.shape[1] * float((~active).sum())
    left = noisy_duals.fit(rows, m, active).cost - noisy_duals.penalty(rows.shape[1]) * float(
        active.sum()
    )
    assert abs(left - freedom) < 4 * math.sqrt(2 * freedom)


def test_patterns_settle_at_the_planted_ones_from_everything_active() -> None:
    rows, m, active = planted(4)
    found = noisy_duals.fit(rows, m, torch.ones_like(active))
    assert float((found.active == active).double().mean()) > 0.995


@pytest.mark.parametrize("b", [2, 5, 8])
def test_planted_coordinates_come_back_as_well_as_from_their_patterns(b: int) -> None:
    rows, m, active = planted(b)
    evidence = _NeuronRows.of(rows)
    found = noisy_duals.search(evidence, Generator().manual_seed(1))
    oracle = noisy_duals.refined(evidence.rows, noisy_duals.fit(evidence.rows, m, active), m[:0])
    like = (found.m @ m.T).abs()
    assert like.argmax(1).unique().numel() == b
    off, best = (
        (1 - like.amax(1)).clamp_min(0).sqrt(),
        (1 - (oracle.m * m).sum(1).abs()).clamp_min(0).sqrt(),
    )
    assert float(off.max()) < 1.5 * float(best.max())
    assert torch.equal(found.active[:, like.argmax(0)], oracle.active)


def test_known_coordinates_stay_and_help_the_others() -> None:
    rows, m, _ = planted(5, size=8.0)
    evidence = _NeuronRows.of(rows)
    found = noisy_duals.settled(evidence, m, 3)
    assert torch.allclose(found.m[:3], m[:3], atol=1e-14)
    blind = noisy_duals.settled(evidence, m, 0)
    off, without = (float((1 - (f.m[3:] * m[3:]).sum(1).abs()).sum()) for f in (found, blind))
    assert off < 1.05 * without


def stack(
    sizes: list[float], rounds: int = 10, units: int = 60, pixels: int = 100, seed: int = 0
) -> Tensor:
    """A stack (rounds, units, pixels) of unit noise with these singular values, in units of what noise reaches."""
    g = Generator().manual_seed(seed)
    flat = torch.randn(rounds * units, pixels, generator=g, dtype=D)
    left = torch.linalg.qr(torch.randn(rounds * units, len(sizes), generator=g, dtype=D)).Q
    right = torch.linalg.qr(torch.randn(pixels, len(sizes), generator=g, dtype=D)).Q
    edge = math.sqrt(rounds * units) + math.sqrt(pixels)
    flat += edge * left @ torch.diag(torch.tensor(sizes, dtype=D)) @ right.T
    return flat.reshape(rounds, units, pixels)


@pytest.mark.parametrize("expected", [3, 5, None])
def test_white_noise_ends_the_batch_where_singular_values_drop_most_before(
    expected: int | None,
) -> None:
    span = first_layer_rows.span(stack([600.0, 8.0, 2.0]), expected, Generator().manual_seed(0))
    assert span is not None
    assert span.batch == 3
    assert span.white
    assert span.noise == pytest.approx(1, abs=0.1)


def test_noise_that_the_leak_does_not_state_is_not_taken_for_white() -> None:
    for rows in (3 * stack([600.0, 300.0]), 0.2 * stack([600.0, 300.0]), stack([1e9, 5e8])):
        span = first_layer_rows.span(rows, 4, Generator().manual_seed(0))
        assert span is not None
        assert not span.white
        assert span.batch == 2


def test_the_space_around_a_known_input_is_nearer_to_the_truth() -> None:
    g = Generator().manual_seed(0)
    x = torch.randn(2, 100, generator=g, dtype=D)
    weights = torch.randn(600, 1, generator=g, dtype=D) @ torch.ones(
        1, 2, dtype=D
    ) + 0.1 * torch.randn(600, 2, generator=g, dtype=D)
    rows = (weights @ x + torch.randn(600, 100, generator=g, dtype=D)).reshape(10, 60, 100)
    basis = first_layer_rows.around(rows, x[:1], 2, g)
    assert torch.allclose(basis @ basis.T, torch.eye(2, dtype=D), atol=1e-12)
    span = first_layer_rows.span(rows, 2, g)
    assert span is not None
    away, before = ((x[1] - x[1] @ b.T @ b).norm() for b in (basis, span.basis))
    assert float(away) < 0.5 * float(before)


def test_what_the_grid_calls_exact_is_exact_in_gaussian_noise() -> None:
    """At the largest distance that is accepted, one pixel in 3e7 is rounded wrongly."""
    g = Generator().manual_seed(0)
    grid = PixelGrid(255, torch.zeros(784, dtype=D), torch.ones(784, dtype=D))
    x = torch.randint(256, (300, 784), generator=g).double() / 255
    for rms in (0.5 * OFF, 0.98 * OFF, 1.02 * OFF, 0.5 * NEAR + 0.5 * OFF, 2 * NEAR):
        seen = x + rms / 255 * torch.randn(300, 784, generator=g, dtype=D)
        good = grid.holds(seen)
        assert torch.equal((grid.snapped(seen[good]) * 255).round(), (x[good] * 255).round())
        assert bool(good.all()) if rms < 0.9 * OFF else not bool(good.all())
        shown, before = (grid.denoised(seen) - x).norm(), (seen - x).norm()
        assert float(shown) < 0.8 * float(before) if rms < NEAR else float(shown) == float(before)


@pytest.mark.parametrize(("n", "p"), [(16, 65), (40, 65), (200, 65), (65, 40)])
def test_white_noise_ends_the_batch_in_small_stacks_too(n: int, p: int) -> None:
    g = Generator().manual_seed(n)
    for b in (1, 2, 4):
        signal = (
            2
            * torch.randn(n, b, generator=g, dtype=torch.float64)
            @ torch.randn(b, p, generator=g, dtype=torch.float64)
        )
        found = first_layer_rows.span(
            (signal + torch.randn(n, p, generator=g, dtype=torch.float64))[:, None], None, g
        )
        assert found is not None
        assert found.batch == b
    assert (
        first_layer_rows.span(torch.randn(n, 1, p, generator=g, dtype=torch.float64), None, g)
        is None
    )
