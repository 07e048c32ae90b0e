"""Architectures against the published ones, and torchvision beside a torch that it was not built for."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="arg-type"

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Generator, nn

from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import TaskSpec
from leakaudit.tasks import _torchvision
from leakaudit.tasks.task import Task


def build(
    model: str, shape: tuple[int, ...] = (3, 32, 32), classes: int = 10, **args: object
) -> Task:
    return Task.build(TaskSpec(model, args, shape=shape, classes=classes))


def python(code: str, path: Path | None = None) -> str:
    """Run code in a fresh interpreter and return what it prints."""
    start = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", start + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return done.stdout.strip() or done.stderr


def test_lenet_is_the_one_of_dlg() -> None:
    task = build("lenet")
    assert dict(zip(task.layout.names, task.layout.shapes, strict=True)) == {
        "conv1.weight": (12, 3, 5, 5),
        "conv1.bias": (12,),
        "conv2.weight": (12, 12, 5, 5),
        "conv2.bias": (12,),
        "conv3.weight": (12, 12, 5, 5),
        "conv3.bias": (12,),
        "fc.weight": (10, 768),
        "fc.bias": (10,),
    }
    published = nn.Sequential(
        *(
            nn.Conv2d(3, 12, 5, padding=2, stride=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, padding=2, stride=2),
            nn.Sigmoid(),
        ),
        *(
            nn.Conv2d(12, 12, 5, padding=2, stride=1),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(768, 10),
        ),
    )
    g = Generator().manual_seed(0)
    theta, x = task.init(g), torch.rand(2, 3, 32, 32, generator=g)
    nn.utils.vector_to_parameters(theta, published.parameters())
    torch.testing.assert_close(task.logits(theta, x), published(x))


def test_lenet_starts_uniform_between_minus_and_plus_half() -> None:
    task = build("lenet")
    for name, p in task.layout.split(task.init(Generator().manual_seed(0))).items():
        assert float(p.abs().max()) <= 0.5, name
    theta = task.init(Generator().manual_seed(1)).double()
    assert abs(float(theta.mean())) < 0.01  # 5 standard errors of 15,826 draws: 0.0115
    assert abs(float(theta.var()) - 1 / 12) < 0.003
    biases = torch.cat(
        [p.flatten() for n, p in task.layout.split(theta).items() if n.endswith("bias")]
    )
    assert float(biases.abs().max()) > 0.4


def test_lenet_on_28x28_gray_has_588_features() -> None:
    assert build("lenet", (1, 28, 28)).layout.shapes[-2] == (10, 588)


def test_convnet_layout() -> None:
    assert build("convnet").layout.size == (27 * 16 + 16) + (144 * 32 + 32) + (288 * 32 + 32) + (
        2048 * 10 + 10
    )
    assert build("convnet", (1, 25, 25), 4, width=8).layout.shapes[-2] == (4, 16 * 7 * 7)


@pytest.mark.parametrize(
    ("hidden", "widths"),
    [
        (256, [256]),
        ("256", [256]),
        ("256,64", [256, 64]),
        ("256, 64", [256, 64]),
        ([9, 8, 7], [9, 8, 7]),
    ],
)
def test_mlp_takes_numbers_lists_and_text(hidden: object, widths: list[int]) -> None:
    shapes = build("mlp", hidden=hidden).layout.shapes
    assert [s[0] for s in shapes[::2]] == [*widths, 10]
    assert shapes[0][1] == 3072


@pytest.mark.parametrize("hidden", ["", "0", "-3", "a", "1,,2", "3.5", [], ",".join(["5"] * 65)])
def test_mlp_refuses_other_widths(hidden: object) -> None:
    with pytest.raises(LeakauditError, match=r"hidden.*256,64"):
        build("mlp", hidden=hidden)


def test_activations_are_the_ones_named() -> None:
    theta, x = (
        build("mlp", (4,)).init(Generator().manual_seed(0)),
        torch.randn(5, 4, generator=Generator().manual_seed(1)),
    )
    for act, f in (("relu", torch.relu), ("sigmoid", torch.sigmoid), ("tanh", torch.tanh)):
        task = build("mlp", (4,), act=act)
        w1, b1, w2, b2 = task.layout.split(theta).values()
        torch.testing.assert_close(task.logits(theta, x), f(x @ w1.T + b1) @ w2.T + b2)
    with pytest.raises(LeakauditError, match="expected one of relu, sigmoid, tanh, got 'gelu'"):
        build("mlp", act="gelu")


@pytest.mark.parametrize(
    ("name", "blocks"), [("resnet10", [1, 1, 1, 1]), ("resnet18", [2, 2, 2, 2])]
)
def test_resnets_are_torchvisions(name: str, blocks: list[int]) -> None:
    resnet = _torchvision.torchvision().models.resnet
    theirs = resnet.ResNet(resnet.BasicBlock, blocks, num_classes=7)
    task = build(name, classes=7, bn="eval")
    assert task.layout.names == tuple(n for n, _ in theirs.named_parameters())
    assert task.layout.shapes == tuple(tuple(p.shape) for p in theirs.parameters())
    theta, x = (
        task.init(Generator().manual_seed(0)),
        torch.rand(2, 3, 32, 32, generator=Generator().manual_seed(1)),
    )
    nn.utils.vector_to_parameters(theta, theirs.parameters())
    torch.testing.assert_close(task.logits(theta, x), theirs.eval()(x), rtol=1e-4, atol=1e-5)
    trained = Task.build(TaskSpec(name, shape=(3, 32, 32), classes=7))
    torch.testing.assert_close(trained.logits(theta, x), theirs.train()(x), rtol=1e-4, atol=1e-4)


def test_resnet_on_gray_images_has_kaiming_weights() -> None:
    task = build("resnet10", (1, 32, 32))
    first = task.layout.split(task.init(Generator().manual_seed(0)))["conv1.weight"]
    assert first.shape == (64, 1, 7, 7)
    assert float(first.std()) == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.06)


def test_convolutions_need_images() -> None:
    for name in ("lenet", "convnet", "resnet18"):
        with pytest.raises(LeakauditError, match="needs images"):
            build(name, (10,))
    with pytest.raises(LeakauditError, match="width >= 1"):
        build("convnet", width=0)


def test_torchvision_is_shimmed_exactly_where_the_plain_import_fails() -> None:
    plain = python(
        "try:\n import torchvision\n print('works')\nexcept RuntimeError as e:\n print(e)",
    )
    assert plain in ("works", "operator torchvision::nms does not exist")
    code = """
from leakaudit.tasks import _torchvision
before = _torchvision.shimmed()
a, b = _torchvision.torchvision(), _torchvision.torchvision()
import torchvision, torch
from torchvision.transforms import v2
out = torchvision.models.resnet18()(torch.rand(2, 3, 32, 32))
v2.functional.resize(torch.rand(3, 8, 8), [4, 4])
print(before, a is b is torchvision, tuple(out.shape), _torchvision.shimmed(), _torchvision.lpips().__name__)
"""
    assert python(code) == f"False True (2, 1000) {plain != 'works'} lpips"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "raise RuntimeError('operator torchvision::roi_align does not exist')",
            "is not compatible with torch",
        ),
        (
            "raise RuntimeError('operator torchvision::nms does not exist ')",
            "is not compatible with torch",
        ),
        ("raise ImportError('no luck')", "cannot be imported (no luck)"),
        (
            "import torch; raise RuntimeError('operator torchvision::nms does not exist')",
            "is not compatible with torch",
        ),
    ],
)
def test_torchvision_that_is_broken_otherwise_is_not_shimmed(
    body: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "torchvision.py").write_text(body)
    code = """
from leakaudit.tasks import _torchvision
try:
    _torchvision.torchvision()
except Exception as error:
    print(type(error).__name__, _torchvision.shimmed(), error)
"""
    out = python(code, tmp_path)
    assert out.startswith("LeakauditError False")
    assert says in out


def test_the_core_imports_neither_torchvision_nor_lpips() -> None:
    code = "import sys, leakaudit.tasks.task, leakaudit.tasks.models, leakaudit.tasks.data, leakaudit.protocols.topology; print({'torchvision', 'lpips'} & set(sys.modules))"
    assert python(code) == "set()"
