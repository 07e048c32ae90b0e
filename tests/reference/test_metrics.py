"""Metrics against scikit-image, numpy and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.scoring import metrics


def images(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 1, 25, 25), (2, 3, 32, 32), (2, 3, 7, 40)])
def test_psnr_and_ssim_equal_scikit_image(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, y = images(*shape, dtype=dtype), images(*shape, seed=1, dtype=dtype)
    psnr, ssim = metrics.psnr(x, y, data_range=1.0), metrics.ssim(x, y, data_range=1.0)
    assert ssim is not None
    for i, (a, b) in enumerate(zip(x.double().numpy(), y.double().numpy(), strict=True)):
        assert psnr[i].item() == pytest.approx(
            peak_signal_noise_ratio(b, a, data_range=1.0), rel=1e-12
        )
        assert ssim[i].item() == pytest.approx(
            structural_similarity(b, a, data_range=1.0, channel_axis=0), abs=1e-12
        )


def test_ssim_of_one_window_equals_wang_equation_13() -> None:
    a, b = images(1, 1, 7, 7, dtype=torch.float64), images(1, 1, 7, 7, seed=1, dtype=torch.float64)
    p, q = a.flatten().numpy(), b.flatten().numpy()
    c1, c2 = 0.01**2, 0.03**2
    covariance = np.cov(p, q)
    closed = (2 * p.mean() * q.mean() + c1) * (2 * covariance[0, 1] + c2)
    closed /= (p.mean() ** 2 + q.mean() ** 2 + c1) * (covariance[0, 0] + covariance[1, 1] + c2)
    found = metrics.ssim(a, b, data_range=1.0)
    assert found is not None
    assert found.item() == pytest.approx(closed, rel=1e-10)


@given(offset=st.floats(1e-6, 1.0), data_range=st.floats(0.5, 300.0))
@settings(derandomize=True, max_examples=30, deadline=None)
def test_psnr_of_a_constant_offset_has_a_closed_form(offset: float, data_range: float) -> None:
    x = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    assert metrics.psnr(x, x + offset, data_range=data_range).item() == pytest.approx(
        20 * math.log10(data_range / offset), rel=1e-9
    )


def test_psnr_stops_at_the_cap_and_not_before() -> None:
    x = images(1, 1, 5, 5, dtype=torch.float64)
    assert metrics.psnr(x, x, data_range=1.0).item() == metrics.PSNR_CAP
    assert metrics.psnr(x, x + 1e-12, data_range=1.0).item() == metrics.PSNR_CAP
    assert metrics.psnr(x, x + 1e-9, data_range=1.0).item() == pytest.approx(180.0, abs=1e-4)


@pytest.mark.parametrize(
    ("side", "window"), [(2, None), (3, 3), (4, 3), (5, 5), (6, 5), (7, 7), (8, 7), (64, 7)]
)
def test_ssim_takes_the_largest_odd_window_that_fits(side: int, window: int | None) -> None:
    assert metrics.ssim_window((1, side, 40)) == window
    x, y = images(1, 1, side, 40), images(1, 1, side, 40, seed=1)
    found = metrics.ssim(x, y, data_range=1.0)
    if window is None:
        assert found is None
    else:
        wanted = structural_similarity(
            x[0].double().numpy(),
            y[0].double().numpy(),
            win_size=window,
            data_range=1.0,
            channel_axis=0,
        )
        assert found is not None
        assert found.item() == pytest.approx(wanted, abs=1e-12)


def test_mse_and_relative_error_equal_numpy() -> None:
    x, y = images(4, 22), images(4, 22, seed=1)
    assert np.allclose(
        metrics.mse(x, y).numpy(), ((x.double() - y.double()).numpy() ** 2).mean(1), rtol=1e-14
    )
    wanted = np.linalg.norm((x.double() - y.double()).numpy(), axis=1) / np.linalg.norm(
        y.double().numpy(), axis=1
    )
    assert np.allclose(metrics.relative_error(x, y).numpy(), wanted, rtol=1e-14)


def test_relative_error_of_a_zero_record_is_the_plain_error() -> None:
    assert metrics.relative_error(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)).item() == 5.0


def test_exact_means_every_pixel_on_the_grid() -> None:
    y = torch.arange(256).reshape(1, 1, 16, 16) / 255
    x = y.repeat(3, 1, 1, 1)
    x[1] += 0.49 / 255
    x[2, 0, 3, 3] += 0.51 / 255
    found = metrics.exact(x, y.repeat(3, 1, 1, 1), levels=255)
    assert found is not None
    assert found.tolist() == [True, True, False]
    assert metrics.exact(y, y, levels=0) is None
    nothing = metrics.exact(y * math.nan, y, levels=255)
    assert nothing is not None
    assert nothing.tolist() == [False]


def test_labels_are_equal_as_classes_and_near_as_numbers() -> None:
    assert metrics.labels_correct(torch.tensor([1, 2]), torch.tensor([1, 3])).tolist() == [
        True,
        False,
    ]
    assert metrics.labels_correct(
        torch.tensor([1.0001, 1.1]), torch.tensor([1.0, 1.0])
    ).tolist() == [True, False]
    with pytest.raises(LeakauditError, match="same length"):
        metrics.labels_correct(torch.tensor([1]), torch.tensor([1, 2]))


@given(seed=st.integers(0, 10_000), noise=st.floats(0, 1))
@settings(derandomize=True, max_examples=40, deadline=None)
def test_identification_equals_a_plain_count(seed: int, noise: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    records = torch.rand(30, 1, 3, 3, generator=generator)
    x = records[:4] + noise * torch.randn(4, 1, 3, 3, generator=generator)
    rank, candidates = metrics.identification(x, records[:4], records)
    for i in range(4):
        distance = [float(np.linalg.norm((x[i] - r).numpy())) for r in records]
        assert rank[i] == 1 + sum(d <= distance[i] for j, d in enumerate(distance) if j != i)
        assert candidates[i] == 30


def test_a_copy_of_the_true_record_stands_for_it_and_a_tie_counts_against() -> None:
    records = torch.tensor([[0.0, 0.0], [0.0, 0.0], [2.0, 0.0], [0.0, 9.0]])
    rank, candidates = metrics.identification(
        torch.tensor([[0.1, 0.0], [1.0, 0.0]]), records[:1].repeat(2, 1), records
    )
    assert candidates.tolist() == [3, 3]
    assert rank.tolist() == [1, 2]


def test_random_guesses_are_identified_at_chance_level() -> None:
    generator = torch.Generator().manual_seed(0)
    records = torch.randn(20, 8, generator=generator)
    owner = torch.randint(20, (4000,), generator=generator)
    guesses = torch.randn(4000, 8, generator=generator)
    rank, candidates = metrics.identification(guesses, records[owner], records)
    assert set(candidates.tolist()) == {20}
    assert (rank == 1).double().mean().item() == pytest.approx(1 / 20, abs=0.015)


def test_pairs_of_different_shapes_are_refused() -> None:
    with pytest.raises(LeakauditError, match="the same shape"):
        metrics.mse(torch.zeros(1, 3), torch.zeros(1, 4))


@pytest.mark.parametrize("shape", [(1, 9, 9), (3, 5, 8)])
def test_images_that_one_image_resembles_are_near_in_structure(shape: tuple[int, ...]) -> None:
    """SSIM >= s with two images bounds their distance: 2 sqrt(3 (1 - s)) by the triangle."""
    random = torch.Generator().manual_seed(5)
    x = torch.rand(12, *shape, generator=random, dtype=torch.float64)
    x[3:6] = (x[:3] + 0.05 * torch.randn(3, *shape, generator=random)).clamp(0, 1)
    x[6] = 0.0
    x[7:9] = x[:1] * torch.tensor([0.9, 0.2]).view(2, 1, 1, 1)
    apart = metrics.structural_distances(x)
    assert apart is not None
    direct = (apart[:, None, :] + apart[None]).transpose(1, 2).amin(1)
    assert (apart <= direct + 1e-9).all()  # the triangle inequality
    for i in range(len(x)):
        similar = metrics.ssim(x[i].expand_as(x), x, data_range=1.0)
        assert similar is not None
        assert (similar <= metrics_at(apart[i]) + 1e-9).all()


def metrics_at(apart: torch.Tensor) -> torch.Tensor:
    return torch.tensor([metrics.ssim_at(float(one)) for one in apart], dtype=torch.float64)
