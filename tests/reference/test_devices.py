"""Victims and attacks on a second device: everything that they make lies where their inputs lie, and the results are those of the CPU.

The device is pretended (tests/pretended.py): operators compute on the CPU, and mixing devices raises as it does with CUDA.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leakaudit.core import registry

ATTACKS = {
    "analytic": 1e-6,
    "labels": 0.0,
    "exact": 0.0,
    "idlg": 1e-3,
    "inverting": 1e-3,
    "cone": 0.0,
    "patches": 0.0,
    "tokens": 0.0,
    "sequences": 0.0,
    "completion": 0.0,
}  # name -> how far errors may be apart


def ran(project: Path, what: str, *names: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(project / "tests" / "pretended.py"), what, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_second_device_refuses_what_cuda_refuses(project: Path) -> None:
    program = """
import torch
import pretended
alive = pretended.register()
a, b = torch.ones(3, 4), torch.full((3, 4), 2.0, device="other")
assert b.device == torch.device("other", 0)
assert torch.equal((b * a.to(b)).cpu(), torch.full((3, 4), 2.0))
assert float(b.sum()) == 24.0
x = b.clone().requires_grad_()
(g,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
(h,) = torch.autograd.grad(g.sum(), x)
assert torch.equal(h.cpu(), torch.full((3, 4), 12.0))
for wrong in (lambda: a + b, lambda: torch.cat([a, b]), lambda: b @ a.mT, lambda: torch.where(b > 0, a, b), lambda: b.addcmul_(a, a)):
    try:
        wrong()
    except RuntimeError:
        continue
    raise SystemExit("it mixed devices")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=project / "tests",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_every_victim_sends_and_keeps_the_same_on_another_device(project: Path) -> None:
    found = {line["name"]: line for line in ran(project, "victims")}
    assert sorted(found) == registry.names("victims")
    assert all(line["tensors"] > 3 for line in found.values())
    assert max(line["difference"] for line in found.values()) < 1e-5


@pytest.mark.slow
def test_attacks_find_the_same_on_another_device(project: Path) -> None:
    found = {line["name"]: line for line in ran(project, "attacks", *ATTACKS)}
    for name, apart in ATTACKS.items():
        one, two = found[name]["certificates"]
        assert one == two
        mine, theirs = found[name]["errors"]
        assert (mine is None) == (theirs is None)
        assert mine is None or abs(mine - theirs) <= apart
    for name in ("exact", "cone", "patches", "sequences"):
        assert found[name]["certificates"] == ["EXACT", "EXACT"], name
        assert found[name]["errors"] == [0.0, 0.0], name
