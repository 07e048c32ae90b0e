"""Coordinates of images: cosine coefficients as scipy defines them, scaled, and back."""

from __future__ import annotations

import numpy as np
import scipy.fft
import torch

from leakaudit.inversion.search.cosine_transform import coordinates, image, transform
from leakaudit.tasks import data

D = torch.float64


def test_coordinates_are_scaled_cosine_coefficients_and_lead_back() -> None:
    x = torch.rand(2, 4, 3, 10, 7, generator=torch.Generator().manual_seed(0), dtype=D)
    space = transform(x.shape[2:])
    assert space is not None
    z = coordinates(space, x)
    down, right = np.mgrid[:10, :7]
    size = (1 + down**2 + right**2) ** -0.25
    expected = scipy.fft.dctn(x.numpy(), axes=(-2, -1), norm="ortho") / (size / size.mean())
    np.testing.assert_allclose(z.numpy(), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(image(space, z), x, rtol=1e-12, atol=1e-13)
    assert image(space, z.float()).dtype == torch.float32
    assert transform((7,)) is None


def test_photographs_vary_more_alike_in_them_than_in_plain_frequencies() -> None:
    """The logarithm of the largest over the smallest standard deviation falls by more than a quarter."""
    x = data.load("photos").x.double()
    space = transform(x.shape[1:])
    assert space is not None
    plain = torch.from_numpy(scipy.fft.dctn(x.numpy(), axes=(-2, -1), norm="ortho")).std(0).mean(0)
    scaled = coordinates(space, x).std(0).mean(0)
    spread = [float((s.max() / s.min()).log()) for s in (plain, scaled)]
    assert spread[1] < 0.75 * spread[0]
