"""The cone attack: whole batches from one gradient, through convolutions, and its certificates."""

from __future__ import annotations

from typing import Any

import lookalikes
import numpy as np
import pytest
import torch
from digits import digits
from planted import check, faces, leak_of
from torch import Generator, Tensor

from leakaudit.attacks import Cone
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate
from leakaudit.core.trace import TaskSpec
from leakaudit.inversion.exact import (
    extreme_rays,
    grid_lattice,
    lattice_points,
    open_pixels,
    weak_samples,
)
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks.task import Task


def through_convolutions(**settings: Any) -> Task:
    spec = TaskSpec(
        "cnn",
        {"channels": (16,), "hidden": (64,), **settings},
        shape=(1, 25, 25),
        classes=10,
        mean=(0.5,),
        std=(0.25,),
        levels=255,
    )
    return Task.build(spec, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("act", ["relu", pytest.param("sigmoid", marks=pytest.mark.slow)])
def test_a_batch_comes_back_through_a_convolution(dtype: torch.dtype, act: str) -> None:
    task = through_convolutions(act=act)
    x = faces(12, seed=1)
    y = torch.arange(12) % 10
    found = Cone()(leak_of(task, x, y, dtype), task, Generator().manual_seed(2))
    check(found, x, y)


@pytest.mark.slow
def test_two_convolutions_are_peeled() -> None:
    task = through_convolutions(channels=(16, 160), kernel=3)
    x = faces(3, seed=2)
    y = torch.arange(3)
    found = Cone()(leak_of(task, x, y, torch.float64), task, Generator().manual_seed(2))
    check(found, x, y)


def test_a_difference_of_two_gradients_suffices() -> None:
    task = through_convolutions()
    x = faces(6, seed=3)
    y = torch.arange(6)
    first = task.init(Generator().manual_seed(0)).double()
    second = first + 0.02 * torch.randn(
        first.shape, generator=Generator().manual_seed(1), dtype=torch.float64
    )
    leak = leak_of(task, x, y, torch.float64, [first, second])
    found = Cone()(leak, task, Generator().manual_seed(2))
    check(found, x, y)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_black_pixels_suffice_behind_a_smooth_activation(dtype: torch.dtype) -> None:
    spec = TaskSpec(
        "mlp", {"hidden": (64,), "act": "sigmoid"}, shape=(1, 20, 20), classes=10, levels=255
    )
    task = Task.build(spec, dtype=torch.float64)
    x = digits(8, seed=4)
    y = torch.arange(8)
    found = Cone()(leak_of(task, x, y, dtype), task, Generator().manual_seed(2))
    check(found, x, y)


def test_what_is_not_there_is_not_found() -> None:
    """A convolution with too few channels leaves most pixels open, and says so."""
    task = through_convolutions(channels=(2,))
    x = faces(1, seed=5)
    leak = leak_of(task, x, torch.arange(1), torch.float64)
    found = Cone()(leak, task, Generator().manual_seed(2))
    assert not found.certified
    assert "leave more than a few inputs open" in found.note


def test_a_batch_that_is_larger_than_declared_is_not_certified() -> None:
    task = through_convolutions()
    x = faces(6, seed=6)
    leak = leak_of(task, x, torch.arange(6), torch.float64)
    wrong = GradientLeak(**{**vars(leak), "batch": 5})
    found = Cone()(wrong, task, Generator().manual_seed(2))
    assert found.certificate is not Certificate.EXACT
    assert not found.certified


@pytest.mark.parametrize(
    "family",
    [
        "burst",
        *[pytest.param(name, marks=pytest.mark.slow) for name in sorted(lookalikes.FAMILIES)],
    ],
)
def test_similar_images_are_never_called_exact_wrongly(family: str) -> None:
    case = Scenario(
        victim="fedsgd",
        nodes=2,
        rounds=1,
        data="faces",
        samples=4,
        model="cnn",
        set={"channels": 16, "hidden": 64},
        seed=3,
    )
    count = lookalikes.attacked(case, family, 3, attack="cone")
    assert count.images
    assert not count.false, count.cases


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("convnet", None),
        pytest.param("resnet10", "not a plain chain", marks=pytest.mark.slow),
        ("lenet", "classes are too few for 6 samples"),
    ],
)
def test_what_it_cannot_read_it_refuses_in_one_line(model: str, why: str | None) -> None:
    task = Task.build(TaskSpec(model, {}, shape=(1, 25, 25), classes=10, levels=255))
    leak = leak_of(task, torch.rand(6, 1, 25, 25), torch.arange(6), torch.float32)
    said = Cone().refuses(leak, task)
    if why is None:
        assert said is None
    else:
        assert said is not None
        assert "\n" not in said
        assert any(word in said for word in why.split("|"))


# ------------------------------------------------------------------------------------------------
# Plain images, trained models
# ------------------------------------------------------------------------------------------------


def trained(task: Task, x: Tensor, y: Tensor, steps: int) -> Tensor:
    """Train on a batch, so that its losses become small and different."""
    theta = task.init(Generator().manual_seed(0)).double()
    for _ in range(steps):
        theta = theta - 0.05 * task.gradient(theta, x.double(), y)
    return theta


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_batch_comes_back_from_a_trained_model(dtype: torch.dtype) -> None:
    task = through_convolutions()
    x = faces(8, seed=7)
    y = torch.arange(8) % 3
    theta = trained(task, x, y, 25)
    assert task.accuracy(theta, x.double(), y) == 1
    found = Cone()(leak_of(task, x, y, dtype, [theta]), task, Generator().manual_seed(2))
    check(found, x, y)


@pytest.mark.parametrize(
    "family",
    [
        "mirrored",
        *[pytest.param(name, marks=pytest.mark.slow) for name in sorted(lookalikes.FAMILIES)],
    ],
)
def test_similar_images_of_a_trained_model_are_never_called_exact_wrongly(family: str) -> None:
    task = through_convolutions()
    g = Generator().manual_seed(8)
    x = lookalikes.FAMILIES[family](faces(4, seed=8) * 255, g).round().clamp(0, 255) / 255
    y = torch.arange(4)
    theta = trained(task, x, y, 60)
    for dtype in (torch.float64, torch.float32):
        found = Cone()(leak_of(task, x, y, dtype, [theta]), task, Generator().manual_seed(2))
        count = lookalikes.claimed(found, x, family)
        assert not count.false, count.cases


def test_a_gradient_without_the_first_convolution_shows_plain_images() -> None:
    """What few outputs show is proven by the grid, not by the gradient of the convolution."""
    task = through_convolutions()
    x = faces(6, seed=9)
    x[:, :, 5:20, 5:20] = x[:, :, 5:6, 5:6]
    y = torch.arange(6)
    leak = leak_of(task, x, y, torch.float64)
    first = task.layout.slices[task.layout.names[1]].stop
    later = GradientLeak(
        **{
            **vars(leak),
            "value": leak.value[:, first:],
            "columns": (first, task.layout.size),
            "std": 8 * leak.std,  # the rows of plain images are larger than the average
        }
    )
    found = Cone()(later, task, Generator().manual_seed(2))
    assert found.certified == 6, found.note
    away = (found.x[:, None].double() - x[None]).abs().flatten(2).amax(2).amin(1)
    assert not float(away.max())


def board(
    rng: np.random.Generator, equations: int, error: float
) -> tuple[np.ndarray, open_pixels.ProvenPixels]:
    """Levels of nine pixels under one window, and equations between them."""
    from scipy.sparse import csr_array

    truth = rng.integers(0, 256, 9).astype(float)
    matrix = rng.standard_normal((equations, 9))
    right = matrix @ truth + error * rng.standard_normal(equations)
    place = np.zeros(equations, dtype=np.intp)
    pixels = np.arange(9).reshape(1, 1, 9)
    return truth, open_pixels.ProvenPixels(
        csr_array(matrix / error), right / error, place, pixels, 255
    )


@pytest.mark.parametrize("equations", [4, 6, 12])
def test_fewer_equations_than_pixels_determine_whole_levels(equations: int) -> None:
    truth, found = board(np.random.default_rng(equations), equations, 1e-6)
    assert found.fill()
    assert found.known.all()
    assert (found.value == truth).all()
    assert found.fits()


def test_too_few_equations_prove_nothing() -> None:
    """Two equations of nine pixels, each known to a tenth of a level, have many solutions."""
    _, found = board(np.random.default_rng(0), 2, 0.1)
    assert found.fill()
    assert not found.known.any()


def test_equations_without_a_solution_on_the_grid_are_noticed() -> None:
    truth, known = board(np.random.default_rng(1), 12, 1e-6)
    wrong = known.weighted(known.matrix, known.matrix @ (truth + 0.5))
    assert not wrong.fill()


def test_all_integer_points_of_an_ellipsoid_are_found() -> None:
    """Compared with a search of the whole box, for thin ellipsoids."""
    rng = np.random.default_rng(3)
    found = 0
    for _ in range(40):
        r = np.triu(rng.standard_normal((3, 3)))
        r[2, 2] *= 0.3
        centre = rng.uniform(-2, 2, 3)
        points = lattice_points.inside(r, centre, 1.0, 100_000)
        box = np.stack(np.meshgrid(*[np.arange(-20, 21)] * 3), axis=-1).reshape(-1, 3)
        inside = box[np.linalg.norm((box - centre) @ r.T, axis=1) <= 1.0]
        assert points is not None
        near = points[(np.abs(points) <= 20).all(axis=1)]
        assert {tuple(one) for one in near} == {tuple(one) for one in inside}
        found += len(inside)
    assert found > 20


def test_a_weak_sample_is_refined_in_entries_where_it_is_alone() -> None:
    """Errors fall by a factor of ten if one sample's slopes are 1e-5 of the others' in float32."""
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.random((6, 600)) * (rng.random((6, 600)) < 0.5))
    slopes = torch.from_numpy(rng.standard_normal((128, 6)) * (rng.random((128, 6)) < 0.4))
    slopes[:, 0] *= 1e-5
    exact = torch.cat([features, torch.ones(6, 1)], dim=1)
    rows = (slopes.float() @ exact.float()).double()
    basis = torch.linalg.svd(rows, full_matrices=False)[2][:6]
    rough = exact @ basis.T @ basis
    rough = (rough / rough[:, -1:])[:, :-1]
    wire = torch.finfo(torch.float32).eps
    error = (rough - features).square().mean(1).sqrt()
    known = {k: features[k] for k in range(1, 6)}
    noise = wire * float(rows.square().mean().sqrt())
    found = weak_samples.refined(rows, rough, error, known, wire, noise)
    assert found is not None
    # The size is another matter.
    size = (found[0][0] @ features[0]) / found[0][0].square().sum()
    off = (found[0][0] * size - features[0]).abs()
    assert float(off.median()) < 0.1 * float((rough[0] - features[0]).abs().median())
    assert float((off <= 4 * found[1][0] + 1e-6).double().mean()) > 0.95


def test_stated_errors_of_two_weak_samples_hold_in_every_entry() -> None:
    """Both are covered by most others, and every row is clean in other columns."""
    rng = np.random.default_rng(1)
    features = torch.from_numpy(rng.random((16, 600)) * (rng.random((16, 600)) < 0.5))
    slopes = torch.from_numpy(rng.standard_normal((96, 16)) * (rng.random((96, 16)) < 0.4))
    slopes[:, 2:] *= torch.from_numpy(10 ** rng.uniform(-3, 0, 14))
    slopes[:, 0] *= 1e-6
    slopes[:, 1] *= 5e-7
    exact = torch.cat([features, torch.ones(16, 1)], dim=1)
    rows = (slopes.float() @ exact.float()).double()
    basis = torch.linalg.svd(rows, full_matrices=False)[2][:16]
    rough = exact @ basis.T @ basis
    rough = (rough / rough[:, -1:])[:, :-1]
    wire = torch.finfo(torch.float32).eps
    error = (rough - features).square().mean(1).sqrt()
    known = {k: features[k] for k in range(2, 16)}
    noise = wire * float(rows.square().mean().sqrt())
    found = weak_samples.refined(rows, rough, error, known, wire, noise)
    assert found is not None
    for mine, spread, truth in zip(*found, features[:2], strict=True):
        allowed = spread + 1e-6
        size = (mine / allowed) @ (truth / allowed) / (mine / allowed).square().sum()
        assert float(((size * mine - truth).abs() / allowed).max()) < 8
        assert float(spread.median()) < 1e-4


# ------------------------------------------------------------------------------------------------
# Rays and the lattice
# ------------------------------------------------------------------------------------------------


def sparse(count: int) -> tuple[np.ndarray, np.ndarray, extreme_rays.ConvexCone]:
    """Half-empty samples (count, 400), a basis of their space, and their cone."""
    rng = np.random.default_rng(0)
    samples = rng.random((count, 400)) * (rng.random((count, 400)) < 0.5)
    samples[:, -1] = 1
    _, sizes, right = np.linalg.svd(samples, full_matrices=False)
    rows = torch.from_numpy(right)
    cone = extreme_rays.ConvexCone.of(rows[:, :-1], rows[:, -1], torch.from_numpy(sizes), 1e-13)
    return samples, right, cone


def test_rays_of_sparse_vectors_are_found() -> None:
    samples, right, cone = sparse(10)
    found = extreme_rays.rays(
        cone, 10, lambda ray: cone.firm(ray, np.random.default_rng(1)), Generator().manual_seed(0)
    )
    entries = found @ right
    distance = np.abs(entries[:, None] - samples[None]).max(2)
    assert sorted(distance.argmin(1)) == list(range(10))
    assert distance.min(1).max() < 1e-9


def test_a_mixture_is_not_firm() -> None:
    samples, right, cone = sparse(5)
    rng = np.random.default_rng(1)
    inside = samples @ right.T
    assert cone.firm(inside[0], rng)
    assert not cone.firm((inside[0] + inside[1]) / 2, rng)


def levels(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64) / 255


def test_distinct_images_are_irreplaceable() -> None:
    g = Generator().manual_seed(0)
    x = torch.randint(0, 256, (4, 60), generator=g)
    x[x < 60] = 0
    x[x > 200] = 255
    assert grid_lattice.irreplaceable(x.double() / 255, 255).all()


def test_images_with_another_one_between_them_are_not() -> None:
    """(x + y) / 2 is on the grid: the lattice is not primitive."""
    g = Generator().manual_seed(0)
    x = torch.randint(0, 120, (60,), generator=g)
    y = x + 2 * torch.randint(0, 60, (60,), generator=g)
    assert not grid_lattice.irreplaceable(torch.stack([x, y]).double() / 255, 255).any()


def test_images_with_another_one_beyond_them_are_not() -> None:
    """2 y - x stays in the box."""
    g = Generator().manual_seed(0)
    x = torch.randint(50, 200, (60,), generator=g)
    y = x + torch.randint(-1, 2, (60,), generator=g)
    other = torch.randint(0, 256, (60,), generator=g)
    other[:30] = 0
    found = grid_lattice.irreplaceable(torch.stack([x, y, other]).double() / 255, 255)
    assert found.tolist()[:2] == [False, False]


def test_the_lattice_agrees_with_a_search_over_all_images() -> None:
    """Two images of few levels: every other image of their line is found by trying."""
    rng = np.random.default_rng(0)
    agreed = 0
    for _ in range(60):
        pair = rng.integers(0, 8, (2, 5))
        if np.linalg.matrix_rank(np.c_[pair, [1, 1]]) < 2:
            continue
        side = pair[1] - pair[0]
        at = int(np.abs(side).argmax())
        others = 0
        for level in range(8):
            moved = pair[0] + side * (level - pair[0][at]) / side[at]
            whole = np.abs(moved - moved.round()).max() < 1e-9
            if whole and moved.min() >= 0 and moved.max() <= 7 and level not in pair[:, at]:
                others += 1
        certain = bool(grid_lattice.irreplaceable(torch.from_numpy(pair) / 7.0, 7).all())
        assert not (certain and others)
        agreed += certain and not others
    assert agreed > 5


def test_a_small_entry_among_the_zeros_does_not_lose_a_ray() -> None:
    """Linear programs cannot tell 3e-7 from zero; the polished ray can."""
    samples, _, _ = sparse(6)
    samples[0, np.flatnonzero(samples[0] > 0)[0]] = 3e-7
    _, sizes, right = np.linalg.svd(samples, full_matrices=False)
    rows = torch.from_numpy(right)
    cone = extreme_rays.ConvexCone.of(rows[:, :-1], rows[:, -1], torch.from_numpy(sizes), 1e-15)
    truth = samples @ right.T
    ray = extreme_rays._polished(cone, truth[0] + 1e-8 * truth[1])
    assert ray is not None
    assert float(np.abs(ray - truth[0]).max()) < 1e-10
