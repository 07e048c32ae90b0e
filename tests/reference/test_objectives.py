"""What attacks by optimisation compare, against autograd on the bare module, finite differences and sampled noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate
from leakaudit.core.trace import TaskSpec
from leakaudit.inversion.search import feature_inversion, objectives, priors
from leakaudit.tasks import data
from leakaudit.tasks.task import Task

D = torch.float64


def small(model: str = "mlp", act: str = "tanh", **spec: object) -> Task:
    args = {"act": act, **({"hidden": "7"} if model == "mlp" else {})}
    return Task.build(
        TaskSpec(model, args, shape=(1, 8, 8), classes=4, mean=(0.5,), std=(0.25,), **spec),  # type: ignore[arg-type]
        dtype=D,
    )


def planted(
    task: Task, rows: Tensor, batch: int = 2, noise: Tensor | None = None
) -> tuple[GradientLeak, Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    x, y = (
        torch.rand(batch, *task.spec.shape, generator=g, dtype=D),
        torch.arange(batch) % task.spec.classes,
    )
    theta = torch.stack([task.init(g) for _ in range(rows.shape[1])])
    value = rows @ torch.stack([task.gradient(w, x, y) for w in theta])
    std = torch.zeros(len(rows), dtype=D) if noise is None else noise.norm(dim=1)
    return (
        GradientLeak(
            0,
            torch.arange(rows.shape[1]),
            rows,
            value,
            std,
            (0, task.layout.size),
            noise,
            theta,
            batch=batch,
        ),
        x,
        y,
    )


PLAIN = torch.tensor([[1.0, 0.0]], dtype=D)
DIFFERENCE = torch.tensor([[1.0, -1.0]], dtype=D)
MIXED = torch.tensor([[1.0, -1.0, 0.0], [0.5, 0.0, 2.0]], dtype=D)


def bare_gradient(task: Task, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Without Task: load the parameters into the module and call backward."""
    for name, p in task.module.named_parameters():
        p.data = theta[task.layout.slices[name]].reshape(p.shape).clone()
        p.grad = None
    F.cross_entropy(task.module((x - 0.5) / 0.25), y).backward()
    return torch.cat([p.grad.flatten() for p in task.module.parameters() if p.grad is not None])


@pytest.mark.parametrize("rows", [PLAIN, DIFFERENCE, MIXED])
def test_the_residual_is_that_of_backward_on_the_bare_module(rows: Tensor) -> None:
    task = small()
    leak, x, y = planted(task, rows)
    target = objectives.target(leak, task, 9, D)
    assert objectives.misfit(target, task, x, y) < 1e-14
    other = x.flip(0) * 0.5
    assert leak.theta is not None
    found = rows @ torch.stack([bare_gradient(task, w, other, y) for w in leak.theta])
    expected = float((found - leak.value).norm() / leak.value.norm())
    assert objectives.misfit(target, task, other, y) == pytest.approx(expected, rel=1e-10)
    assert objectives.l2(target, task, other, y).item() == pytest.approx(expected**2, rel=1e-10)
    cosine = F.cosine_similarity(found.flatten(), leak.value.flatten(), dim=0)
    assert objectives.cosine(target, task, other, y).item() == pytest.approx(
        1 - float(cosine), rel=1e-10
    )


@pytest.mark.parametrize("rows", [PLAIN, DIFFERENCE, MIXED])
@pytest.mark.parametrize("kind", ["l2", "cosine"])
def test_slopes_agree_with_finite_differences_in_inputs_and_soft_labels(
    rows: Tensor, kind: str
) -> None:
    """Through every gradient of the combination: the only public differential attack detaches one and flips a sign."""
    task = small()
    leak, x, _ = planted(task, rows)
    target = objectives.target(leak, task, 9, D)
    soft = torch.rand(2, 4, dtype=D, generator=torch.Generator().manual_seed(2)).softmax(-1)
    start = (x.flip(0).requires_grad_(), soft.requires_grad_())
    assert torch.autograd.gradcheck(
        lambda a, b: getattr(objectives, kind)(target, task, a, b), start, eps=1e-6, atol=1e-7
    )


def test_a_detached_or_added_second_gradient_would_be_noticed() -> None:
    task = small()
    leak, x, y = planted(task, DIFFERENCE)
    target = objectives.target(leak, task, 1, D)
    x = x.flip(0).requires_grad_()
    right = torch.autograd.grad(objectives.l2(target, task, x, y), x)[0]
    a, b = (task.gradient(w, x, y, create_graph=True) for w in target.theta)
    size = leak.value.square().sum()
    for wrong in (a - b.detach(), a.detach() - b, a + b):
        slope = torch.autograd.grad(
            (wrong - leak.value[0]).square().sum() / size, x, retain_graph=True
        )[0]
        assert float(F.cosine_similarity(slope.flatten(), right.flatten(), dim=0)) < 0.98


def test_only_the_columns_of_the_leak_are_compared() -> None:
    task = small()
    leak, x, y = planted(task, MIXED)
    part = replace(leak, value=leak.value[:, 5:40], columns=(5, 40))
    target = objectives.target(part, task, 9, D)
    assert objectives.gradients(target, task, x, y).shape == (3, 35)
    assert objectives.misfit(target, task, x, y) < 1e-14


@pytest.mark.parametrize("rows", [PLAIN[:, :1], PLAIN, MIXED])
@pytest.mark.parametrize("whole", [True, False])
def test_stacked_targets_have_the_values_and_slopes_of_single_ones(
    rows: Tensor, whole: bool
) -> None:
    """One gradient is scaled instead of multiplied by a matrix, and everything is not selected."""
    task = small()
    leak, x, y = planted(task, rows)
    if not whole:
        leak = replace(leak, columns=(3, 20), value=leak.value[:, 3:20])
    target = objectives.target(leak, task, 9, D)
    theta, mixing, aim = objectives.stacked([target, target])
    both = torch.stack([x.flip(0), x / 2]).requires_grad_()
    found = objectives.mixed(task.again, target.columns, theta, mixing, both, y.expand(2, *y.shape))
    values = objectives.squared(found, aim)
    alone = torch.stack([objectives.l2(target, task, one, y) for one in both])
    assert torch.allclose(values, alone, rtol=1e-12)
    weights = torch.tensor([1.0, -3.0], dtype=D)
    (slope,) = torch.autograd.grad(values @ weights, both, retain_graph=True)
    (expected,) = torch.autograd.grad(alone @ weights, both)
    assert torch.allclose(slope, expected, rtol=1e-10, atol=1e-14)


def test_rows_that_share_errors_are_made_independent_and_the_noise_is_known() -> None:
    task = small()
    g = torch.Generator().manual_seed(3)
    noise = 1e-2 * torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]], dtype=D)
    leak, x, y = planted(task, MIXED, noise=noise)
    target = objectives.target(leak, task, 9, D)
    whiten = target.mixing @ torch.linalg.pinv(MIXED)
    covariance = whiten @ noise @ noise.T @ whiten.T
    assert torch.allclose(
        covariance, covariance[0, 0] * torch.eye(2, dtype=D), rtol=1e-6, atol=1e-12
    )
    sampled = []
    for _ in range(20):
        value = leak.value + noise @ torch.randn(3, leak.value.shape[1], generator=g, dtype=D)
        sampled.append(
            objectives.misfit(objectives.target(replace(leak, value=value), task, 9, D), task, x, y)
        )
    assert sum(sampled) / 20 == pytest.approx(target.noise, rel=0.1)


def test_the_rows_with_the_best_signal_over_noise_are_chosen() -> None:
    rows = torch.eye(6, dtype=D)[:5] - torch.eye(6, dtype=D)[1:]
    leak, _, _ = planted(small(), rows)
    target = objectives.target(
        replace(leak, std=torch.tensor([1.0, 1.0, 1e-3, 1e-3, 1.0], dtype=D)), small(), 2, D
    )
    assert torch.equal(target.value, leak.value[2:4])
    assert leak.theta is not None
    assert torch.equal(target.theta, leak.theta[2:5])
    assert torch.equal(target.combination, rows[2:4, 2:5])


@pytest.mark.parametrize("model", ["lenet", "convnet"])
@pytest.mark.parametrize("rows", [PLAIN, DIFFERENCE])
def test_another_photograph_a_wrong_label_and_noise_do_not_fit(model: str, rows: Tensor) -> None:
    photos = data.load("photos")
    task = Task.build(photos.spec(model), dtype=D)
    g = torch.Generator().manual_seed(0)
    first = task.init(g)
    x, y = photos.x[5:6].double(), photos.y[5:6]
    theta = torch.stack([first, first - 0.05 * task.gradient(first, x, y)])
    value = rows @ torch.stack([task.gradient(w, x, y) for w in theta])
    leak = GradientLeak(
        0, torch.arange(2), rows, value, torch.zeros(1), (0, task.layout.size), theta=theta, batch=1
    )
    target = objectives.target(leak, task, 1, D)
    others = [(photos.x[k : k + 1].double(), y) for k in (30, 60, 90, 120)]
    for guess, label in [
        *others,
        (torch.rand(1, 3, 32, 32, generator=g, dtype=D), y),
        (x, (y + 1) % 6),
    ]:

        def residual(z: Tensor, label: Tensor = label) -> float:
            return objectives.misfit(target, task, z, label)

        found = objectives.reconstruction("test", leak, task, target, guess, label, residual, "")
        assert found.certificate is Certificate.FAILED
        assert found.residual > objectives.FIT
    found = objectives.reconstruction(
        "test", leak, task, target, x, y, lambda z: objectives.misfit(target, task, z, y), ""
    )
    assert found.certificate is Certificate.APPROXIMATE
    assert torch.equal(found.x, x)


def test_a_fit_of_noise_is_not_called_a_fit_and_nan_is_not_handed_out() -> None:
    task = small()
    leak, x, y = planted(task, PLAIN, noise=torch.full((1, 1), 10.0, dtype=D))
    target = objectives.target(leak, task, 1, D)
    assert target.noise > 1
    found = objectives.reconstruction(
        "test", leak, task, target, x.fill_(torch.nan), y, lambda z: 0.0, ""
    )
    assert found.certificate is Certificate.FAILED
    assert "noise" in found.note
    assert bool(found.x.isfinite().all())


def test_what_is_missing_is_said() -> None:
    leak, _, _ = planted(small(), PLAIN)
    assert objectives.missing(leak, None) is None
    assert "models" in (objectives.missing(replace(leak, theta=None), None) or "")
    assert "3 inner steps" in (objectives.missing(replace(leak, inner=3), None) or "")
    assert "batch=N" in (objectives.missing(replace(leak, batch=None), None) or "")
    assert objectives.missing(replace(leak, batch=None), 2) is None
    assert "zero" in (objectives.missing(replace(leak, value=leak.value * 0), None) or "")


@pytest.mark.parametrize("model", ["mlp", "lenet", "convnet"])
def test_features_are_the_slope_of_an_output_in_its_own_weights(model: str) -> None:
    task = small(model, act="relu")
    g = torch.Generator().manual_seed(0)
    theta, x = task.init(g), torch.rand(1, 1, 8, 8, generator=g, dtype=D)
    assert task.last_linear is not None
    slope = torch.func.grad(lambda w: task.logits(w, x)[0, 0])(theta)
    expected = task.layout.split(slope)[task.last_linear[0]][0]
    assert torch.allclose(
        feature_inversion.features(task, theta, x), expected, rtol=1e-12, atol=1e-14
    )
    known = (theta[None], expected[None] * 0.9)
    away = x.clone().mul(0.5).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z: feature_inversion.misfit(task, known, z), (away,), eps=1e-7, atol=1e-6
    )


def test_total_variation_and_the_box() -> None:
    x = torch.tensor([[[[0.0, 1.0], [0.5, 0.5]]]], dtype=D)
    assert float(priors.total_variation(x)) == pytest.approx((1 + 0) / 2 + (0.5 + 0.5) / 2)
    assert float(priors.total_variation(x, 1e-9)) == pytest.approx(1.0, abs=1e-8)
    assert float(priors.total_variation(torch.rand(3, 4))) == 0
    assert float(priors.total_variation(torch.rand(1, 1, 1, 1))) == 0
    task = small()
    assert priors.boxed(task, torch.tensor([-1.0, 2.0])).tolist() == [0.0, 1.0]
    vectors = Task.build(TaskSpec("logistic", {}, shape=(3,), classes=2))
    assert priors.boxed(vectors, torch.tensor([-1.0, 2.0])).tolist() == [-1.0, 2.0]


@pytest.mark.parametrize(
    ("kind", "low", "high", "mean", "deviation"),
    [("gray", 0.45, 0.55, 0.5, 0.0289), ("uniform", 0, 1, 0.5, 0.289), ("normal", -9, 9, 0, 1)],
)
def test_searches_start_where_their_kind_says(
    kind: priors.Start, low: float, high: float, mean: float, deviation: float
) -> None:
    x = priors.start(small(), 100, torch.Generator().manual_seed(0), kind, D)
    assert x.shape == (100, 1, 8, 8)
    assert low <= float(x.min())
    assert float(x.max()) <= high
    assert float(x.mean()) == pytest.approx(mean, abs=4 * deviation / 80)
    assert float(x.std()) == pytest.approx(deviation, rel=0.05)
