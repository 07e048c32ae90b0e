"""Labels read from gradients and, with the features, from single differences; against the truth and against autograd."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="arg-type"

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import leakaudit as la
from leakaudit.core import registry
from leakaudit.core.errors import AttackError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.trace import TaskSpec
from leakaudit.inversion.labels import label_signs, last_layer, read_labels, soft_labels
from leakaudit.inversion.search import feature_inversion, objectives
from leakaudit.tasks import data
from leakaudit.tasks.task import Task

D = torch.float64


def crops(model: str, **args: object) -> tuple[Task, Tensor, Tensor]:
    photos = data.load("photos")
    return Task.build(photos.spec(model, args), dtype=D), photos.x.double(), photos.y


def gradient_leak(
    task: Task, theta: Tensor, x: Tensor, y: Tensor, sign: float = 1.0
) -> GradientLeak:
    value = sign * task.gradient(theta, x, y)[None]
    return GradientLeak(
        0,
        torch.zeros(1),
        sign * torch.ones(1, 1, dtype=D),
        value,
        torch.zeros(1),
        (0, task.layout.size),
        theta=theta[None],
    )


def test_idlg_reads_100_labels_of_100_with_and_without_the_bias() -> None:
    task, x, y = crops("lenet")
    g = torch.Generator().manual_seed(0)
    weight = task.layout.slices["fc.weight"]
    right = [0, 0]
    for k in torch.randperm(len(x), generator=g)[:100].tolist():
        leak = gradient_leak(task, task.init(g), x[k : k + 1], y[k : k + 1])
        by_rows = label_signs.idlg(leak.value[0, weight].reshape(6, -1))
        by_bias = label_signs.from_gradient(leak, task)
        right[0] += by_rows is not None and int(by_rows) == int(y[k])
        right[1] += by_bias is not None and int(by_bias) == int(y[k])
    assert right == [100, 100]


def test_negative_features_break_the_row_rule_and_not_the_bias_rule() -> None:
    """iDLG needs h >= 0; with a tanh the sum of h may be negative, and then every row but the label's is."""
    task, x, y = crops("mlp", hidden="9", act="tanh")
    g = torch.Generator().manual_seed(0)
    weight = task.layout.slices["layer2.weight"]
    silent = 0
    for k in range(40):
        leak = gradient_leak(task, task.init(g), x[4 * k : 4 * k + 1], y[4 * k : 4 * k + 1])
        found = label_signs.idlg(leak.value[0, weight].reshape(6, -1))
        assert found is None or int(found) == int(y[4 * k])
        silent += found is None
        by_bias = label_signs.from_gradient(leak, task)
        assert by_bias is not None
        assert int(by_bias) == int(y[4 * k])
    assert 5 < silent < 35


def test_two_samples_are_not_read_as_one() -> None:
    task, x, y = crops("lenet")
    theta = task.init(torch.Generator().manual_seed(0)) * 0.1
    first, last = 0, len(x) - 1
    assert y[first] != y[last]
    both = torch.stack([x[first], x[last]]), torch.stack([y[first], y[last]])
    assert label_signs.from_gradient(gradient_leak(task, theta, *both), task) is None


def test_signs_of_the_combination_weight_decay_and_part_of_the_columns() -> None:
    task, x, y = crops("lenet", l2=5.0)
    leak = gradient_leak(task, task.init(torch.Generator().manual_seed(3)), x[:1], y[:1], sign=-1.0)
    assert int(label_signs.from_gradient(leak, task) or 0) == int(y[0])
    whole = task.layout.size
    bias = replace(leak, value=leak.value[:, whole - 6 :], columns=(whole - 6, whole))
    weights = replace(leak, value=leak.value[:, : whole - 6], columns=(0, whole - 6))
    first_layer = replace(leak, value=leak.value[:, :100], columns=(0, 100))
    for part in (bias, weights):
        found = label_signs.from_gradient(part, task)
        assert found is not None
        assert int(found) == int(y[0])
    assert label_signs.from_gradient(first_layer, task) is None


def test_binary_labels_are_the_sign_of_the_bias() -> None:
    task = Task.build(TaskSpec("logistic", {}, loss="binary", shape=(5,), classes=2), dtype=D)
    g = torch.Generator().manual_seed(0)
    for label in (0, 1):
        leak = gradient_leak(
            task, task.init(g), torch.randn(1, 5, generator=g, dtype=D), torch.tensor([label])
        )
        found = label_signs.from_gradient(leak, task)
        assert found is not None
        assert int(found) == label


def test_weight_decay_a_second_row_and_local_steps_do_not_disturb() -> None:
    task, x, y = crops("mlp", hidden="40", l2=0.5)
    g = torch.Generator().manual_seed(1)
    chosen = torch.randint(len(x), (12,), generator=g)
    leak = gradient_leak(task, task.init(g), x[chosen], y[chosen])
    expected = sorted(y[chosen].tolist())
    zero = replace(
        leak,
        value=torch.cat([leak.value * 0, leak.value]),
        combination=torch.eye(2, dtype=D),
        rounds=torch.arange(2),
        std=torch.zeros(2),
        theta=torch.cat([leak.theta, leak.theta]) if leak.theta is not None else None,
    )
    for one in (leak, zero):
        found = read_labels.read(one, task, 12)
        assert found is not None
        y_found, off, _ = found
        assert y_found.tolist() == expected
        assert off < 0.2
    w = leak.theta[0].clone() if leak.theta is not None else leak.value[0]
    total = torch.zeros_like(w)
    for _ in range(5):
        step = task.gradient(w, x[chosen], y[chosen])
        total, w = total + step, w - 0.02 * step
    found = read_labels.read(replace(leak, value=total[None], inner=5, step=0.02), task, 12)
    assert found is not None
    assert found[0].tolist() == expected


def test_without_the_model_llg_counts_and_two_outputs_become_one() -> None:
    task, x, y = crops("mlp", hidden="40")
    leak = gradient_leak(task, task.init(torch.Generator().manual_seed(0)), x[:5], y[:5])
    found = read_labels.read(replace(leak, theta=None), task, 5)
    assert found is not None
    assert (len(found[0]), found[1]) == (5, read_labels.UNKNOWN)
    binary = Task.build(TaskSpec("logistic", {}, loss="binary", shape=(6,), classes=2), dtype=D)
    g = torch.Generator().manual_seed(0)
    x = 0.1 * torch.randn(9, 6, generator=g, dtype=D)
    y = torch.tensor([1, 0, 0, 1, 1, 0, 1, 1, 1])
    found = read_labels.read(gradient_leak(binary, binary.init(g), x, y), binary, 9)
    assert found is not None
    assert found[0].tolist() == [0] * 3 + [1] * 6


def test_candidates_repeat_classes_and_forget_the_order() -> None:
    task, _, _ = crops("lenet")
    pairs = [tuple(c.tolist()) for c in soft_labels.candidates(task, 2)]
    assert len(pairs) == len(set(pairs)) == soft_labels.count(task, 2) == 21
    assert (2, 2) in pairs
    assert (3, 1) not in pairs


def test_known_labels_are_read_or_refused() -> None:
    task, _, _ = crops("lenet")
    assert read_labels.given([], task, 1) is None
    known = read_labels.given([3, 0], task, 2)
    assert known is not None
    assert known.tolist() == [3, 0]
    for wrong in ([6], [3, 1], [-1]):
        with pytest.raises(AttackError, match="labels: expected 1 numbers from 0 to 5"):
            read_labels.given(wrong, task, 1)


def test_known_labels_are_a_list_in_python_and_text_on_the_command_line() -> None:
    for name in ("differential", "inverting", "gradinversion"):
        kind = registry.get("attacks", name)
        for typed in ("3, 0", "3,0", [3, 0], (3, 0), ["3", "0"]):
            made = registry.configure(kind, {"labels": typed})
            assert made.labels == (3, 0)
            assert registry.values(made)["labels"] == "3,0"  # as records hold it
        for one in (3, "3", 3.0):
            assert registry.configure(kind, {"labels": one}).labels == (3,)
        assert registry.values(kind())["labels"] == ""
        for wrong in ("x", "1,", "1;2", 1.5, True, [True], [[3]], {"3": 0}):
            with pytest.raises(la.LeakauditError, match="labels: expected whole numbers joined by"):
                registry.configure(kind, {"labels": wrong})


@pytest.mark.parametrize(("loss", "classes"), [("cross_entropy", 4), ("binary", 2), ("squared", 3)])
def test_label_variables_become_what_the_loss_takes(loss: str, classes: int) -> None:
    task = Task.build(TaskSpec("linear", {}, loss=loss, shape=(5,), classes=classes), dtype=D)
    variables = soft_labels.raw(task, 7, torch.Generator().manual_seed(0), D)
    soft, hard = soft_labels.soft(task, variables), soft_labels.hard(task, variables)
    x = torch.zeros(7, 5, dtype=D)
    theta = task.init(torch.Generator().manual_seed(0))
    assert math.isfinite(float(task.loss(theta, x, soft)))
    if loss == "cross_entropy":
        assert torch.allclose(soft.sum(1), torch.ones(7, dtype=D))
        assert torch.equal(soft.argmax(1), hard)
    elif loss == "binary":
        assert torch.equal(soft > 0.5, hard.bool())
    else:
        assert torch.equal(soft, variables)


def difference(
    task: Task, x: Tensor, y: Tensor, alpha: float, wire: float, seed: int, batch: int = 1
) -> tuple[GradientLeak, Tensor]:
    """One difference between two models that are a gradient step and some drift apart."""
    g = torch.Generator().manual_seed(seed)
    first = task.init(g)
    slope = task.gradient(first, x, y)
    theta = torch.stack(
        [
            first,
            first
            - alpha
            * (
                slope
                + 0.1
                * slope.norm()
                / len(slope) ** 0.5
                * torch.randn(len(slope), generator=g, dtype=D)
            ),
        ]
    )
    gradients = torch.stack([task.gradient(w, x, y) for w in theta])
    std = float(gradients.abs().mean()) * wire
    value = gradients[:1] - gradients[1:] + std * torch.randn(1, len(slope), generator=g, dtype=D)
    rows = torch.tensor([[1.0, -1.0]], dtype=D)
    return GradientLeak(
        0,
        torch.arange(2),
        rows,
        value,
        torch.full((1,), std),
        (0, task.layout.size),
        theta=theta,
        batch=batch,
    ), theta


# The fast test has every network with one of the step sizes and two pictures; tests/contract/test_attacks.py
# solves the last layer of an mlp.
FEW: list[tuple[str, dict[str, object], float]] = [
    ("convnet", {}, 0.01),
    ("lenet", {}, 0.1),
    ("lenet", {"act": "tanh"}, 0.1),
    ("convnet", {"l2": 0.1}, 0.01),
]
NETWORKS: list[tuple[str, dict[str, object]]] = [
    ("convnet", {}),
    ("lenet", {}),
    ("mlp", {}),
    ("lenet", {"act": "tanh"}),
    ("convnet", {"l2": 0.1}),
]
ALL = [
    pytest.param(model, args, alpha, 8, marks=pytest.mark.slow)
    for alpha in (0.1, 0.01, 0.001)
    for model, args in NETWORKS
]


@pytest.mark.parametrize(
    ("model", "args", "alpha", "pictures"), [*((*one, 2) for one in FEW), *ALL]
)
def test_one_difference_gives_the_label_and_the_features_exactly(
    model: str, args: dict[str, object], alpha: float, pictures: int
) -> None:
    task, x, y = crops(model, **args)
    settled = 0
    for k in range(pictures):
        for wire, error in ((0.0, 1e-5), (1e-7, 5e-3)):
            one, label = x[17 * k + 5 : 17 * k + 6], y[17 * k + 5 : 17 * k + 6]
            leak, _ = difference(task, one, label, alpha, wire, k)
            known = last_layer.solve(objectives.target(leak, task, 1, D), task)
            if known is not None:
                settled += 1
                found, (theta, features) = known
                true = torch.stack(
                    [feature_inversion.features(task, w, one) for w in theta]
                ).detach()
                assert found == int(label)
                assert float((features - true).norm() / true.norm()) < error
    assert settled >= 14 / 16 * 2 * pictures


def test_several_rounds_agree_and_plain_rows_are_read_too() -> None:
    task, x, y = crops("convnet")
    theta = [task.init(torch.Generator().manual_seed(0))]
    for _ in range(3):
        theta.append(theta[-1] - 0.05 * task.gradient(theta[-1], x[:1], y[:1]))
    models = torch.stack(theta)
    one = torch.eye(4, dtype=D)
    for rows in (one[:3] - one[1:], one, torch.cat([one[:1], 2 * one[2:3] - one[3:]])):
        value = rows @ torch.stack([task.gradient(w, x[:1], y[:1]) for w in models])
        leak = GradientLeak(
            0,
            torch.arange(4),
            rows,
            value,
            torch.zeros(len(rows)),
            (0, task.layout.size),
            theta=models,
            batch=1,
        )
        known = last_layer.solve(objectives.target(leak, task, 9, D), task)
        assert known is not None
        label, (seen, features) = known
        assert label == int(y[0])
        true = torch.stack([feature_inversion.features(task, w, x[:1]) for w in seen]).detach()
        assert torch.allclose(features, true, rtol=1e-7, atol=1e-9)


def test_two_samples_settle_nothing() -> None:
    task, x, y = crops("convnet")
    for k in range(4):
        pair = torch.tensor([k, len(x) - 1 - k])
        leak, _ = difference(task, x[pair], y[pair], 0.05, 0.0, k, batch=2)
        assert last_layer.solve(objectives.target(leak, task, 1, D), task) is None


def test_without_a_bias_in_the_leak_nothing_is_claimed() -> None:
    task, x, y = crops("convnet")
    leak, _ = difference(task, x[:1], y[:1], 0.05, 0.0, 0)
    part = replace(leak, value=leak.value[:, :-6], columns=(0, task.layout.size - 6))
    assert last_layer.solve(objectives.target(part, task, 1, D), task) is None


def changing_batches(rounds: int = 4) -> tuple[GradientLeak, Task, list[Tensor]]:
    """Gradients of two pictures each, other ones in every round; and their labels in order."""
    task, x, y = crops("lenet")
    g = torch.Generator().manual_seed(3)
    theta = task.init(g)
    order = torch.randperm(len(x), generator=g)[: 2 * rounds].reshape(rounds, 2)
    value = torch.stack([task.gradient(theta, x[some], y[some]) for some in order])
    leak = GradientLeak(
        node=0,
        rounds=torch.arange(1, rounds + 1),
        combination=torch.eye(rounds, dtype=D),
        value=value,
        std=torch.zeros(rounds, dtype=D),
        columns=(0, task.layout.size),
        theta=theta.expand(rounds, -1),
        batch=2,
    )
    return leak, task, [y[some].sort().values for some in order]


@pytest.mark.parametrize("records", [None, 8])
def test_the_labels_of_every_gradient_are_read_if_records_change(records: int | None) -> None:
    leak, task, labels = changing_batches()
    attack = registry.get("attacks", "labels")()
    found = attack(replace(leak, records=records), task, torch.Generator())
    assert torch.equal(found.y, torch.cat(labels))
    assert "of 4 of 4 gradients, one by one" in found.note


def test_labels_of_the_same_records_are_read_once_and_the_note_says_so() -> None:
    leak, task, labels = changing_batches()
    attack = registry.get("attacks", "labels")()
    same = replace(leak, value=leak.value[:1].expand(4, -1), records=2)
    found = attack(same, task, torch.Generator())
    assert torch.equal(found.y, labels[0])
    assert "of one gradient" in found.note


def test_equal_gradients_of_batches_that_may_differ_show_labels_once() -> None:
    leak, task, labels = changing_batches()
    same = replace(leak, value=leak.value[:1].expand(4, -1))
    found = registry.get("attacks", "labels")()(same, task, torch.Generator())
    assert torch.equal(found.y, labels[0])
    assert "of 4 of 4 gradients, one by one" in found.note
