"""What every registered attack promises, as a table over the registry."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch

import leakaudit as la
from leakaudit import registry
from leakaudit.leak import GradientLeak, Leaks
from leakaudit.reconstruction import Attack, Certificate

ATTACKS = registry.names("attacks")
QUICK = {"dlg": {"steps": 3, "restarts": 1}, "idlg": {"steps": 3, "restarts": 1}, "inverting": {"steps": 8}}
QUICK |= {"differential": {"steps": 2, "restarts": 1, "adam_steps": 8}}
READS_DIFFERENCES = {"analytic", "differential"}


@pytest.fixture(scope="module")
def task() -> la.Task:
    spec = la.TaskSpec("mlp", {"hidden": 8}, shape=(1, 4, 4), classes=4, levels=255)
    return la.Task.build(spec, dtype=torch.float64)


def leak_for(name: str, task: la.Task, differences: bool | None = None) -> GradientLeak:
    """Gradients of one sample as autograd gives them, or their differences, whichever the attack reads."""
    g = torch.Generator().manual_seed(3)
    x, y = torch.randint(256, (1, 1, 4, 4), generator=g).double() / 255, torch.tensor([2])
    models = torch.stack([task.init(g) for _ in range(4)])
    gradients = torch.stack([task.gradient(w, x, y) for w in models])
    one = torch.eye(3, 4, dtype=torch.float64)
    differences = name in READS_DIFFERENCES if differences is None else differences
    combination = one - one.roll(1, dims=1) if differences else torch.eye(4, dtype=torch.float64)
    value = combination @ gradients
    return GradientLeak(
        0, torch.arange(4), combination, value, torch.zeros(len(value), dtype=torch.float64), (0, task.layout.size), theta=models, batch=1
    )


def attack(name: str) -> Attack:
    made: Attack = registry.configure(registry.get("attacks", name), QUICK.get(name, {}))
    return made


@pytest.mark.parametrize("name", ATTACKS)
def test_it_is_a_value_that_says_what_it_is(name: str) -> None:
    kind = registry.get("attacks", name)
    assert kind.paper
    assert kind.cost
    assert isinstance(kind.exact, bool)
    assert all(f.metadata["help"] for f in registry.parameters(kind).values())
    with pytest.raises(FrozenInstanceError):
        kind().paper = "another"


@pytest.mark.parametrize("name", ATTACKS)
def test_equal_generators_give_equal_inputs_and_global_state_stays(name: str, task: la.Task) -> None:
    before = torch.get_rng_state(), repr(np.random.get_state())  # noqa: NPY002
    first, second = (attack(name)(leak_for(name, task), task, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first.x, second.x)
    assert first.certificate is second.certificate
    assert torch.equal(torch.get_rng_state(), before[0])
    assert repr(np.random.get_state()) == before[1]  # noqa: NPY002


@pytest.mark.parametrize("name", ATTACKS)
def test_its_answer_has_the_shape_of_the_data(name: str, task: la.Task) -> None:
    found = attack(name)(leak_for(name, task), task, torch.Generator().manual_seed(0))
    assert found.attack == name
    assert found.node == 0
    assert found.x.shape == (1, 1, 4, 4)
    assert bool(((found.x >= 0) & (found.x <= 1)).all())
    assert found.y is not None
    assert found.y.tolist() == [2]
    assert found.certificate is not Certificate.EXACT or name == "analytic"


@pytest.mark.parametrize("name", ATTACKS)
def test_it_refuses_a_leak_that_it_cannot_read(name: str, task: la.Task) -> None:
    good = leak_for(name, task)
    assert attack(name).refuses(good, task) is None
    wrong = [replace(good, value=good.value[:, :3], columns=(0, 3))] if name == "analytic" else [replace(good, theta=None)]
    if name != "analytic":
        wrong.append(leak_for(name, task, differences=name not in READS_DIFFERENCES))
        wrong.append(replace(good, inner=3))
    for leak in wrong:
        why = attack(name).refuses(leak, task)
        assert why
        with pytest.raises(la.LeakauditError, match=name):
            attack(name)(leak, task, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ATTACKS)
def test_through_the_api_an_unfit_leak_names_the_node_and_the_reason(name: str, task: la.Task) -> None:
    leak = replace(
        leak_for(name, task), value=torch.zeros(1, 3), columns=(0, 3), combination=torch.eye(1, 4), std=torch.zeros(1), theta=None
    )
    leaks = Leaks(task.spec, (leak,))
    with pytest.raises(la.LeakauditError, match=f"node 0: attack {name} cannot use this leak"):
        la.attack(leaks, name, generator=torch.Generator().manual_seed(0))
