"""Tasks against plain torch modules, autograd in float64, closed forms and finite differences."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="arg-type, operator"

from __future__ import annotations

import math
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import vmap

from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Layout, TaskSpec
from leakaudit.tasks import build_task, clipping
from leakaudit.tasks.task import LOOP_ABOVE, Problem, Task

F64 = torch.float64
IMAGE = (3, 8, 8)
NODES, BATCH = 4, 3

SPECS = {
    "logistic-binary": TaskSpec("logistic", loss="binary", shape=(5,), classes=2),
    "logistic-multinomial": TaskSpec("logistic", {"bias": False, "l2": 0.3}, shape=(5,), classes=4),
    "linear": TaskSpec(
        "linear", {"l2": 0.1}, loss="squared", shape=(5,), classes=1, mean=(0.2,), std=(3.0,)
    ),
    "linear-many": TaskSpec("linear", loss="squared", shape=(5,), classes=3),
    "mlp-relu": TaskSpec(
        "mlp", {"hidden": "7,6"}, shape=IMAGE, classes=4, mean=(0.5, 0.4, 0.3), std=(0.5, 0.6, 0.7)
    ),
    "mlp-tanh": TaskSpec("mlp", {"hidden": 6, "act": "tanh", "l2": 0.01}, shape=IMAGE, classes=4),
    "mlp-sigmoid": TaskSpec(
        "mlp", {"hidden": [5], "act": "sigmoid"}, loss="binary", shape=(1, 4, 4), classes=2
    ),
    "lenet": TaskSpec("lenet", shape=IMAGE, classes=4, mean=(0.5,) * 3, std=(0.5,) * 3),
    "lenet-relu": TaskSpec("lenet", {"act": "relu"}, shape=(1, 7, 9), classes=4),
    "convnet": TaskSpec("convnet", {"width": 4, "l2": 0.2}, shape=IMAGE, classes=4),
}


def make(spec: TaskSpec, seed: int = 0, batch: int = BATCH) -> tuple[Task, Tensor, Tensor, Tensor]:
    """A float64 task with every node's model, inputs and targets."""
    g = Generator().manual_seed(seed)
    task = Task.build(spec, dtype=F64)
    thetas = torch.stack([task.init(g) for _ in range(NODES)])
    x = torch.rand(NODES, batch, *spec.shape, generator=g, dtype=F64)
    if spec.loss == "squared":
        y = torch.randn(
            NODES, batch, *([spec.classes] if spec.classes > 1 else []), generator=g, dtype=F64
        )
    else:
        y = torch.randint(spec.classes, (NODES, batch), generator=g)
    return task, thetas, x, y


def plain(task: Task, theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and flat gradient by an ordinary module, its own parameters and `backward`."""
    spec, module = task.spec, task.module.double()
    with torch.no_grad():
        for p, value in zip(module.parameters(), task.layout.split(theta).values(), strict=True):
            p.copy_(value)
    module.zero_grad()
    lead = [1] * (len(spec.shape) - 1)
    mean, std = (torch.tensor(v, dtype=F64).reshape(-1, *lead) for v in (spec.mean, spec.std))
    out = module((x - mean) / std)
    if spec.loss == "binary":
        p = out[:, 0].sigmoid()
        loss = -(y * p.log() + (1 - y) * (1 - p).log()).mean()
    elif spec.loss == "squared":
        loss = sum(0.5 * ((o - t) ** 2).sum() for o, t in zip(out, y, strict=True)) / len(x)
    else:
        loss = -out.softmax(1).log()[torch.arange(len(x)), y].mean()
    loss = loss + spec.args.get("l2", 0.0) / 2 * sum((p**2).sum() for p in module.parameters())
    loss.backward()
    return loss.detach(), torch.cat(
        [p.grad.flatten() for p in module.parameters() if p.grad is not None]
    )


@pytest.mark.parametrize("name", SPECS)
def test_gradients_equal_those_of_a_plain_module(name: str) -> None:
    task, thetas, x, y = make(SPECS[name])
    want = [plain(task, *node) for node in zip(thetas, x, y, strict=True)]
    losses, grads = torch.stack([w[0] for w in want]), torch.stack([w[1] for w in want])
    torch.testing.assert_close(task.losses(thetas, x, y), losses, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(task.gradients(thetas, x, y), grads, rtol=1e-12, atol=1e-13)
    for i in range(NODES):
        torch.testing.assert_close(
            task.gradient(thetas[i], x[i], y[i]), grads[i], rtol=1e-12, atol=1e-13
        )
        torch.testing.assert_close(
            task.grad_fn(thetas[i], x[i], y[i]), grads[i], rtol=1e-12, atol=1e-13
        )


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("batch", [1, 2])
def test_all_ways_to_all_gradients_agree(name: str, batch: int) -> None:
    task, thetas, x, y = make(SPECS[name], batch=batch)
    want = vmap(task.grad_fn)(thetas, x, y)
    out = torch.full_like(thetas, torch.nan)
    assert task.gradients(thetas, x, y, out=out) is out
    for got in (out, task.gradients(thetas, x, y, chunk=1), task.gradients(thetas, x, y, chunk=3)):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ["mlp-relu", "logistic-multinomial", "lenet"])
def test_models_and_results_of_any_strides(name: str) -> None:
    task, thetas, x, y = make(SPECS[name])
    same = thetas[:1].expand(NODES, -1)
    want = vmap(task.grad_fn)(same.contiguous(), x, y)
    torch.testing.assert_close(task.gradients(same, x, y), want, rtol=1e-12, atol=1e-13)
    want, turned = vmap(task.grad_fn)(thetas, x, y), thetas.T.contiguous().T
    torch.testing.assert_close(task.gradients(turned, x, y), want, rtol=1e-12, atol=1e-13)
    wide = torch.full((NODES, task.layout.size + 3), torch.nan, dtype=F64)
    for out in (torch.empty_like(turned), wide[:, 1:-2]):
        task.gradients(thetas, x, y, out=out)
        torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-13)
    assert bool(wide[:, [0, -2, -1]].isnan().all())


@pytest.mark.parametrize("name", ["mlp-relu", "lenet", "logistic-binary"])
def test_float32_models_and_inputs_of_another_dtype_work(name: str) -> None:
    task, thetas, x, y = make(SPECS[name])
    got = task.gradients(thetas.float(), x, y)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), task.gradients(thetas, x, y), rtol=1e-4, atol=1e-5)
    assert Task.build(SPECS[name]).init(Generator().manual_seed(0)).dtype == torch.float32


def test_gradients_leave_no_graph_behind() -> None:
    for name in ("mlp-relu", "convnet"):
        task, thetas, x, y = make(SPECS[name])
        for got in (
            task.gradients(thetas.requires_grad_(), x, y),
            task.gradient(thetas[0], x[0], y[0]),
        ):
            assert not got.requires_grad


def test_soft_labels_equal_hard_ones_where_they_are_one_hot() -> None:
    for name in ("mlp-relu", "lenet"):
        task, thetas, x, y = make(SPECS[name])
        soft = F.one_hot(y, 4).double()
        torch.testing.assert_close(
            task.gradients(thetas, x, soft), task.gradients(thetas, x, y), rtol=1e-12, atol=1e-13
        )
        assert task.accuracy(thetas[0], x[0], soft[0]) == task.accuracy(thetas[0], x[0], y[0])


def test_soft_labels_that_do_not_sum_to_one() -> None:
    task, thetas, x, _ = make(SPECS["mlp-tanh"])
    soft = torch.rand(NODES, BATCH, 4, dtype=F64, generator=Generator().manual_seed(1))
    torch.testing.assert_close(
        task.gradients(thetas, x, soft), vmap(task.grad_fn)(thetas, x, soft), rtol=1e-12, atol=1e-13
    )


def test_hessian_of_logistic_regression_is_its_closed_form() -> None:
    task, thetas, x, y = make(SPECS["logistic-binary"])
    for theta, xi, h in zip(thetas, x, task.hessians(thetas, x, y), strict=True):
        z = torch.cat([xi, torch.ones(BATCH, 1, dtype=F64)], 1)  # the bias comes after the weights
        p = (z @ theta).sigmoid()
        torch.testing.assert_close(
            h, z.T @ torch.diag(p * (1 - p)) @ z / BATCH, rtol=1e-12, atol=1e-13
        )
    assert task.convex


@pytest.mark.parametrize("name", ["logistic-multinomial", "linear", "linear-many"])
def test_hessians_equal_autograd(name: str) -> None:
    task, thetas, x, y = make(SPECS[name])
    for theta, xi, yi, h in zip(thetas, x, y, task.hessians(thetas, x, y), strict=True):
        want = torch.autograd.functional.hessian(
            lambda t, xi=xi, yi=yi: task.loss(t, xi, yi), theta
        )
        torch.testing.assert_close(h, want, rtol=1e-12, atol=1e-13)
    assert task.convex
    assert not make(SPECS["mlp-tanh"])[0].convex


@pytest.mark.parametrize("name", ["lenet", "mlp-tanh", "logistic-multinomial"])
def test_double_backward_equals_finite_differences(name: str) -> None:
    task, thetas, x, _ = make(SPECS[name])
    soft = torch.rand(1, task.spec.classes, dtype=F64, generator=Generator().manual_seed(1))
    pick = torch.linspace(0, task.layout.size - 1, 12).long()

    def some(theta: Tensor, xi: Tensor, yi: Tensor) -> Tensor:
        return task.gradient(theta, xi, yi, create_graph=True)[pick]

    inputs = tuple(t.detach().clone().requires_grad_() for t in (thetas[0], x[0, :1], soft))
    assert torch.autograd.gradcheck(some, inputs, eps=1e-6, atol=1e-6, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("name", ["lenet", "mlp-tanh", "convnet"])
def test_matching_loss_differentiates_the_same_in_vmap_and_one_by_one(name: str) -> None:
    task, thetas, x, _ = make(SPECS[name])
    theta, restarts = (
        thetas[0],
        torch.rand(5, 1, *task.spec.shape, dtype=F64, generator=Generator().manual_seed(2)),
    )
    soft = torch.rand(5, 1, 4, dtype=F64, generator=Generator().manual_seed(3))
    target = task.gradient(theta, x[0, :1], torch.tensor([1]))

    def misfit(dummy: Tensor, label: Tensor) -> Tensor:
        return (task.grad_fn(theta, dummy, label.softmax(-1)) - target).square().sum()

    got = vmap(torch.func.grad(misfit, argnums=(0, 1)))(restarts, soft)
    for i in range(5):
        dummy, label = restarts[i].clone().requires_grad_(), soft[i].clone().requires_grad_()
        loss = (
            (task.gradient(theta, dummy, label.softmax(-1), create_graph=True) - target)
            .square()
            .sum()
        )
        for g, w in zip(got, torch.autograd.grad(loss, (dummy, label)), strict=True):
            torch.testing.assert_close(g[i], w, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_batch_normalisation_under_vmap_equals_a_plain_module(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own(tmp_path, monkeypatch, f"bn_{mode}")
    spec = TaskSpec(f"bn_{mode}:normed", {"bn": mode}, shape=IMAGE, classes=4)
    g = Generator().manual_seed(0)
    task = Task.build(spec, g, dtype=F64, trusted=True)
    assert ("1.running_mean" in task.buffers) == (mode == "eval")
    thetas = torch.stack([task.init(g) for _ in range(NODES)])
    x, y = (
        torch.rand(NODES, BATCH, *IMAGE, generator=g, dtype=F64),
        torch.randint(4, (NODES, BATCH), generator=g),
    )
    for theta, xi, yi, got in zip(thetas, x, y, task.gradients(thetas, x, y), strict=True):
        norm = nn.BatchNorm2d(5)
        if mode == "eval":
            norm.load_state_dict(
                {"running_mean": torch.full((5,), 0.25), "running_var": torch.full((5,), 4.0)},
                strict=False,
            )
        module = nn.Sequential(
            nn.Conv2d(3, 5, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(180, 4)
        ).double()
        module.train(mode == "train")
        with torch.no_grad():
            for p, value in zip(
                module.parameters(), task.layout.split(theta).values(), strict=True
            ):
                p.copy_(value)
        F.cross_entropy(module(xi), yi).backward()
        want = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_resnet_gradients_for_all_nodes_equal_one_node_at_a_time(mode: str) -> None:
    spec = TaskSpec("resnet10", {"bn": mode}, shape=(3, 16, 16), classes=4)
    task, g = Task.build(spec, dtype=F64), Generator().manual_seed(0)
    assert task.layout.size > LOOP_ABOVE
    thetas = torch.stack([task.init(g) for _ in range(2)])
    x, y = torch.rand(2, 3, 3, 16, 16, generator=g, dtype=F64), torch.tensor([[0, 1, 2], [3, 3, 0]])
    looped = task.gradients(thetas, x, y)
    torch.testing.assert_close(task.gradients(thetas, x, y, chunk=2), looped, rtol=1e-8, atol=1e-10)
    dummy = x[0].clone().requires_grad_()
    task.gradient(thetas[0], dummy, y[0], create_graph=True).square().sum().backward()
    assert dummy.grad is not None
    assert float(dummy.grad.abs().max()) > 0


def test_batch_statistics_of_one_pixel_are_refused_in_words() -> None:
    task = Task.build(TaskSpec("resnet10", shape=(3, 16, 16), classes=4))
    with pytest.raises(LeakauditError, match="bn=eval"):
        task.gradient(
            task.init(Generator().manual_seed(0)), torch.rand(1, 3, 16, 16), torch.tensor([1])
        )


def test_init_is_the_architectures_own_and_leaves_the_global_state() -> None:
    task = Task.build(SPECS["mlp-relu"], dtype=F64)
    before, g = torch.random.get_rng_state(), Generator().manual_seed(7)
    first, second = task.init(g), task.init(g)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(first, second)
    again = Generator().manual_seed(7)
    assert torch.equal(task.init(again), first)
    assert torch.equal(task.init(again), second)
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(Generator().manual_seed(7).get_state())
        layers = [nn.Linear(192, 7), nn.Linear(7, 6), nn.Linear(6, 4)]
    want = torch.cat([p.detach().flatten() for layer in layers for p in layer.parameters()])
    assert torch.equal(first.float(), want)


def test_build_leaves_the_global_state() -> None:
    before = torch.random.get_rng_state()
    Task.build(TaskSpec("resnet18", shape=(1, 32, 32), classes=3))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("logistic-binary", ("linear.weight", "linear.bias"), ("linear.weight", "linear.bias")),
        ("logistic-multinomial", ("linear.weight", None), ("linear.weight", None)),
        ("mlp-relu", ("layer1.weight", "layer1.bias"), ("layer3.weight", "layer3.bias")),
        ("lenet", None, ("fc.weight", "fc.bias")),
    ],
)
def test_ends_that_are_fully_connected(
    name: str, first: tuple[str, str | None] | None, last: tuple[str, str | None]
) -> None:
    task = Task.build(SPECS[name])
    assert (task.first_linear, task.last_linear) == (first, last)


def test_first_layer_rows_are_combinations_of_the_normalised_inputs() -> None:
    task, thetas, x, y = make(SPECS["mlp-relu"], batch=1)
    weight, bias = task.first_linear or ("", None)
    grads = task.layout.split(task.gradients(thetas, x, y)[0])
    row = int(grads[bias or ""].abs().argmax())
    seen = grads[weight][row] / grads[bias or ""][row]
    got = task.denormalise(seen).reshape(IMAGE)
    torch.testing.assert_close(got, x[0, 0], rtol=1e-10, atol=1e-12)


NORMALISED = {
    "a channel each": ((3, 4, 5), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
    "one for all channels": ((3, 4, 5), (0.1307,), (0.3081,)),
    "gray": ((1, 4, 5), (0.5,), (0.25,)),
    "one row of pixels": ((1, 1, 6), (0.5,), (0.25,)),
    "one for all features": ((6,), (0.1,), (0.7,)),
    "a feature each": ((6,), tuple(0.1 * k for k in range(6)), tuple(0.5 + k for k in range(6))),
    "nothing to do": ((2, 3, 3), (0.0,), (1.0,)),
}


@pytest.mark.parametrize("name", NORMALISED)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_normalise_and_denormalise_are_inverse_and_take_images_rows_and_stacks(
    name: str, dtype: torch.dtype
) -> None:
    shape, mean, std = NORMALISED[name]
    spec = TaskSpec("logistic", shape=shape, classes=2, mean=mean, std=std)
    task = Task.build(spec)
    g = Generator().manual_seed(0)
    rounding = 8 * torch.finfo(dtype).eps
    entries = math.prod(shape)
    for lead in ((), (4,), (2, 4)):
        x = torch.rand(*lead, *shape, generator=g, dtype=dtype)
        seen = task.normalise(x)
        assert seen.shape == x.shape
        assert seen.dtype == dtype
        torch.testing.assert_close(task.denormalise(seen), x, rtol=rounding, atol=rounding)
        # entry by entry, in plain Python: channel or feature c has mean[c] and std[c], or the only ones
        for k, value in enumerate(x.reshape(-1).tolist()):
            c = k % entries // math.prod(shape[1:])
            m, s = mean[c if len(mean) > 1 else 0], std[c if len(std) > 1 else 0]
            assert float(seen.reshape(-1)[k]) == pytest.approx((value - m) / s, rel=1e-6, abs=1e-6)
        flat = x.reshape(*lead, entries)
        assert torch.equal(task.normalise(flat), seen.reshape(*lead, entries))
        back = task.denormalise(seen.reshape(*lead, entries))
        assert torch.equal(back, task.denormalise(seen).reshape(*lead, entries))


def test_normalise_is_what_the_model_sees() -> None:
    task, thetas, x, _ = make(SPECS["mlp-relu"])
    plain = Task.build(replace(task.spec, mean=(0.0,), std=(1.0,)), dtype=F64)
    want = plain.logits(thetas[0], task.normalise(x[0]))
    assert torch.equal(task.logits(thetas[0], x[0]), want)


def test_inputs_of_another_shape_are_not_normalised() -> None:
    spec = TaskSpec("logistic", shape=(3, 4, 5), classes=2, mean=(0.5, 0.4, 0.3), std=(0.2,))
    task = Task.build(spec)
    for wrong in ((4, 3, 5, 4), (4, 59), (4, 5), ()):
        with pytest.raises(LeakauditError, match="expected inputs"):
            task.normalise(torch.zeros(wrong))
        with pytest.raises(LeakauditError, match="expected inputs"):
            task.denormalise(torch.zeros(wrong))


@pytest.mark.parametrize("call", ["loss", "gradient", "gradients"])
def test_statistics_of_one_value_a_channel_are_refused_in_one_sentence(call: str) -> None:
    """torch raises ValueError there, with a text that names neither the setting nor a way out."""
    spec = TaskSpec("resnet10", shape=(3, 16, 16), classes=4)
    g = Generator().manual_seed(0)
    x, y = torch.rand(2, 3, 16, 16, generator=g), torch.zeros(2, dtype=torch.long)
    task = Task.build(spec)
    theta = task.init(g)

    def run(task: Task, samples: int) -> None:
        if call == "gradients":
            task.gradients(theta[None], x[None, :samples], y[None, :samples])
        else:
            getattr(task, call)(theta, x[:samples], y[:samples])

    with pytest.raises(
        LeakauditError, match="bn=train cannot compute statistics of one sample on 1x1"
    ):
        run(task, 1)
    run(task, 2)
    run(Task.build(replace(spec, args={"bn": "eval"})), 1)


def test_accuracy() -> None:
    task, thetas, x, y = make(SPECS["mlp-relu"])
    want = (task.logits(thetas[0], x[0]).argmax(1) == y[0]).double().mean()
    assert task.accuracy(thetas[0], x[0], y[0]) == float(want)
    task, thetas, x, _ = make(SPECS["logistic-binary"])
    y = (task.logits(thetas[0], x[0])[:, 0] > 0).long()
    assert task.accuracy(thetas[0], x[0], y) == 1.0
    assert task.accuracy(thetas[0], x[0], 1 - y) == 0.0
    task, thetas, x, y = make(SPECS["linear"])
    with pytest.raises(LeakauditError, match="squared"):
        task.accuracy(thetas[0], x[0], y[0])


def test_check_layout_names_the_first_parameter_that_differs() -> None:
    task = Task.build(SPECS["mlp-relu"])
    task.check_layout(Layout(task.layout.names, task.layout.shapes))
    shapes = (*task.layout.shapes[:2], (9, 7), *task.layout.shapes[3:])
    with pytest.raises(
        LeakauditError,
        match=r"wrong model for the trace: parameter 2 is 'layer2.weight' \(9, 7\) .* \(6, 7\)",
    ):
        task.check_layout(Layout(task.layout.names, shapes))
    with pytest.raises(LeakauditError, match="parameter 5 is nothing in the trace"):
        task.check_layout(Layout(task.layout.names[:5], task.layout.shapes[:5]))


def test_to_changes_the_dtype_of_init() -> None:
    task = Task.build(SPECS["lenet"]).to(F64)
    assert task.init(Generator().manual_seed(0)).dtype == F64


def test_problem_checks_shapes() -> None:
    task, _, x, y = make(SPECS["lenet"])
    problem = Problem(task, x, y)
    assert (problem.nodes, problem.samples) == (NODES, BATCH)
    with pytest.raises(LeakauditError, match=r"expected x \(N, b, 3, 8, 8\)"):
        Problem(task, x[:, 0], y)
    with pytest.raises(LeakauditError, match=r"y \(N, b\)"):
        Problem(task, x, y[:, :1])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"loss": "cros_entropy"}, "did you mean 'cross_entropy'"),
        ({"loss": "binary", "classes": 3}, "exactly 2"),
        ({"classes": 1}, "at least 2"),
        ({"shape": ()}, "input shape"),
        ({"shape": (3, 0, 8)}, "input shape"),
        ({"shape": (3, 10**5, 10**5)}, "input shape"),
        ({"mean": (0.5, 0.5)}, "mean"),
        ({"std": (0.0,)}, "std > 0"),
        ({"std": (float("nan"),)}, "finite"),
        ({"args": {"l2": -1}}, "l2 >= 0"),
        ({"args": {"l2": "much"}}, "l2 >= 0"),
        ({"args": {"bn": "eval"}}, "has no batch normalisation"),
        ({"args": {"hidden": 10**9 - 1}}, "parameters, but the limit is"),
        ({"args": {"hiden": 10}}, "did you mean 'hidden'"),
        ({"model": "mpl"}, "did you mean 'mlp'"),
        ({"model": "resnet10", "shape": (192,)}, "needs images"),
        ({"model": "resnet10", "args": {"bn": "off"}}, "bn=train or bn=eval"),
    ],
)
def test_specs_that_no_model_serves(changes: dict[str, object], says: str) -> None:
    spec = TaskSpec(**({"model": "mlp", "shape": IMAGE, "classes": 4} | changes))
    with pytest.raises(LeakauditError, match=says):
        Task.build(spec)


FACTORIES = """
    import torch
    from torch import nn

    def normed():
        net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(180, 4))
        net[1].running_mean.fill_(0.25)
        net[1].running_var.fill_(4.0)
        return net

    def sized(shape, classes, width=3):
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], width), nn.Tanh(), nn.Linear(width, classes))

    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.basis = nn.Linear(192, 6)
            self.head = nn.Linear(6, 4)
            self.drop = nn.Dropout(0.9)
            for p in self.basis.parameters():
                p.requires_grad_(False)

        def forward(self, x):
            return self.head(self.drop(self.basis(x.flatten(1)).tanh()))

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(192, 192), nn.Linear(192, 4)

        def forward(self, x):
            return self.b(self.a(self.a(x.flatten(1)).relu()))

    def tied():
        net = nn.Sequential(nn.Flatten(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 4))
        net[3].weight = net[1].weight
        return net

    def again():
        layer = nn.Linear(192, 192)
        return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(192, 4))

    def pixels():
        return nn.Sequential(nn.Linear(8, 2), nn.Tanh(), nn.Flatten(), nn.Linear(48, 4))

    def number():
        return 3

    def crash():
        raise KeyError("no such thing")

    def wide():
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 9))

    def narrow():
        return nn.Linear(7, 4)

    def empty():
        return nn.Flatten()

    constant = 5
"""


def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """A module of factories on Python's path."""
    (tmp_path / f"{module}.py").write_text(textwrap.dedent(FACTORIES))
    monkeypatch.syspath_prepend(tmp_path)


def test_a_users_own_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(tmp_path, monkeypatch, "mine_sized")
    spec = TaskSpec("mine_sized:sized", {"width": 11, "l2": 0.5}, shape=IMAGE, classes=4)
    task = Task.build(spec, dtype=F64, trusted=True)
    assert task.layout.shapes == ((11, 192), (11,), (4, 11), (4,))
    assert (task.first_linear, task.last_linear) == (("1.weight", "1.bias"), ("3.weight", "3.bias"))
    assert not task.convex
    g = Generator().manual_seed(0)
    thetas = torch.stack([task.init(g) for _ in range(NODES)])
    x, y = (
        torch.rand(NODES, 2, *IMAGE, generator=g, dtype=F64),
        torch.randint(4, (NODES, 2), generator=g),
    )
    want = torch.stack([plain(task, *node)[1] for node in zip(thetas, x, y, strict=True)])
    torch.testing.assert_close(task.gradients(thetas, x, y), want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("loss", "last"), [("cross_entropy", ("1.weight", "1.bias")), ("squared", None)]
)
def test_the_layer_before_log_probabilities_is_the_last_one(
    loss: str, last: tuple[str, str] | None
) -> None:
    """Cross-entropy of log-probabilities is that of the logits behind them."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.LogSoftmax(-1))
    spec = TaskSpec("mine", shape=IMAGE, classes=4, loss=loss)
    assert build_task.linear_ends(net, spec)[1] == last


def test_frozen_parameters_are_constants_and_dropout_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own(tmp_path, monkeypatch, "mine_frozen")
    task = Task.build(
        TaskSpec("mine_frozen:Frozen", shape=IMAGE, classes=4),
        Generator().manual_seed(3),
        trusted=True,
    )
    assert task.layout.names == ("head.weight", "head.bias")
    assert set(task.buffers) == {"basis.weight", "basis.bias"}
    assert (task.first_linear, task.last_linear) == (None, ("head.weight", "head.bias"))
    theta, x = (
        task.init(Generator().manual_seed(0)),
        torch.rand(2, *IMAGE, generator=Generator().manual_seed(1)),
    )
    assert theta.shape == (28,)
    hidden = (x.flatten(1) @ task.buffers["basis.weight"].T + task.buffers["basis.bias"]).tanh()
    torch.testing.assert_close(
        task.logits(theta, x), hidden @ theta[:24].reshape(4, 6).T + theta[24:]
    )
    thetas, y = theta.expand(2, -1).contiguous(), torch.tensor([[0, 1], [0, 1]])
    both = task.gradients(thetas, torch.stack([x, x]), y)
    torch.testing.assert_close(both[0], task.gradient(theta, x, y[0]))


@pytest.mark.parametrize("factory", ["Twice", "tied", "pixels"])
def test_layers_that_are_used_twice_are_no_ends(
    factory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own(tmp_path, monkeypatch, f"mine_{factory}")
    task = Task.build(
        TaskSpec(f"mine_{factory}:{factory}", shape=IMAGE, classes=4), dtype=F64, trusted=True
    )
    assert task.first_linear is None
    assert task.last_linear is not None
    theta, x, y = (
        task.init(Generator().manual_seed(0)),
        torch.rand(2, *IMAGE, dtype=F64),
        torch.tensor([0, 3]),
    )
    thetas = torch.stack([theta, theta])
    got = task.gradients(thetas, torch.stack([x, x]), torch.stack([y, y]))
    torch.testing.assert_close(got[1], plain(task, theta, x, y)[1], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("mine_bad:absent", {}, "has no attribute 'absent'"),
        ("mine_bad:constant", {}, "a function that mine_bad itself defines"),
        ("mine_bad:number", {}, "expected a torch.nn.Module, got int"),
        ("mine_bad:crash", {}, "raised KeyError"),
        ("mine_bad:sized", {"depth": 2}, "raised TypeError"),
        ("mine_bad:wide", {}, r"expected outputs \(2, 4\)"),
        ("mine_bad:narrow", {}, "does not accept inputs"),
        ("mine_bad:again", {}, "'3' is registered under two names"),
        ("mine_bad:empty", {}, "no parameters to train"),
        ("no_such_module_anywhere:f", {}, "No module named"),
    ],
)
def test_factories_that_cannot_be_used(
    name: str, args: dict[str, object], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own(tmp_path, monkeypatch, "mine_bad")
    with pytest.raises(LeakauditError, match=says):
        Task.build(TaskSpec(name, args, shape=IMAGE, classes=4), trusted=True)


def test_a_factory_that_nobody_trusted_is_not_run(tmp_path: Path) -> None:
    spec = TaskSpec("os:mkdir", {"path": str(tmp_path / "made")}, shape=IMAGE, classes=4)
    with pytest.raises(LeakauditError, match="trusted"):
        Task.build(spec)
    assert not (tmp_path / "made").exists()


def test_only_gradients_above_the_clip_are_scaled() -> None:
    task, thetas, x, y = make(SPECS["logistic-binary"])
    each = torch.stack(
        [task.gradients(thetas, x[:, k : k + 1], y[:, k : k + 1]) for k in range(BATCH)], 1
    )
    norms = each.norm(dim=2)
    clip = float(norms.median())
    factors = (clip / norms).where(norms > clip, 1.0)
    assert 0 < int((factors < 1).sum()) < factors.numel()
    wanted = (each * factors[:, :, None]).mean(1)
    torch.testing.assert_close(clipping.gradients(task, thetas, x, y, clip), wanted)
