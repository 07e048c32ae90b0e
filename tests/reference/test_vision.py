"""Vision transformers: the model, the attack `patches`, and what must not be certified."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import lookalikes
import pytest
import torch
import torch.nn.functional as F
from encoders import encoder
from torch import Generator, Tensor

from leakaudit.attacks import Patches
from leakaudit.attacks.patches import _judged
from leakaudit.core.errors import LeakauditError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import TaskSpec
from leakaudit.inversion.exact import vision_tokens
from leakaudit.inversion.exact.first_layer_rows import Span
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks.models import EncoderBlock
from leakaudit.tasks.task import Task

D = torch.float64
# Rounding of a gradient of sums over thousands of terms, in units of the number format.
ROUNDING = 8.0


@cache
def task(width: int = 64, patch: int = 8, depth: int = 2) -> Task:
    args = {"width": width, "patch": patch, "depth": depth, "heads": 2}
    shape = (1, 16, 16)
    return Task.build(TaskSpec("vit", args, shape=shape, classes=10, levels=255), dtype=D)


def planted(made: Task, x: Tensor, dtype: torch.dtype = D) -> GradientLeak:
    y = torch.arange(len(x))
    theta = made.init(Generator().manual_seed(0)).to(dtype)
    gradient = made.gradient(theta, x.to(dtype), y).double()
    noise = ROUNDING * torch.finfo(dtype).eps * float(gradient.square().mean().sqrt())
    return GradientLeak(
        0,
        torch.ones(1, dtype=torch.int64),
        torch.ones(1, 1, dtype=D),
        gradient[None].to(dtype),
        torch.tensor([noise]),
        (0, made.layout.size),
        theta=theta[None],
        batch=len(x),
        wire=torch.finfo(dtype).eps,
    )


def images(count: int, seed: int = 0) -> Tensor:
    """Crops of faces, 16 x 16 pixels."""
    case = Scenario(victim="fedsgd", nodes=2, data="faces", samples=count, seed=seed)
    plan = lookalikes.planned(case, "ordinary", seed)
    x: Tensor = plan.source.x[plan.rows[-1]].double()[:, :, 4:20, 4:20]
    return (x * 255).round() / 255


def recovered(leak: GradientLeak, made: Task) -> Reconstruction:
    return Patches()(leak, made, Generator().manual_seed(0))


def equal(found: Reconstruction, x: Tensor) -> bool:
    """Whether all images are bit-identical, in any order, and their labels right."""
    if len(found.x) != len(x) or found.y is None:
        return False
    match = (found.x[:, None] == x.to(found.x)).flatten(2).all(2)
    return bool(match.any(0).all()) and torch.equal(match.double().argmax(1), found.y)


def test_the_model_is_a_pre_norm_encoder_of_patches() -> None:
    """The same weights in torch's own encoder layers, and patches cut by hand."""
    made = task(width=16, patch=8, depth=1)
    theta = made.init(Generator().manual_seed(0))
    weights = made.layout.split(theta + 0.1 * torch.randn(len(theta), dtype=D))
    layer = encoder(weights, 16, 2)
    x = torch.rand(3, 1, 16, 16, dtype=D)
    seen = made.normalise(x)
    cut = [seen[:, 0, r : r + 8, c : c + 8].flatten(1) for r in (0, 8) for c in (0, 8)]
    embedded = torch.stack(cut, 1) @ weights["embed.weight"].flatten(1).T + weights["embed.bias"]
    first = weights["first"].expand(3, 1, 16)
    out = layer(torch.cat([first, embedded], 1) + weights["places"])[:, 0]
    out = F.layer_norm(out, (16,), weights["norm.weight"], weights["norm.bias"])
    expected = out @ weights["head.weight"].T + weights["head.bias"]
    flat = torch.cat([weights[name].flatten() for name in made.layout.names])
    torch.testing.assert_close(made.logits(flat, x), expected)


def test_a_model_that_cannot_be_built_is_refused() -> None:
    for args, why in (
        ({"patch": 5}, "do not tile"),
        ({"width": 10}, "multiple of heads"),
        ({"patch": 0}, "patch >= 1"),
    ):
        with pytest.raises(LeakauditError, match=why):
            Task.build(TaskSpec("vit", args, shape=(1, 16, 16), classes=10))
    with pytest.raises(LeakauditError, match="vit needs images"):
        Task.build(TaskSpec("vit", {}, shape=(20,), classes=10))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("depth", [1, 2])
def test_one_image_is_exact(dtype: torch.dtype, depth: int) -> None:
    made, x = task(depth=depth), images(1)
    found = recovered(planted(made, x, dtype), made)
    assert found.certificate is Certificate.EXACT, found.note
    assert equal(found, x)


@pytest.mark.parametrize("count", [2, 6])
def test_a_batch_is_exact(count: int) -> None:
    made, x = task(), images(count)
    found = recovered(planted(made, x), made)
    assert found.certificate is Certificate.EXACT, found.note
    assert found.certified == count
    assert equal(found, x)


def test_images_may_share_patches() -> None:
    """The right half of two images is the same, so their tokens there are equal before block 1."""
    made, x = task(), images(3)
    x[1, :, :, 8:] = x[0, :, :, 8:]
    found = recovered(planted(made, x), made)
    assert found.certificate is Certificate.EXACT, found.note
    assert equal(found, x)


def test_the_search_finds_tokens_only() -> None:
    """Every solution is the input of the upper layer for one of the tokens."""
    made, x = task(), images(4)
    leak = planted(made, x)
    assert leak.theta is not None
    net = made.module
    seen: list[Tensor] = []
    block = net.get_submodule("blocks.0")
    assert isinstance(block, EncoderBlock)
    hook = block.up.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    made.logits(leak.theta[0], x)
    hook.remove()
    tokens = seen[0].flatten(0, 1).detach()
    weights = made.layout.split(leak.theta[0])
    one = torch.ones(len(tokens), 1, dtype=D)
    own = {name.removeprefix("blocks.0."): value for name, value in weights.items()}
    block = copy.deepcopy(block).double()
    block.load_state_dict({name: own[name] for name in block.state_dict()})

    def space(rows: Tensor) -> Span:
        basis = torch.linalg.svd(rows, full_matrices=False).Vh
        return Span(basis, torch.ones(len(rows), dtype=D), noise=1e-12, clear=1e12)

    with torch.no_grad():
        inputs = torch.cat([tokens, one], 1)
        hidden = torch.cat([F.gelu(block.up(tokens)), one], 1)
        upper, lower = space(inputs), space(hidden)
        found = vision_tokens.tokens(block, upper, lower, Generator().manual_seed(0))
    apart = torch.cdist(found, tokens, compute_mode="donot_use_mm_for_euclid_dist")
    assert sorted(apart.argmin(1).tolist()) == list(range(len(tokens)))
    assert float(apart.amin(1).max()) < 1e-6


def test_equal_images_are_not_certified() -> None:
    made, x = task(), images(3)
    x[1] = x[0]
    found = recovered(planted(made, x), made)
    assert found.certificate is Certificate.FAILED
    assert "15 tokens appear as 10" in found.note


def test_images_off_the_grid_are_not_certified() -> None:
    """They are recovered, but nothing proves the digits behind the rounding."""
    made, x = task(), images(2) * 0.97
    found = recovered(planted(made, x), made)
    assert found.certificate is Certificate.APPROXIMATE
    assert "grid" in found.note
    apart = (found.x[:, None] - x).flatten(2).abs().amax(2)
    assert float(apart.amin(0).max()) < 1e-6


def test_a_gradient_of_something_else_is_not_certified() -> None:
    """One parameter's gradient is changed by more than rounding."""
    made, x = task(), images(2)
    leak = planted(made, x)
    leak.value[0, made.layout.slices["blocks.1.up.weight"]] *= 1 + 1e-6
    found = recovered(leak, made)
    assert found.certificate is not Certificate.EXACT


def test_what_it_cannot_read_it_refuses_in_one_line() -> None:
    made, x = task(), images(2)
    leak = planted(made, x)
    assert Patches().refuses(leak, made) is None
    shallow = task(depth=1)
    said = Patches().refuses(planted(shallow, x), shallow)
    assert said is not None
    assert "only the class token" in said
    other = Task.build(TaskSpec("cnn", {}, shape=(1, 16, 16), classes=10, levels=255), dtype=D)
    said = Patches().refuses(planted(other, x), other)
    assert said is not None
    assert "model vit only" in said


def test_more_tokens_than_the_width_are_named() -> None:
    made, x = task(width=16), images(4)
    found = recovered(planted(made, x), made)
    assert found.certificate is Certificate.FAILED
    assert "20 tokens, but the model is only 16 wide" in found.note


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(lookalikes.FAMILIES))
def test_similar_images_are_never_called_exact_wrongly(family: str) -> None:
    case = Scenario(
        victim="fedsgd",
        nodes=2,
        rounds=1,
        data="faces",
        samples=4,
        model="vit",
        set={"patch": 25, "width": 64, "heads": 2},
        seed=3,
        dtype="float64",
    )
    count = lookalikes.attacked(case, family, 3, attack="patches")
    assert count.images
    assert not count.false, count.cases


@pytest.mark.parametrize(("noises", "certain"), [(1.0, True), (10.0, False)])
def test_a_gradient_that_differs_by_more_than_its_noise_is_not_certified(
    noises: float, certain: bool
) -> None:
    """`noises` is the size of the difference, in units of what the leak states."""
    made, x = task(width=16, depth=1), images(1)
    leak = planted(made, x)
    size = 1e-3 * float(leak.value.square().mean().sqrt())
    change = torch.randn(leak.value.shape, generator=Generator().manual_seed(1), dtype=D)
    noisy = replace(leak, value=leak.value + noises * size * change, std=torch.tensor([size]))
    found = _judged(noisy, made, x, "")
    assert (found.certificate is Certificate.EXACT) is certain, found.note
