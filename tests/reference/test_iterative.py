"""Searches that end, and attacks that reach the strength the field reports, on real photographs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from leakaudit.core import registry
from leakaudit.core.leak import GradientLeak
from leakaudit.core.progress import watching
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import TaskSpec
from leakaudit.inversion.search import adam, batched_search, feature_inversion, optimise
from leakaudit.inversion.search.adam import RateSchedule
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.tasks import data
from leakaudit.tasks.task import Task

D = torch.float64


def rosenbrock(x: Tensor) -> Tensor:
    return (1 - x[0]).square() + 100 * (x[1] - x[0].square()).square()


def signed_adam(
    objective: Callable[[Tensor], Tensor],
    start: Tensor,
    steps: int,
    project: Callable[[Tensor], Tensor],
) -> optimise.SearchRun:
    schedule = RateSchedule(steps, 0.1, "hard", stages=True)
    problem = Problems.single(objective, (start,))
    (run,) = adam.minimise(problem, start[None], schedule, project, "there")
    return run


def test_lbfgs_finds_rosenbrocks_minimum_and_stops_at_its_goal() -> None:
    start = (torch.tensor([-1.2, 1.0], dtype=D),)
    run = batched_search.lbfgs(rosenbrock, start, 50, goal=1e-20)
    assert run.ended == "fitted"
    assert run.steps < 10
    assert torch.allclose(run.point[0], torch.ones(2, dtype=D), atol=1e-8)
    assert torch.equal(start[0], torch.tensor([-1.2, 1.0], dtype=D))


def test_lbfgs_stops_where_nothing_falls_any_more() -> None:
    run = batched_search.lbfgs(
        lambda x: 0.5 + rosenbrock(x), (torch.tensor([-1.2, 1.0], dtype=D),), 300
    )
    assert run.ended == "converged"
    assert run.steps <= 2 * batched_search.PATIENCE
    assert run.objective == pytest.approx(0.5, abs=1e-9)


def test_lbfgs_returns_from_nan_with_smaller_steps() -> None:
    """x - log x has its minimum at 1 and a wall of NaN at 0, which steps from far away jump over."""
    seen: list[bool] = []

    def walled(x: Tensor) -> Tensor:
        seen.append(bool(x.min() > 0))
        return (x - x.log()).sum()

    run = batched_search.lbfgs(walled, (torch.tensor([50.0, 3.0, 1000.0], dtype=D),), 200)
    assert not all(seen)
    assert run.ended == "converged"
    assert 3 <= run.objective < 3.5


@pytest.mark.parametrize("search", ["lbfgs", "adam"])
def test_an_objective_that_is_nan_everywhere_gives_the_start_back(search: str) -> None:
    start = (torch.ones(3, dtype=D),)

    def objective(x: Tensor) -> Tensor:
        return (x * torch.nan).sum()

    run = (
        batched_search.lbfgs(objective, start, 50)
        if search == "lbfgs"
        else signed_adam(objective, start[0], 50, torch.relu)
    )
    assert run.ended == "diverged"
    assert math.isinf(run.objective)
    assert torch.equal(run.point[0], start[0])


def test_signed_adam_finds_the_corner_of_the_box() -> None:
    target = torch.tensor([0.3, 2.0, -1.0], dtype=D)
    start = torch.full((3,), 0.5, dtype=D)
    run = signed_adam(lambda x: (x - target).square().sum(), start, 400, lambda x: x.clamp(0, 1))
    assert torch.allclose(run.point[0], torch.tensor([0.3, 1.0, 0.0], dtype=D), atol=2e-3)
    assert (run.ended, run.steps) == ("stopped", 400)


def test_a_deadline_ends_every_search_and_progress_is_heard() -> None:
    heard: list[tuple[str, int, int]] = []
    with watching(lambda *event: heard.append(event), seconds=0.0):
        run = batched_search.lbfgs(
            rosenbrock, (torch.tensor([-1.2, 1.0], dtype=D),), 50, what="here"
        )
        slow = signed_adam(rosenbrock, torch.tensor([-1.2, 1.0], dtype=D), 50, torch.relu)
        again = optimise.restarted(
            lambda p: batched_search.lbfgs(rosenbrock, p, 50),
            lambda: (torch.zeros(2, dtype=D),),
            9,
            0.0,
        )
    assert (run.ended, slow.ended, again.steps) == ("out of time", "out of time", 1)
    assert heard == [("there", 1, 50)]


def test_restarts_keep_the_best_and_stop_when_it_is_good_enough() -> None:
    starts = iter([3.0, 1.0, 2.0, 0.0])
    drawn: list[float] = []

    def draw() -> optimise.Point:
        drawn.append(next(starts))
        return (torch.tensor(drawn[-1]),)

    def search(point: optimise.Point) -> optimise.SearchRun:
        return optimise.SearchRun(point, float(point[0]), steps=10, evaluations=20)

    best = optimise.restarted(search, draw, 3, goal=0.5)
    assert (best.objective, best.steps, best.evaluations, drawn) == (1.0, 30, 60, [3.0, 1.0, 2.0])
    assert optimise.restarted(search, lambda: (torch.tensor(0.1),), 3, goal=0.5).steps == 10


# --- attacks ----------------------------------------------------------------------------------------------------------


def planted(
    task: Task,
    x: Tensor,
    y: Tensor,
    rounds: int,
    difference: bool,
    g: torch.Generator,
    alpha: float = 0.05,
) -> GradientLeak:
    """Gradients along `rounds` training steps with a little drift, by autograd, or their one-step differences."""
    theta = [task.init(g)]
    gradients = [task.gradient(theta[0], x, y)]
    for _ in range(rounds - 1):
        drift = (
            0.1
            * gradients[-1].norm()
            / task.layout.size**0.5
            * torch.randn(task.layout.size, generator=g, dtype=D)
        )
        theta.append(theta[-1] - alpha * (gradients[-1] + drift))
        gradients.append(task.gradient(theta[-1], x, y))
    rows = torch.eye(rounds, dtype=D)
    rows = rows[:-1] - rows[1:] if difference else rows
    value = rows @ torch.stack(gradients)
    zero = torch.zeros(len(rows), dtype=D)
    return GradientLeak(
        0,
        torch.arange(rounds),
        rows,
        value,
        zero,
        (0, task.layout.size),
        theta=torch.stack(theta),
        batch=len(x),
    )


def attacked(
    name: str, leak: GradientLeak, task: Task, g: torch.Generator, **settings: object
) -> Reconstruction:
    found: Reconstruction = registry.configure(registry.get("attacks", name), settings)(
        leak, task, g
    )
    return found


def psnr(found: Reconstruction, x: Tensor) -> float:
    return -10 * math.log10(float((found.x - x).square().mean()) + 1e-30)


def tiny(
    model: str = "lenet", act: str = "sigmoid", classes: int = 4, **more: object
) -> tuple[Task, Tensor]:
    """A small network and real 8x8 pictures: the middles of the photographs' tiles, in gray."""
    photos = data.load("photos")
    spec = TaskSpec(
        model,
        {"act": act},
        shape=(1, 8, 8),
        classes=classes,
        mean=(0.5,),
        std=(0.5,),
        levels=255,
        **more,  # type: ignore[arg-type]
    )
    return Task.build(spec, dtype=D), photos.x[::17, 1:2, 12:20, 12:20].double()


@pytest.mark.parametrize("k", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "difference"), [("dlg", False), ("idlg", False), ("differential", True)]
)
def test_a_small_smooth_network_gives_picture_and_label_away(
    name: str, difference: bool, k: int
) -> None:
    task, x = tiny()
    g, y = torch.Generator().manual_seed(k), torch.tensor([k + 1])
    found = attacked(name, planted(task, x[k : k + 1], y, 2, difference, g), task, g)
    assert psnr(found, x[k : k + 1]) > 40
    assert found.y is not None
    assert found.y.tolist() == [k + 1]
    assert found.certificate is Certificate.APPROXIMATE
    assert found.residual < 1e-3
    assert "fitted after" in found.note


def test_labels_are_searched_where_the_last_layer_is_not_in_the_leak() -> None:
    task, x = tiny(act="tanh", classes=3)
    g = torch.Generator().manual_seed(0)
    leak = planted(task, x[:1], torch.tensor([2]), 2, True, g)
    first = task.layout.slices["fc.weight"].start
    part = replace(leak, value=leak.value[:, :first], columns=(0, first))
    found = attacked("differential", part, task, g)
    assert found.y is not None
    assert found.y.tolist() == [2]
    assert "3 sets of labels tried" in found.note
    assert psnr(found, x[:1]) > 30


def test_a_label_that_the_differences_do_not_show_is_not_reported() -> None:
    """Of a logistic model q = p - y; the difference of two q does not contain y."""
    task = Task.build(TaskSpec("logistic", {}, loss="binary", shape=(6,), classes=2), dtype=D)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1, 6, generator=g, dtype=D)
    found = attacked("differential", planted(task, x, torch.tensor([1]), 3, True, g), task, g)
    assert float((found.x - x).norm() / x.norm()) < 1e-3
    assert found.y is None
    assert "another label fits equally well" in found.note


def test_a_label_is_not_reported_where_none_fits_or_time_is_over() -> None:
    task, x = tiny(act="tanh", classes=3)
    g = torch.Generator().manual_seed(0)
    leak = planted(task, x[:1], torch.tensor([2]), 2, True, g)
    first = task.layout.slices["fc.weight"].start
    part = replace(leak, value=leak.value[:, :first], columns=(0, first))
    with watching(seconds=0.0):
        found = attacked("differential", part, task, g)
    assert found.y is None
    assert "not enough time to compare labels" in found.note
    unrelated = replace(part, value=torch.randn(part.value.shape, generator=g, dtype=D))
    found = attacked("differential", unrelated, task, g, steps=5, adam_steps=5, restarts=1)
    assert found.certificate is Certificate.FAILED
    assert found.y is None
    assert "no label fits" in found.note
    known = attacked(
        "differential", unrelated, task, g, labels="2", steps=5, adam_steps=5, restarts=1
    )
    assert known.y is not None
    assert known.y.tolist() == [2]


def test_two_samples_with_one_class_twice() -> None:
    task, x = tiny("convnet", "tanh", classes=2)
    g = torch.Generator().manual_seed(0)
    leak = planted(task, x[:2], torch.tensor([1, 1]), 3, True, g)
    found = attacked("differential", leak, task, g)
    assert found.y is not None
    assert found.y.tolist() == [1, 1]
    straight, crossed = (float((found.x - z).square().mean()) for z in (x[:2], x[:2].flip(0)))
    assert min(straight, crossed) < 1e-3


def test_relu_makes_lbfgs_stop_and_features_get_past_it() -> None:
    """An input 80 dB close leaves a large residual of the difference: units that switch between the models make it jump."""
    photos = data.load("photos")
    task = Task.build(photos.spec("convnet"), dtype=D)
    x, y = photos.x[107:108].double(), photos.y[107:108]
    leak = planted(task, x, y, 2, True, g := torch.Generator().manual_seed(6), alpha=0.001)
    from leakaudit.inversion.labels import last_layer
    from leakaudit.inversion.search import objectives

    target = objectives.target(leak, task, 1, D)
    near = x + 1e-4 * torch.randn(x.shape, generator=g, dtype=D)
    assert objectives.misfit(target, task, near, y) > 0.1
    known = last_layer.solve(target, task)
    assert known is not None
    assert float(feature_inversion.misfit(task, known[1], near).detach().sqrt()) < 1e-3


@pytest.mark.parametrize(
    ("name", "difference"),
    [("dlg", False), ("idlg", False), ("inverting", False), ("differential", True)],
)
def test_a_leak_that_no_input_explains_ends_in_a_finite_failure(
    name: str, difference: bool
) -> None:
    task, x = tiny(act="relu")
    g = torch.Generator().manual_seed(0)
    leak = planted(task, x[:1], torch.tensor([1]), 2, difference, g)
    head = task.layout.slices["fc.weight"].start
    value = torch.cat(
        [torch.randn(len(leak.value), head, generator=g, dtype=D), leak.value[:, head:]], dim=1
    )
    settings = {
        k: v
        for k, v in {"steps": 30, "adam_steps": 50, "restarts": 1}.items()
        if k in registry.parameters(registry.get("attacks", name))
    }
    found = attacked(name, replace(leak, value=value), task, g, **settings)
    assert found.certificate is Certificate.FAILED
    assert found.residual > 0.1
    assert bool(found.x.isfinite().all())
    assert bool((found.x >= 0).all() and (found.x <= 1).all())


def test_a_float32_wire_is_fitted_to_its_rounding() -> None:
    task, x = tiny()
    g = torch.Generator().manual_seed(0)
    leak = planted(task, x[:1], torch.tensor([3]), 2, True, g)
    std = 6e-8 * float(leak.value.abs().mean())
    noisy = replace(
        leak,
        value=(leak.value + std * torch.randn(leak.value.shape, generator=g, dtype=D)).float(),
        std=torch.full((1,), std),
    )
    found = attacked("differential", noisy, task, g)
    assert found.certificate is Certificate.APPROXIMATE
    assert psnr(found, x[:1]) > 40


def test_no_step_after_the_time_is_over() -> None:
    task, x = tiny()
    g = torch.Generator().manual_seed(0)
    for name, difference in (
        ("dlg", False),
        ("idlg", False),
        ("inverting", False),
        ("differential", True),
    ):
        leak = planted(task, x[:1], torch.tensor([1]), 2, difference, g)
        heard: list[tuple[str, int, int]] = []
        with watching(lambda *event: heard.append(event), seconds=0.0):  # noqa: B023
            found = attacked(name, leak, task, g)
        assert sum(done > 1 for _, done, _ in heard) == 0, (
            heard
        )  # a step of each search at most, none after it
        assert bool(found.x.isfinite().all())


# --- figures of the field, ten real crops each ----------------------------------------------------------------------------


def ten_crops(model: str) -> tuple[Task, Tensor, Tensor]:
    photos = data.load("photos")
    return (
        Task.build(photos.spec(model), dtype=D),
        photos.x[5::17][:10].double(),
        photos.y[5::17][:10],
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "least"),
    [("dlg", "mixed", 9), ("idlg", "float64", 9), ("idlg", "float32", 8)],
)
def test_lenet_gives_nine_of_ten_pictures_within_300_steps(
    name: str, dtype: str, least: int
) -> None:
    """All ten together, one start each; eight where the whole search is in float32."""
    task, x, y = ten_crops("lenet")
    leaks = [
        planted(task, x[k : k + 1], y[k : k + 1], 1, False, torch.Generator().manual_seed(k))
        for k in range(10)
    ]
    attack = registry.configure(
        registry.get("attacks", name), {"restarts": 1, "goal": 2e-4, "dtype": dtype}
    )
    found = dict(attack.many(leaks, task, [torch.Generator().manual_seed(k) for k in range(10)]))
    assert sum(psnr(found[k], x[k]) > 30 for k in range(10)) >= least
    assert [int(found[k].y[0]) for k in range(10)] == y.tolist()


@pytest.mark.slow
def test_one_difference_on_lenet_is_no_worse_than_a_gradient() -> None:
    """The field's differential attack: 5.5 dB, and the centralised one 20.2 dB, both at known labels; here they are not known."""
    task, x, y = ten_crops("lenet")
    decibels = []
    for k in range(10):
        g = torch.Generator().manual_seed(k)
        leak = planted(task, x[k : k + 1], y[k : k + 1], 2, True, g, alpha=0.1)
        found = attacked("differential", leak, task, g, goal="1e-3")
        decibels.append(psnr(found, x[k]))
        assert found.y is not None
        assert found.y.tolist() == y[k : k + 1].tolist()
    assert sum(decibels) / 10 >= 30
    assert min(decibels) >= 20


@pytest.mark.slow
def test_one_difference_on_the_relu_convnet_reaches_the_published_centralised_attack() -> None:
    """Geiping et al. 2020 on the gradient itself: 29 dB; the field's differential attack: 10.6 dB."""
    task, x, y = ten_crops("convnet")
    decibels = []
    for k in range(10):
        g = torch.Generator().manual_seed(k)
        leak = planted(task, x[k : k + 1], y[k : k + 1], 2, True, g)
        decibels.append(psnr(attacked("differential", leak, task, g, restarts=2), x[k]))
    assert sum(decibels) / 10 > 28
    assert sorted(decibels)[2] > 20


def test_the_label_of_two_samples_is_not_read_by_idlg() -> None:
    task, x = tiny()
    leak = planted(task, x[:1], torch.tensor([1]), 1, False, torch.Generator().manual_seed(0))
    attack = registry.get("attacks", "idlg")()
    assert attack.refuses(replace(leak, batch=1), task) is None
    said = attack.refuses(replace(leak, batch=2), task)
    assert said == "it reads one label, but each gradient comes from 2 samples; use dlg"
