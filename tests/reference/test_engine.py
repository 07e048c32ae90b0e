"""Searches that run together: directions against the two-loop recursion, slopes against autograd, ends, budgets and independence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from leakaudit.core import registry
from leakaudit.core.leak import GradientLeak
from leakaudit.core.progress import remaining, sharing, watching
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import TaskSpec
from leakaudit.inversion import attacking
from leakaudit.inversion.search import batched_search, evaluate, objectives
from leakaudit.inversion.search.batched_search import (
    FLATTER,
    FORMATS,
    LOWER,
    SearchSchedule,
    _Brackets,
)
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.lbfgs import LbfgsMemory
from leakaudit.inversion.search.optimise import SearchRun
from leakaudit.tasks import data
from leakaudit.tasks import task as tasks
from leakaudit.tasks.task import Task

D = torch.float64


def two_loops(pairs: list[tuple[Tensor, Tensor]], slope: Tensor) -> Tensor:
    """Nocedal and Wright 2006, algorithm 7.4."""
    q, kept = slope.clone(), []
    for s, y in reversed(pairs):
        a = (s @ q) / (s @ y)
        kept.append(a)
        q = q - a * y
    if pairs:
        s, y = pairs[-1]
        q = q * (s @ y) / (y @ y)
    for (s, y), a in zip(pairs, reversed(kept), strict=True):
        q = q + (a - (y @ q) / (s @ y)) * s
    return -q


@pytest.mark.parametrize(("curvature", "kept"), [(1e-9, 1), (0.0, 0)])
def test_a_step_without_curvature_is_dropped(curvature: float, kept: int) -> None:
    memory = LbfgsMemory(torch.zeros(1, 2, dtype=D), 3)
    step, change = torch.tensor([[1.0, 0.0]], dtype=D), torch.tensor([[curvature, 1.0]], dtype=D)
    memory.update(torch.tensor([True]), step, change, change)
    assert memory.count.tolist() == [kept]


@pytest.mark.parametrize(("dtype", "close"), [(D, 1e-10), (torch.float32, 1e-3)])
def test_directions_are_those_of_the_two_loop_recursion(dtype: torch.dtype, close: float) -> None:
    """Each search with pairs of its own: some accept, one meets negative curvature, one forgets, and the oldest pairs fall out."""
    g, m = torch.Generator().manual_seed(0), 5
    curvature = torch.rand(4, 12, generator=g, dtype=D) + 0.1
    memory = LbfgsMemory(torch.zeros(4, 12, dtype=dtype), m)
    pairs: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(4)]
    for turn in range(14):
        if turn == 11:
            memory = memory.of_these(torch.tensor([0, 2, 3]))
            pairs, curvature = [pairs[k] for k in (0, 2, 3)], curvature[[0, 2, 3]]
        step, slope = (torch.randn(len(pairs), 12, generator=g, dtype=D) for _ in range(2))
        change, which = curvature * step, torch.rand(len(pairs), generator=g) < 0.7
        if turn == 6:
            which[1], change[1] = True, -change[1]
        if turn == 9:
            memory.forget(torch.tensor([False, False, True, False]))
            pairs[2] = []
        found = memory.update(which, step.to(dtype), change.to(dtype), slope.to(dtype))
        for k in range(len(pairs)):
            if which[k] and step[k] @ change[k] > 0:
                pairs[k] = [*pairs[k], (step[k], change[k])][-m:]
            expected = two_loops(pairs[k], slope[k])
            assert float((found[k] - expected).norm() / expected.norm()) < close


def test_memories_of_different_capacity_are_joined_and_take_slopes_of_more_digits() -> None:
    """One search has 20 pairs, another 3, in float32; their directions in float64 are those of the two-loop recursion."""
    g = torch.Generator().manual_seed(1)
    parts: list[LbfgsMemory] = []
    pairs: list[list[tuple[Tensor, Tensor]]] = []
    for count in (20, 3):
        memory, mine = LbfgsMemory(torch.zeros(1, 30), 100), []
        for _ in range(count):
            step = torch.randn(1, 30, generator=g)
            change = step * torch.linspace(0.5, 2, 30)
            memory.update(torch.tensor([True]), step, change, step)
            mine.append((step[0].double(), change[0].double()))
        parts.append(memory)
        pairs.append(mine)
    assert parts[0].s.shape[1] > parts[1].s.shape[1]
    whole = LbfgsMemory.joined(parts)
    slope, none = torch.randn(2, 30, generator=g, dtype=D), torch.zeros(2, 30, dtype=D)
    found = whole.update(torch.tensor([False, False]), none, none, slope)
    assert found.dtype == D
    for k in range(2):
        expected = two_loops(pairs[k], slope[k])
        assert float((found[k] - expected).norm() / expected.norm()) < 1e-3
    assert parts[1].s.shape[1] < whole.s.shape[1], "the parts are unchanged"


def test_a_step_is_accepted_where_the_weak_wolfe_conditions_hold_and_is_always_found() -> None:
    """Quartics whose first trial is a thousand times too long or too short, and one that is NaN from 0.2 on."""
    scale = torch.tensor([1e-3, 1.0, 1e3, 5.0], dtype=D)

    def f(t: Tensor) -> tuple[Tensor, Tensor]:
        z = t / scale
        value, slope = (z - 1).pow(4) + 0.1 * z, (4 * (z - 1).pow(3) + 0.1) / scale
        value[3] = value[3] if t[3] < 0.2 else torch.nan
        return value, slope

    start, slope = f(torch.zeros(4, dtype=D))
    brackets, t = _Brackets(start, slope), torch.ones(4, dtype=D)
    done = torch.full((4,), torch.nan, dtype=D)
    for _ in range(60):
        value, here = f(t)
        accepted, after = brackets.judge(t, value, here)
        new = accepted & done.isnan()
        assert bool((value[new] <= start[new] + LOWER * t[new] * slope[new]).all())
        assert bool((here[new] >= FLATTER * slope[new]).all())
        done, t = torch.where(new, t, done), torch.where(accepted, t, after)
    assert done.isfinite()[:3].all()
    assert done.isnan()[3] or done[3] < 0.2


# --- searches of functions that need no model -----------------------------------------------------------------------------


def banana(given: tuple[Tensor, ...], point: tuple[Tensor, ...]) -> Tensor:
    """Rosenbrock's function with its minimum at (a, a^2)."""
    (a,), (x,) = given, point
    return (a - x[:, 0]).square() + 100 * (x[:, 1] - x[:, 0].square()).square()


def bananas(k: int, goal: float = 1e-20) -> tuple[Problems, tuple[Tensor, ...]]:
    a = torch.linspace(0.5, 1.5, k, dtype=D)
    start = torch.tensor([-1.2, 1.0], dtype=D).expand(k, 2).clone()
    return Problems(banana, (a,), torch.full((k,), goal, dtype=D), True), (start,)


@pytest.mark.parametrize("k", [1, 7])
def test_every_search_finds_its_own_minimum_and_ends_by_itself(k: int) -> None:
    problems, start = bananas(k)
    found = dict(
        batched_search.search(
            problems, start, SearchSchedule(20, formats=FORMATS["float64"]), "test"
        )
    )
    assert sorted(found) == list(range(k))
    for place, run in found.items():
        a = problems.given[0][place]
        assert run.ended == "fitted"
        assert torch.allclose(run.point[0], torch.stack([a, a.square()]), atol=1e-8)
        assert run.evaluations <= 20 * run.steps
    assert k == 1 or len({run.evaluations for run in found.values()}) > 1
    assert torch.equal(start[0][0], torch.tensor([-1.2, 1.0], dtype=D))


def test_float64_polishes_what_float32_found() -> None:
    """The minima at 5/6 and 7/6 are no float32 numbers."""
    ends, left = {}, {}
    for name, formats in FORMATS.items():
        problems, start = bananas(4, goal=1e-22)
        ends[name] = dict(
            batched_search.search(problems, start, SearchSchedule(40, formats=formats), "test")
        )
        left[name] = [
            float(banana((problems.given[0][k],), (run.point[0][None],)))
            for k, run in ends[name].items()
            if k in (1, 2)
        ]
    assert min(left["float32"]) > 1e-16
    assert max(left["mixed"]) <= 1e-22
    assert all(run.ended == "fitted" and run.point[0].dtype == D for run in ends["mixed"].values())
    for k, run in ends["mixed"].items():
        assert torch.allclose(run.point[0], ends["float64"][k].point[0], atol=1e-8)


def test_a_search_does_not_depend_on_the_others() -> None:
    problems, start = bananas(6)
    schedule = SearchSchedule(20, formats=FORMATS["float64"])
    together = dict(batched_search.search(problems, start, schedule, "test"))
    for rows in ([4, 1], [3]):
        index = torch.tensor(rows)
        alone = dict(
            batched_search.search(problems.of_these(index), (start[0][index],), schedule, "test")
        )
        for place, k in enumerate(rows):
            assert alone[place].evaluations == together[k].evaluations
            assert torch.allclose(alone[place].point[0], together[k].point[0], rtol=1e-9)


def test_searches_whose_pairs_do_not_fit_in_memory_go_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems, start = bananas(7)
    schedule, sizes = SearchSchedule(20, history=6, formats=FORMATS["float64"]), []

    class Counted(LbfgsMemory):
        def __init__(self, like: Tensor, m: int) -> None:
            sizes.append(like.numel() * m * 2 * like.itemsize)
            super().__init__(like, m)

    monkeypatch.setattr(batched_search, "LbfgsMemory", Counted)
    whole = dict(batched_search.search(problems, start, schedule, "test", lambda place: place == 6))
    monkeypatch.setattr(batched_search, "MEMORY", sizes[0] // 3)
    parts = dict(batched_search.search(problems, start, schedule, "test", lambda place: place == 6))
    assert sizes[0] == 7 * sizes[1] // 2
    assert len(sizes) == 5
    assert max(sizes[1:]) <= batched_search.MEMORY
    assert sorted(parts) == list(range(7))
    for k in range(7):
        assert (parts[k].evaluations, parts[k].ended) == (whole[k].evaluations, whole[k].ended)
        assert torch.allclose(parts[k].point[0], whole[k].point[0], rtol=1e-9)
    assert parts[6].ended == "stopped"


def walled(given: tuple[Tensor, ...], point: tuple[Tensor, ...]) -> Tensor:
    """Minimum 3 at 1, a wall of NaN at 0; given: a factor, NaN for a problem that is NaN everywhere."""
    return given[0] * (point[0] - point[0].log()).sum(1)


@pytest.mark.parametrize("beyond", [math.nan, math.inf])
def test_walls_of_nan_are_met_with_shorter_steps_and_nan_everywhere_gives_the_start_back(
    beyond: float,
) -> None:
    start = torch.tensor([50.0, 3.0, 1000.0], dtype=D).expand(3, 3).clone()
    problems = Problems(
        walled, (torch.tensor([1.0, beyond, 2.0], dtype=D),), torch.zeros(3, dtype=D), True
    )
    found = dict(
        batched_search.search(
            problems, (start,), SearchSchedule(200, formats=FORMATS["float64"]), "test"
        )
    )
    assert (found[0].ended, found[1].ended, found[2].ended) == (
        "converged",
        "diverged",
        "converged",
    )
    assert found[0].objective == pytest.approx(3, abs=1e-6)
    assert found[1].objective == math.inf
    assert found[2].objective == pytest.approx(6, abs=1e-6)
    assert torch.equal(found[1].point[0], start[1])


def test_a_deadline_ends_all_searches_and_needless_ones_leave() -> None:
    heard: list[tuple[str, int, int]] = []
    problems, start = bananas(3, goal=-1.0)
    with watching(lambda *event: heard.append(event), seconds=0.0):
        found = dict(batched_search.search(problems, start, SearchSchedule(50), "test"))
    assert {run.ended for run in found.values()} == {"out of time"}
    assert all(run.evaluations == 2 for run in found.values())
    with watching(lambda *event: heard.append(event)):
        found = dict(
            batched_search.search(
                problems,
                start,
                SearchSchedule(9, formats=FORMATS["float64"]),
                "test",
                lambda place: place == 1,
            )
        )
    assert found[1].evaluations == batched_search.STEP
    assert found[1].ended == "stopped"
    assert min(found[0].evaluations, found[2].evaluations) > batched_search.STEP
    assert heard[0] == ("test", 1, 9)


def double_well(given: tuple[Tensor, ...], point: tuple[Tensor, ...]) -> Tensor:
    """Minimum 0 at x = 1 and a local one of 0.5 at x = -1."""
    x = point[0]
    return (x.square() - 1).square().sum(1) + 0.25 * (1 - x.tanh() / math.tanh(1)).sum(1)


def test_starts_come_in_rounds_of_one_two_four_until_one_is_good_enough() -> None:
    problems = Problems(
        double_well, (torch.zeros(2, dtype=D),), torch.full((2,), 1e-3, dtype=D), True
    )
    starts = {0: iter([-2.0, -1.5, -1.2, 1.4, 2.0, 3.0, 4.0]), 1: iter([2.0])}
    drawn: list[int] = []

    def draw(place: int) -> tuple[Tensor]:
        drawn.append(place)
        return (torch.tensor([next(starts[place])], dtype=D),)

    found = dict(
        batched_search.restarted(
            problems, draw, 6, 10.0, SearchSchedule(9, formats=FORMATS["float64"]), "test"
        )
    )
    assert drawn == [0, 1, 0, 0, 0, 0, 0] or drawn == [0, 1, 0, 0, 0]
    assert drawn.count(1) == 1
    assert all(float(run.point[0]) > 0.9 for run in found.values())
    assert found[0].evaluations > 3 * found[1].evaluations


# --- objectives of models -------------------------------------------------------------------------------------------------


def planted(
    k: int, model: str = "lenet", act: str = "sigmoid"
) -> tuple[Task, list[GradientLeak], Tensor, Tensor]:
    """Gradients of real 8x8 pictures at models of their own."""
    photos = data.load("photos")
    task = Task.build(
        TaskSpec(
            model, {"act": act}, shape=(1, 8, 8), classes=4, mean=(0.5,), std=(0.5,), levels=255
        ),
        dtype=D,
    )
    x, y = photos.x[::17, 1:2, 12:20, 12:20].double()[:k], torch.arange(k) % 4
    leaks, one = [], torch.ones(1, 1, dtype=D)
    for n in range(k):
        theta = task.init(Generator().manual_seed(n))
        value = task.gradient(theta, x[n : n + 1], y[n : n + 1])[None]
        leaks.append(
            GradientLeak(
                n,
                torch.zeros(1),
                one,
                value,
                torch.zeros(1, dtype=D),
                (0, task.layout.size),
                theta=theta[None],
                batch=1,
            )
        )
    return task, leaks, x, y


def matching(task: Task, leaks: list[GradientLeak], y: Tensor) -> Problems:
    targets = [objectives.target(leak, task, 1, D) for leak in leaks]
    columns = targets[0].columns

    def objective(given: tuple[Tensor, ...], point: tuple[Tensor, ...]) -> Tensor:
        theta, mixing, aim, y = given
        found = objectives.mixed(task.again, columns, theta, mixing, point[0], y)
        return objectives.squared(found, aim)

    return Problems(
        objective,
        (*objectives.stacked(targets), y[:, None]),
        torch.zeros(len(leaks), dtype=D),
        task.vectorised,
    )


@pytest.mark.parametrize("formulas", [True, False])
@pytest.mark.parametrize(
    ("model", "act"), [("lenet", "sigmoid"), ("convnet", "tanh"), ("mlp", "relu")]
)
def test_evaluations_together_are_those_of_autograd_one_by_one(
    model: str, act: str, formulas: bool
) -> None:
    """All at once, in chunks, in a loop, and in float32; by closed formulas and by vmap."""
    task, leaks, _, y = planted(5, model, act)
    task = task if formulas else replace(task, chain=None)
    assert formulas == (task.chain is not None)
    x = torch.rand(5, 1, 1, 8, 8, generator=Generator().manual_seed(0), dtype=D)
    values, slopes = [], []
    for k, leak in enumerate(leaks):
        z = x[k].clone().requires_grad_()
        assert leak.theta is not None
        gap = task.gradient(leak.theta[0], z, y[k : k + 1], create_graph=True) - leak.value[0]
        value = gap.square().sum() / leak.value[0].square().sum()
        values.append(value.detach())
        slopes.append(torch.autograd.grad(value, z)[0].flatten())
    problems = matching(task, leaks, y).at((x,))
    assert problems.chunk >= 5
    for chunk in (5, 2, 1):
        value, slope = replace(problems, chunk=chunk)(x.flatten(1))
        assert torch.allclose(value, torch.stack(values), rtol=1e-10)
        assert torch.allclose(slope, torch.stack(slopes), rtol=1e-8, atol=1e-12)
    value, slope = problems.to(torch.float32)(x.flatten(1).float())
    assert torch.allclose(value.double(), torch.stack(values), rtol=1e-4)
    assert float((slope.double() - torch.stack(slopes)).norm() / torch.stack(slopes).norm()) < 1e-4


def test_large_models_and_single_problems_are_looped_and_memory_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, leaks, x, y = planted(4)
    task, formulas = replace(task, chain=None), task
    start = (x[:, None],)
    assert matching(task, leaks[:1], y[:1]).at((start[0][:1],)).chunk == 1
    whole = matching(task, leaks, y).at(start)
    monkeypatch.setattr(evaluate, "MEMORY", evaluate.MEMORY // whole.chunk * 2)
    assert matching(task, leaks, y).at(start).chunk in (1, 2)
    monkeypatch.setattr(tasks, "LOOP_ABOVE", task.layout.size - 1)
    assert matching(task, leaks, y).at(start).chunk == 1
    monkeypatch.undo()
    monkeypatch.setattr(tasks, "LOOP_ABOVE", task.layout.size - 1)
    assert matching(formulas, leaks, y).at(start).chunk >= 4


@pytest.mark.parametrize("name", ["dlg", "idlg"])
def test_leaks_attacked_together_give_what_each_gives_alone(name: str) -> None:
    task, leaks, x, y = planted(3)
    attack = registry.configure(registry.get("attacks", name), {"dtype": "float64"})
    seeds: Callable[[], list[Generator]] = lambda: [Generator().manual_seed(k) for k in range(3)]  # noqa: E731
    together = dict(attack.many(leaks, task, seeds()))
    for k in range(3):
        alone = attack(leaks[k], task, seeds()[k])
        for found in (alone, together[k]):
            assert found.node == k
            assert found.certificate is Certificate.APPROXIMATE
            assert float((found.x - x[k]).square().mean()) < 1e-4
            assert found.y is not None
            assert found.y.tolist() == y[k : k + 1].tolist()


def test_leaks_of_different_shapes_are_searched_in_groups_of_their_own() -> None:
    task, leaks, x, _ = planted(3)
    first = task.layout.slices["conv2.weight"].start
    leaks[1] = replace(leaks[1], value=leaks[1].value[:, first:], columns=(first, task.layout.size))
    assert objectives.alike([objectives.target(leak, task, 1, D) for leak in leaks]) == [
        [0, 2],
        [1],
    ]
    found = dict(
        registry.configure(registry.get("attacks", "idlg"), {}).many(
            leaks, task, [Generator().manual_seed(k) for k in range(3)]
        )
    )
    for k in (0, 2):
        assert float((found[k].x - x[k]).square().mean()) < 1e-4
    assert found[1].residual < 1e-3


def test_auto_gives_leaks_that_no_exact_attack_solves_to_one_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, leaks, x, _ = planted(3)
    monkeypatch.setattr(
        attacking,
        "in_order",
        lambda: iter([("idlg", registry.configure(registry.get("attacks", "idlg"), {}))]),
    )
    settled = list(
        attacking.attack_together(
            leaks, task, "auto", [Generator().manual_seed(k) for k in range(3)]
        )
    )
    assert sorted(s.place for s in settled) == [0, 1, 2]
    assert all(s.together and not s.late for s in settled)
    assert all(float((s.found.x - x[s.place]).square().mean()) < 1e-4 for s in settled)
    assert all(s.found.seconds > 0 for s in settled)


# --- time -----------------------------------------------------------------------------------------------------------------


class Clock:
    """Time that passes when it is told to."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_time_is_shared_in_equal_parts_and_what_is_not_used_goes_to_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr("leakaudit.core.progress.time", clock)
    assert math.isinf(remaining())
    with sharing(3):
        assert math.isinf(remaining())
    with watching(seconds=12.0):
        seen = []
        for k, used in enumerate((1.0, 4.0, 100.0)):
            with sharing(3 - k):
                seen.append(remaining())
                clock.now += used
        assert seen == [4.0, 5.5, 7.0]
        assert remaining() == 0


def test_attacks_one_by_one_share_the_time_of_their_group(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("leakaudit.core.progress.time", clock)
    task, leaks, x, _ = planted(3)
    seen: list[float] = []

    def slow(leak: GradientLeak, task: Task, name: str, generator: Generator) -> Any:
        seen.append(remaining())
        clock.now += 0.5 * remaining() if leak.node == 0 else 2 * remaining()
        return Reconstruction(leak.node, name, x[:1], None, Certificate.FAILED, 1.0)

    monkeypatch.setattr(attacking, "attack_one", slow)
    with watching(seconds=9.0):
        settled = list(attacking.attack_together(leaks, task, "rgap", [Generator()] * 3))
    assert seen == pytest.approx([3.0, 3.75, 0.0])
    assert [s.late for s in settled] == [False, True, True]


def test_runs_add_up() -> None:
    a, b = SearchRun((), 1.0, 3, 50), SearchRun((), 0.5, 2, 30)
    assert (b.after(a).steps, b.after(a).evaluations, b.after(a).objective) == (5, 80, 0.5)
    assert partial(batched_search._at, lambda place: place == 7)([3, 7], 1)
