"""What every registered attack must do, its own file's tests aside; a new attack is in this table as soon as its file is there."""

from __future__ import annotations

import copy
import random
from dataclasses import FrozenInstanceError, fields, replace
from functools import cache
from typing import Any, ClassVar, get_type_hints

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from leakaudit.core import registry
from leakaudit.core.errors import AttackError, LeakauditError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import TaskSpec
from leakaudit.inversion.attack import Attack
from leakaudit.tasks import data
from leakaudit.tasks.task import Task

NAMES = registry.names("attacks")
CHEAP = {
    "steps": 3,
    "adam_steps": 10,
    "restarts": 1,
}  # this file is about manners; strength is tested in tests/reference
D = torch.float64


@cache
def pictures() -> Tensor:
    """(n, 1, 8, 8) Parts of photographs."""
    return data.load("photos").x[:, :1, 12:20, 12:20].double()


@cache
def task(model: str) -> Task:
    args: dict[str, Any] = {"hidden": "12"} if model == "mlp" else {}
    return Task.build(
        TaskSpec(model, args, shape=(1, 8, 8), classes=4, mean=(0.5,), std=(0.5,), levels=255),
        dtype=D,
    )


def planted(model: str, difference: bool, batch: int = 1) -> tuple[GradientLeak, Tensor, Tensor]:
    """Gradients or their differences along four models of a small drift, and the pictures and labels behind them."""
    made, g = task(model), Generator().manual_seed(5)
    x = pictures()[3 : 3 + batch].clone()
    y = torch.arange(batch) % 4
    first = made.init(g)
    theta = torch.stack(
        [first + 0.02 * k * torch.randn(len(first), generator=g, dtype=D) for k in range(4)]
    )
    rows = torch.eye(4, dtype=D)
    rows = rows[:-1] - rows[1:] if difference else rows
    value = rows @ torch.stack([made.gradient(w, x, y) for w in theta])
    std = torch.zeros(len(rows), dtype=D)
    return (
        GradientLeak(
            7, torch.arange(4), rows, value, std, (0, made.layout.size), theta=theta, batch=batch
        ),
        x,
        y,
    )


WITHOUT_INPUTS = {"labels"}
# Of models that read pixels they refuse all; test_exported.py and test_text.py plant their leaks.
OF_TOKENS = {"sequences", "tokens"}
OF_VIT = {"patches"}  # of other models it refuses all; see test_vision.py
OF_GAPS = {"completion"}  # of leaks without gaps it refuses all; see test_completion.py
OF_ESTIMATES = {"twostep"}  # of what relations determine it refuses all; see test_two_steps.py
LEAKS = [(model, difference) for model in ("mlp", "lenet") for difference in (False, True)]


def made(name: str) -> Any:
    kind = registry.get("attacks", name)
    return registry.configure(
        kind, {k: v for k, v in CHEAP.items() if k in registry.parameters(kind)}
    )


def usable(name: str) -> list[tuple[str, bool]]:
    return [
        (model, difference)
        for model, difference in LEAKS
        if made(name).refuses(planted(model, difference)[0], task(model)) is None
    ]


def run(name: str, model: str, difference: bool, seed: int = 0) -> Reconstruction:
    found: Reconstruction = made(name)(
        planted(model, difference)[0], task(model), Generator().manual_seed(seed)
    )
    return found


@cache
def first_run(name: str, model: str, difference: bool) -> Reconstruction:
    """Of a test that comes first; others compare with it what they run themselves."""
    torch.manual_seed(1)
    return run(name, model, difference)


@pytest.mark.parametrize(("model", "difference"), LEAKS)
def test_a_planted_leak_is_what_autograd_gives(model: str, difference: bool) -> None:
    leak, x, y = planted(model, difference, batch=3)
    built = task(model)
    module, gradients = copy.deepcopy(built.module), []
    assert leak.theta is not None
    for theta in leak.theta:
        parameters = built.layout.split(theta.clone().requires_grad_())
        loss = F.cross_entropy(
            torch.func.functional_call(module, parameters, ((x - 0.5) / 0.5,)), y
        )
        gradients.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(parameters.values()))])
        )
    assert torch.allclose(
        leak.combination @ torch.stack(gradients), leak.value, rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("name", NAMES)
def test_an_attack_is_a_frozen_value_that_describes_itself(name: str) -> None:
    kind = registry.get("attacks", name)
    with pytest.raises(FrozenInstanceError):
        made(name).exact = not kind.exact
    for word, type_ in (("exact", bool), ("reads", str), ("paper", str), ("cost", str)):
        assert get_type_hints(kind)[word] == ClassVar[type_]
        assert isinstance(getattr(kind, word), type_)
        assert getattr(kind, word) != ""
    for f in fields(kind):
        assert f.metadata.get("help"), (
            f"{name}.{f.name}: declare it with registry.param(default, help)"
        )
    with pytest.raises(LeakauditError, match="has no parameter 'stepz'"):
        registry.configure(kind, {"stepz": 3})


@pytest.mark.parametrize("name", sorted({*NAMES} - OF_TOKENS - OF_VIT - OF_GAPS - OF_ESTIMATES))
def test_an_attack_reads_some_leak_and_gives_inputs_in_the_data_s_units(name: str) -> None:
    assert usable(name), f"{name} refuses every leak of {LEAKS}"
    for model, difference in usable(name):
        found = first_run(name, model, difference)
        assert (found.node, found.attack) == (7, name)
        assert found.x.shape == (0 if name in WITHOUT_INPUTS else 1, 1, 8, 8)
        assert found.x.dtype == D
        assert bool(found.x.isfinite().all())
        assert bool(((found.x >= 0) & (found.x <= 1)).all())
        assert found.y is None or (found.y.shape == (1,) and 0 <= int(found.y) < 4)
        assert found.residual >= 0
        if not made(name).exact:
            assert found.certificate in (Certificate.APPROXIMATE, Certificate.FAILED)


@pytest.mark.parametrize("name", NAMES)
def test_equal_generators_give_equal_results_and_everything_else_stays_as_it_was(name: str) -> None:
    """Other random states do not matter, and neither they nor the leak nor the gradient mode change."""
    for model, difference in usable(name)[:2]:
        first = first_run(name, model, difference)
        torch.manual_seed(2)
        leak, _, _ = planted(model, difference)
        before = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
        value = leak.value.clone()
        again = made(name)(leak, task(model), Generator().manual_seed(0))
        after = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
        assert torch.equal(before[0], after[0])
        assert before[1:] == after[1:]
        assert torch.equal(leak.value, value)
        assert torch.is_grad_enabled()
        assert all(p.grad is None for p in task(model).module.parameters())
        assert torch.equal(first.x, again.x)
        assert (first.certificate, first.residual, first.note) == (
            again.certificate,
            again.residual,
            again.note,
        )
        assert (first.y is None and again.y is None) or (
            first.y is not None and again.y is not None and torch.equal(first.y, again.y)
        )


def wrong_leaks() -> list[tuple[str, str, GradientLeak]]:
    """Leaks that hardly any attack can use, by what is wrong with them."""
    out = []
    for model, difference in LEAKS:
        leak, _, _ = planted(model, difference)
        fifty = planted(model, difference, batch=50)[0]
        out += [
            (
                "its first eight columns",
                model,
                replace(leak, value=leak.value[:, :8], columns=(0, 8), theta=None),
            ),
            ("no models and no batch", model, replace(leak, theta=None, batch=None)),
            ("a sum over five inner steps", model, replace(leak, inner=5)),
            ("fifty samples", model, fifty),
            ("only zeros", model, replace(leak, value=leak.value * 0)),
            ("as it is", model, leak),
        ]
    return out


def test_a_call_asks_first_whether_an_attack_refuses() -> None:
    """The author of an attack need not, as in docs/add-an-attack.md."""

    class Never(Attack):
        def refuses(self, leak: GradientLeak, task: Task) -> str | None:
            return "it uses none"

        def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
            raise AssertionError("it was called")

    with pytest.raises(AttackError, match="never cannot use this leak: it uses none"):
        Never()(planted("mlp", False)[0], task("mlp"), Generator())


@pytest.mark.parametrize("name", NAMES)
def test_what_an_attack_cannot_use_it_refuses_with_a_sentence(name: str) -> None:
    attack, refused = made(name), 0
    for what, model, leak in wrong_leaks():
        why = attack.refuses(leak, task(model))
        if why is None:
            if what in ("fifty samples", "as it is"):  # too slow here; runs in the tests above
                continue
            found = attack(leak, task(model), Generator().manual_seed(0))
            assert bool(found.x.isfinite().all()), what
            continue
        refused += 1
        assert 20 < len(why) < 300
        assert "\n" not in why
        with pytest.raises(AttackError, match="cannot use this leak") as caught:
            attack(leak, task(model), Generator().manual_seed(0))
        assert why in str(caught.value)
    assert refused >= 4
