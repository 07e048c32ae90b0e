"""Recovery from messages that hold only some coordinates: what is determined, and what is called
exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.core import registry
from leakaudit.core.errors import AttackError, LeakauditError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.inversion.exact import completion, gluing
from leakaudit.inversion.exact.completion import CompletedInput
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.traces.recorder import Recorder

D = torch.float64
NONE = Certificate.APPROXIMATE


def run(samples: int = 1, rounds: int = 12, hidden: int = 64, **changes: Any) -> Recorder:
    settings = {"hidden": hidden, "compress": "fixed", "share": 1 / 16, **changes.pop("set", {})}
    told = {"nodes": 3, "graph": "ring", "data": "faces", "model": "mlp", "dtype": "float64"}
    scenario = Scenario(
        victim="choco", rounds=rounds, samples=samples, set=settings, **{**told, **changes}
    )
    return recording.record(recording.plan(scenario), None)


def attacked(recorder: Recorder) -> tuple[Reconstruction, int]:
    """What comes back of node 0, and how many of its pictures are the true ones bit for bit."""
    leaks = la.leaks(recorder.trace, nodes=[0])
    (found,) = la.attack(leaks, generator=Generator().manual_seed(0))
    (score,) = la.score([found], recorder.truth_record)
    assert found.attack == "completion"
    return found, sum(map(bool, score.exact or ()))


def complete(leak: GradientLeak, task: la.Task) -> Reconstruction:
    attack = registry.configure(registry.get("attacks", "completion"), {})
    found: Reconstruction = attack(leak, task, Generator().manual_seed(0))
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("compress", ["fixed", "random", "top"])
def test_one_picture_comes_back_bit_for_bit_from_some_coordinates(
    compress: str, dtype: str
) -> None:
    found, exact = attacked(
        run(rounds=8, dtype=dtype, hidden=96, set={"compress": compress, "share": 1 / 4})
    )
    assert found.certificate is Certificate.EXACT, found.note
    assert exact == found.certified == 1


@cache
def planted(noise: float = 0.0) -> tuple[GradientLeak, la.Task, Tensor]:
    """Gradients of one picture of which 1/16 of the coordinates are shown, others in every row."""
    g = Generator().manual_seed(3)
    spec = la.TaskSpec("mlp", {"hidden": "64"}, shape=(1, 12, 12), classes=4, levels=255)
    task = la.Task.build(spec, dtype=D)
    x = torch.randint(0, 256, (1, 1, 12, 12), generator=g).to(D) / 255
    x[..., :3, :] = 0
    first = task.init(g)
    thetas = [first + 0.02 * torch.randn(len(first), generator=g, dtype=D) for _ in range(4)]
    value = torch.stack([task.gradient(w, x, torch.tensor([1])) for w in thetas])
    value = value + noise * torch.randn(value.shape, generator=g, dtype=D)
    seen = torch.rand(value.shape, generator=g) < 1 / 16
    std = torch.full((4,), noise, dtype=D)
    leak = GradientLeak(
        0,
        torch.arange(1, 5),
        torch.eye(4, dtype=D),
        value * seen,
        std,
        (0, task.layout.size),
        batch=1,
        seen=seen,
    )
    return leak, task, x


def test_black_pixels_are_told_from_pixels_that_were_not_seen() -> None:
    leak, task, x = planted()
    found = complete(leak, task)
    assert found.certificate is Certificate.EXACT
    assert torch.equal(found.x, x)


def without(leak: GradientLeak, task: la.Task, chosen: Callable[[Tensor], Tensor]) -> GradientLeak:
    """Hide entries of the first layer's weights, (H, p)."""
    assert leak.seen is not None
    assert task.first_linear is not None
    weight = task.layout.slices[task.first_linear[0]]
    seen = leak.seen.clone()
    part = seen[:, weight].reshape(4, 64, 144)
    seen[:, weight] = (part & chosen(torch.ones(64, 144, dtype=torch.bool))).reshape(4, -1)
    return replace(leak, seen=seen, value=leak.value * seen)


def test_a_pixel_that_nobody_saw_is_not_made_up() -> None:
    def but_three(mask: Tensor) -> Tensor:
        mask[:, 70:73] = False
        return mask

    leak, task, x = planted()
    found = complete(without(leak, task, but_three), task)
    assert found.certificate is NONE
    assert found.certified == 0
    assert "141 of 144 pixels determined" in found.note
    known = torch.ones(144, dtype=torch.bool)
    known[70:73] = False
    assert float((found.x - x).flatten()[known].abs().max()) < 1e-9


def test_two_components_have_no_common_scale() -> None:
    """Neurons 0 to 31 show the left half, the others the right half, and only the first a bias."""

    def halves(mask: Tensor) -> Tensor:
        mask[:32, 72:] = False
        mask[32:, :72] = False
        return mask

    leak, task, _ = planted()
    cut = without(leak, task, halves)
    assert task.first_linear is not None
    assert cut.seen is not None
    bias = task.layout.slices[task.first_linear[1] or ""]
    seen = cut.seen.clone()
    seen[:, bias.start + 32 : bias.stop] = False
    found = complete(replace(cut, seen=seen, value=cut.value * seen), task)
    assert found.certificate is NONE
    assert int(found.note.split()[0]) <= 72


def test_without_a_bias_there_is_no_scale() -> None:
    leak, task, _ = planted()
    assert task.first_linear is not None
    assert leak.seen is not None
    bias = task.layout.slices[task.first_linear[1] or ""]
    seen = leak.seen.clone()
    seen[:, bias] = False
    found = complete(replace(leak, seen=seen, value=leak.value * seen), task)
    assert found.certificate is Certificate.FAILED
    assert "no bias entry gives the scale" in found.note


def test_entries_that_were_not_sent_but_are_said_to_be_zero_end_the_proof() -> None:
    leak, task, _ = planted()
    every = torch.ones_like(leak.value, dtype=torch.bool)
    found = complete(replace(leak, seen=every), task)
    assert found.certified == 0
    assert "do not belong to one input" in found.note


@pytest.mark.parametrize("which", range(8))
def test_one_wrong_entry_ends_the_proof(which: int) -> None:
    leak, task, _ = planted()
    assert leak.seen is not None
    assert task.first_linear is not None
    weight = task.layout.slices[task.first_linear[0]]
    places = [k for k in leak.seen[0].nonzero().flatten().tolist() if k in range(weight.stop)]
    strong = sorted(places, key=lambda k: -float(leak.value[0, k].abs()))
    value = leak.value.clone()
    value[0, strong[which]] *= 1.01
    found = complete(replace(leak, value=value), task)
    assert found.certified == 0


def test_two_samples_that_are_called_one_are_not_one() -> None:
    leak, task, x = planted()
    assert leak.seen is not None
    g = Generator().manual_seed(9)
    theta = task.init(g)
    for change in (1, 40):
        other = (x + change / 255 * (torch.rand(x.shape, generator=g) < 0.3)).clamp(0, 1)
        pair = torch.cat([x, other])
        value = torch.stack(
            [task.gradient((1 + 0.1 * t) * theta, pair, torch.tensor([1, 2])) for t in range(4)]
        )
        found = complete(replace(leak, value=value * leak.seen), task)
        assert found.certified == 0, change


def test_an_unknown_batch_size_and_signs_and_half_precision_are_not_called_exact() -> None:
    leak, task, _ = planted()
    for changed, words in (
        (replace(leak, batch=None), "batch size"),
        (replace(leak, value=leak.value.sign()), "not belong|same magnitude"),
        (replace(leak, wire=1e-3), "half precision"),
    ):
        found = complete(changed, task)
        assert found.certified == 0
        assert found.certificate is not Certificate.EXACT
        assert any(word in found.note for word in words.split("|")), found.note


@pytest.mark.parametrize("noise", [1e-8, 1e-6, 1e-5, 1e-4, 1e-3])
def test_in_noise_what_is_called_exact_is_exact(noise: float) -> None:
    leak, task, x = planted(noise)
    found = complete(leak, task)
    if found.certified:
        assert torch.equal(found.x, x)
    if noise in (1e-8, 1e-3):
        assert bool(found.certified) == (noise == 1e-8)


def test_the_stated_error_of_a_pixel_is_its_error() -> None:
    """Against the truth, in units of the stated standard deviation: about normal."""
    g = Generator().manual_seed(1)
    slopes = torch.randn(2, 40, generator=g, dtype=D)
    row = torch.rand(61, generator=g, dtype=D) + 0.2
    row[-1] = 1
    seen = torch.rand(2, 40, 61, generator=g) < 0.15
    off = []
    for _ in range(20):
        noise = 1e-4 * torch.randn(2, 40, 61, generator=g, dtype=D)
        stack = (slopes[:, :, None] * row + noise) * seen
        std = torch.full((2,), 1e-4, dtype=D)
        found = completion.single(stack, seen, std, torch.full((60,), 1 / 255, dtype=D))
        assert isinstance(found, CompletedInput)
        good = found.known[:-1]
        off.append(((found.row - row)[:-1] / found.error[:-1])[good])
    size = float(torch.cat(off).square().mean().sqrt())
    assert 0.8 < size < 1.2


def test_attacks_that_read_every_coordinate_refuse() -> None:
    leak, task, _ = planted()
    theta = torch.stack([task.init(Generator().manual_seed(0))] * 4)
    for name in registry.names("attacks"):
        if name == "completion":
            continue
        chosen = registry.configure(registry.get("attacks", name), {})
        assert chosen.refuses(replace(leak, theta=theta), task), name
        leaks = la.Leaks(task.spec, (replace(leak, theta=theta),))
        with pytest.raises(AttackError, match=r"cannot use this leak: it re\w+ "):
            la.attack(leaks, name, generator=Generator().manual_seed(0))
    assert "1/16" not in leak.gaps
    assert "use completion" in leak.gaps


def test_completion_refuses_what_is_complete() -> None:
    leak, task, _ = planted()
    with pytest.raises(AttackError, match="contains every coordinate; use exact"):
        complete(replace(leak, seen=None), task)
    with pytest.raises(AttackError, match="2 samples only if all messages hold the same"):
        complete(replace(leak, batch=2), task)


def test_a_mask_has_the_shape_of_the_values_and_hides_zeros() -> None:
    leak, _, _ = planted()
    with pytest.raises(LeakauditError, match="expected a mask seen of"):
        replace(leak, seen=torch.ones(3, 3, dtype=torch.bool))
    with pytest.raises(LeakauditError, match="expected zeros where seen is false"):
        replace(leak, value=leak.value + 1)


def rows(hidden: int, rounds: int, b: int, p: int, active: float, seed: int = 0) -> Any:
    """Rows of a layer with b inputs, most of them active at a neuron at some time."""
    g = Generator().manual_seed(seed)
    x = torch.cat([torch.rand(b, p, generator=g, dtype=D), torch.ones(b, 1, dtype=D)], dim=1)
    slopes = torch.randn(rounds, hidden, b, generator=g, dtype=D)
    slopes *= torch.rand(hidden, b, generator=g) < active
    seen = torch.rand(hidden, p + 1, generator=g) < 0.25
    seen[:, -1] |= torch.rand(hidden, generator=g) < 0.3
    return x, (slopes @ x) * seen, seen


@pytest.mark.parametrize("active", [0.97, 0.75])
def test_pieces_of_a_space_are_glued(active: float) -> None:
    x, stack, seen = rows(hidden=120, rounds=10, b=4, p=60, active=active)
    found = gluing.glue(1e12 * stack, seen, 4)
    assert found is not None
    inside = x[:, found.columns]
    off = inside - inside @ found.basis.T @ found.basis
    assert bool(found.columns.all())
    assert float(off.abs().max()) < 1e-8
    assert found.worst < 10


def test_too_few_neurons_give_no_space() -> None:
    _, stack, seen = rows(hidden=8, rounds=10, b=4, p=60, active=0.5)
    assert gluing.glue(1e12 * stack, seen, 4) is None


@pytest.mark.slow
def test_a_batch_comes_back_bit_for_bit_from_the_same_coordinates() -> None:
    found, exact = attacked(run(4, 20, 256, set={"share": 1 / 8}))
    assert found.certificate is Certificate.EXACT, found.note
    assert exact == found.certified == 4
