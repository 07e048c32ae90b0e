"""Labels of batches with their counts: closed forms, each method's own words in plain numpy, and the figures of the iLRG log."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="dict-item"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from leakaudit.core import registry
from leakaudit.core.errors import AttackError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import TaskSpec, Truth
from leakaudit.inversion.labels import label_counts, read_labels
from leakaudit.inversion.labels.label_counts import LastLayer
from leakaudit.scoring import scoring
from leakaudit.tasks import data
from leakaudit.tasks.task import Task

D = torch.float64
SharedData = Callable[[str], Path]


def images(shared_data: SharedData, file: str) -> tuple[Tensor, Tensor]:
    kept = np.load(shared_data(file))
    x = torch.from_numpy(kept["x_train"]).double() / 255
    return (x[:, None] if x.dim() == 3 else x.permute(0, 3, 1, 2)), torch.from_numpy(
        kept["y_train"]
    ).long()


def gradient_leak(task: Task, theta: Tensor, x: Tensor, y: Tensor) -> GradientLeak:
    value = task.gradient(theta, x, y)[None]
    one = torch.ones(1, 1, dtype=D)
    return GradientLeak(
        0,
        torch.zeros(1),
        one,
        value,
        torch.zeros(1, dtype=D),
        (0, task.layout.size),
        theta=theta[None],
        batch=len(x),
    )


def planted(
    n: list[int], same: bool, seed: int = 0, spread: float = 0.0
) -> tuple[LastLayer, Tensor]:
    """A last layer of six classes and eight features; samples of a class have equal features, all samples where `same`."""
    g = torch.Generator().manual_seed(seed)
    classes, width = len(n), 8
    matrix, shift = (
        0.5 * torch.randn(classes, width, generator=g, dtype=D),
        0.1 * torch.randn(classes, generator=g, dtype=D),
    )
    centre = torch.rand(1 if same else classes, width, generator=g, dtype=D).expand(classes, -1)
    y = torch.arange(classes).repeat_interleave(torch.tensor(n))
    h = centre[y] + spread * torch.randn(len(y), width, generator=g, dtype=D)
    q = (h @ matrix.T + shift).softmax(1) - torch.eye(classes, dtype=D)[y]
    return LastLayer(q.T @ h / len(y), q.mean(0), matrix, shift), torch.tensor(n)


@pytest.mark.parametrize(
    "n", [[3, 0, 2, 2, 0, 1], [9, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [40, 3, 0, 17, 1, 67]]
)
def test_equal_features_give_counts_to_rounding(n: list[int]) -> None:
    """iLRG and ours are exact there; a class whose q is zero divides by rounding in iLRG, so one case is left out."""
    head, true = planted(n, same=True)
    assert torch.allclose(label_counts.pooled(head, sum(n)), true.double(), atol=1e-8)
    if float((head.bias if head.bias is not None else true).abs().min()) > 1e-3:
        assert torch.allclose(label_counts.ilrg(head, sum(n)), true.double(), atol=1e-6)


def test_counts_of_classes_with_different_features_are_nearer_than_ilrg_s() -> None:
    ours, theirs = [], []
    for seed in range(20):
        head, true = planted([5, 0, 3, 9, 1, 6], same=False, seed=seed, spread=0.05)
        ours.append(float((label_counts.pooled(head, 24) - true).abs().max()))
        theirs.append(float((label_counts.ilrg(head, 24) - true).abs().max()))
    assert np.median(ours) < 0.35
    assert np.median(ours) < 0.5 * np.median(theirs)


def test_llg_is_its_algorithm_in_plain_words_and_repeats_classes() -> None:
    """The second stage takes the impact off the class that it chose; a public implementation takes it off another one."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        classes, batch = int(rng.integers(3, 8)), int(rng.integers(6, 20))
        weight = rng.normal(size=(classes, 5)) - 0.2
        if weight.sum(1).min() >= 0:
            continue
        g = weight.sum(1).tolist()
        impact = sum(v for v in g if v < 0) * (1 + 1 / classes) / batch
        said: list[int] = []
        for c in sorted(range(classes), key=lambda c: g[c]):
            if weight.sum(1)[c] < 0 and len(said) < batch:
                said.append(c)
                g[c] -= impact
        while len(said) < batch:
            low = g.index(min(g))
            said.append(low)
            g[low] -= impact
        assert (
            label_counts.llg(LastLayer(torch.from_numpy(weight)), batch).tolist()
            == np.bincount(said, minlength=classes).tolist()
        )


def test_llg_counts_large_impacts_right() -> None:
    """With features of equal sum s and p the same for all, sums of rows are s (p_c - n_c / B): the impact is -s / B."""
    head, true = planted([7, 0, 2, 11, 0, 4], same=True)
    s = float(
        head.weight.sum(1)[1] / (head.bias if head.bias is not None else head.weight[:, 0])[1]
    )
    offset = s * (head.bias if head.bias is not None else head.weight[:, 0]) + s * true / 24
    assert label_counts.llg(head, 24, -s / 24, offset).tolist() == true.tolist()


def test_yin_takes_the_lowest_entries_and_no_class_twice() -> None:
    head = LastLayer(torch.tensor([[0.0, -3.0], [1.0, 2.0], [-1.0, 5.0], [-2.0, 0.5]]))
    assert label_counts.yin(head, 2).tolist() == [1, 0, 0, 1]
    assert label_counts.yin(head, 9).tolist() == [1, 1, 1, 1]


def test_rlg_finds_the_classes_of_a_few_samples_and_leaves_none_out() -> None:
    g = torch.Generator().manual_seed(0)
    matrix, exact = 0.5 * torch.randn(12, 40, generator=g, dtype=D), 0
    for _ in range(10):
        y = torch.randint(12, (4,), generator=g)
        h = torch.rand(4, 40, generator=g, dtype=D)
        q = (h @ matrix.T).softmax(1) - torch.eye(12, dtype=D)[y]
        found = label_counts.rlg(LastLayer(q.T @ h / 4))
        assert bool(found[y].all())
        exact += int(found.sum()) == len(y.unique())
    assert exact >= 9


def test_signs_show_classes_that_are_there() -> None:
    head, true = planted([3, 0, 2, 2, 0, 17], same=False)
    for found in (label_counts.by_bias(head), label_counts.by_rows(head)):
        assert bool((true[found] > 0).all())
        assert bool(found[5])


def test_real_counts_become_whole_by_largest_remainders() -> None:
    assert label_counts.whole(torch.tensor([1.2, 2.9, -0.4, 0.7]), 5).tolist() == [1, 3, 0, 1]
    assert label_counts.whole(torch.tensor([torch.nan, 0.0]), 3).sum() == 3
    for seed in range(20):
        real = 4 * torch.rand(7, generator=torch.Generator().manual_seed(seed), dtype=D)
        real = real * 13 / real.sum()
        n = label_counts.whole(real, 13)
        assert int(n.sum()) == 13
        assert float((n - real).abs().max()) < 1
        best = torch.argsort(real - real.floor(), descending=True)[: int(13 - real.floor().sum())]
        assert torch.equal((n > real.floor()).nonzero().flatten(), best.sort().values)


def test_methods_say_what_they_miss() -> None:
    head, _ = planted([1, 1, 0, 0, 0, 0], same=True)
    with pytest.raises(AttackError, match="requires the model"):
        label_counts.pooled(replace(head, matrix=None), 2)
    with pytest.raises(AttackError, match="requires a last layer with bias"):
        label_counts.ilrg(replace(head, bias=None), 2)


# --- leaks -----------------------------------------------------------------------------------------------------------


def small(**more: object) -> tuple[Task, Tensor, Tensor]:
    photos = data.load("photos")
    return (
        Task.build(photos.spec("mlp", {"hidden": "40", **more}), dtype=D),
        photos.x.double(),
        photos.y,
    )


def attacked(leak: GradientLeak, task: Task, **settings: object) -> Reconstruction:
    found: Reconstruction = registry.configure(registry.get("attacks", "labels"), settings)(
        leak, task, torch.Generator().manual_seed(0)
    )
    return found


@pytest.mark.parametrize(
    "method", ["best", "pooled", "ilrg", "llg", "llg-dummies", "yin", "rlg", "bias", "rows"]
)
def test_every_method_gives_labels_without_inputs(method: str) -> None:
    task, x, y = small()
    chosen = torch.tensor([0, 1, 40, 41, 100, 101, 102])
    leak = gradient_leak(task, task.init(torch.Generator().manual_seed(0)), x[chosen], y[chosen])
    found = attacked(leak, task, method=method)
    assert found.x.shape == (0, 3, 32, 32)
    assert found.y is not None
    assert set(found.y.tolist()) <= set(range(6))
    if method in ("best", "pooled", "llg-dummies"):
        assert found.y.tolist() == sorted(y[chosen].tolist())
    truth = Truth(
        "", task.spec, x[chosen], y[chosen], torch.zeros(7, dtype=torch.int64), chosen, x[:0]
    )
    (score,) = scoring.score(found, truth)
    assert score.labels_found is not None
    assert score.labels_found >= 3 / 7
    assert score.not_recovered == 7


@pytest.mark.parametrize(
    ("change", "why"), [({"theta": None}, "requires the model"), ({"batch": None}, "set batch=N")]
)
def test_what_labels_cannot_read_it_refuses(change: dict[str, None], why: str) -> None:
    task, x, y = small()
    leak = replace(
        gradient_leak(task, task.init(torch.Generator().manual_seed(0)), x[:3], y[:3]),
        **change,  # type: ignore[arg-type]
    )
    with pytest.raises(AttackError, match=why):
        attacked(leak, task, method="pooled")


# --- figures -----------------------------------------------------------------------------------------------------------

Reader = Callable[[GradientLeak, Task, int], Tensor]


def ours(leak: GradientLeak, task: Task, batch: int) -> Tensor:
    found = read_labels.read(leak, task, batch)
    assert found is not None
    return torch.bincount(found[0], minlength=task.spec.classes)


def accuracy(
    task: Task, x: Tensor, y: Tensor, batch: int, tries: int, reader: Reader = ours
) -> Tensor:
    """Class accuracy, share of classes with the exact count, share of samples: the three columns of the iLRG log."""
    g, out = torch.Generator().manual_seed(0), []
    for _ in range(tries):
        i = torch.randperm(len(x), generator=g)[:batch]
        n = torch.bincount(y[i], minlength=task.spec.classes)
        k = reader(gradient_leak(task, task.init(g), x[i], y[i]), task, batch)
        out.append(
            [
                float(((k > 0) == (n > 0)).double().mean()),
                float((k == n).double().mean()),
                float(torch.minimum(k, n).sum()) / batch,
            ]
        )
    return torch.tensor(out).mean(0)


def fcn3(shape: tuple[int, ...]) -> Task:
    return Task.build(
        TaskSpec(
            "mlp",
            {"hidden": "300,100"},
            shape=shape,
            classes=10,
            mean=(0.5,),
            std=(0.5,),
            levels=255,
        ),
        dtype=D,
    )


def test_batches_of_24_mnist_digits_are_counted_exactly(shared_data: SharedData) -> None:
    """The log's figures of iLRG: 1.0, .994, 1.0."""
    x, y = images(shared_data, "mnist_subset.npz")
    classes, exact, recall = accuracy(fcn3((1, 28, 28)), x, y, 24, 50).tolist()
    assert classes == 1.0
    assert exact >= 0.99
    assert recall >= 0.999


@pytest.mark.parametrize(
    ("batch", "exact", "recall"),
    [(8, 1.0, 1.0), (16, 1.0, 1.0), (32, 0.99, 0.99), (64, 0.95, 0.99), (128, 0.85, 0.99)],
)
def test_larger_batches_beat_the_log(
    shared_data: SharedData, batch: int, exact: float, recall: float
) -> None:
    """The log's figures of iLRG for 8 to 128 samples: counts 1, 1, .804, .598, .386; samples 1, 1, .975, .957, .963."""
    x, y = images(shared_data, "mnist_subset.npz")
    found = accuracy(fcn3((1, 28, 28)), x, y, batch, 20)
    assert found[1] >= exact
    assert found[2] >= recall


def test_ilrg_here_is_as_strong_as_its_log(shared_data: SharedData) -> None:
    x, y = images(shared_data, "mnist_subset.npz")

    def theirs(leak: GradientLeak, task: Task, batch: int) -> Tensor:
        head = label_counts.of(leak, task, 0)
        assert head is not None
        return label_counts.whole(label_counts.ilrg(head, batch), batch)

    for batch, exact in ((24, 0.95), (64, 0.5)):
        assert accuracy(fcn3((1, 28, 28)), x, y, batch, 20, theirs)[1] >= exact


def test_a_hundred_classes_of_a_sigmoid_lenet(shared_data: SharedData) -> None:
    """CIFAR-10 pictures with labels drawn from a hundred classes, since CIFAR-100 is not at hand; the log's figure of iLRG: 1.0."""
    x, _ = images(shared_data, "cifar10_train_subset.npz")
    y = torch.randint(100, (len(x),), generator=torch.Generator().manual_seed(1))
    task = Task.build(
        TaskSpec("lenet", {}, shape=(3, 32, 32), classes=100, mean=(0.5,), std=(0.5,), levels=255),
        dtype=D,
    )
    assert accuracy(task, x, y, 24, 5).tolist() == [1.0, 1.0, 1.0]


def test_a_trained_network_and_few_samples_show_their_classes(shared_data: SharedData) -> None:
    """Features differ by class after training: pooled counts say that they are far from whole, and RLG's classes take over."""
    x, y = images(shared_data, "mnist_subset.npz")
    task, g = fcn3((1, 28, 28)), torch.Generator().manual_seed(0)
    theta = task.init(g)
    for _ in range(300):
        i = torch.randint(1000, (32,), generator=g)
        theta = theta - 0.1 * task.gradient(theta, x[i], y[i])
    right, pooled = 0.0, 0.0
    for _ in range(20):
        i = 1000 + torch.randperm(1000, generator=g)[:4]
        leak = gradient_leak(task, theta, x[i], y[i])
        n, k, head = (
            torch.bincount(y[i], minlength=10),
            ours(leak, task, 4),
            label_counts.of(leak, task, 0),
        )
        assert head is not None
        right += float(torch.minimum(k, n).sum()) / 80
        pooled += (
            float(torch.minimum(label_counts.whole(label_counts.pooled(head, 4), 4), n).sum()) / 80
        )
    assert right > 0.8
    assert right > pooled + 0.1


def test_pooled_counts_far_from_whole_numbers_are_not_called_a_fit() -> None:
    task, x, y = small()
    leak = gradient_leak(
        task, 6 * task.init(torch.Generator().manual_seed(0)), x[::9][:16], y[::9][:16]
    )
    found = attacked(leak, task)
    assert found.residual > read_labels.NEAR
    assert found.certificate is Certificate.FAILED
    assert "of whole numbers" in found.note
