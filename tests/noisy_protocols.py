"""Protocols with noise and their settings, for tests that compare two ways of bounding views."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Generator

from leakaudit.core import registry
from leakaudit.protocols import topology
from leakaudit.protocols.declared import Protocol
from leakaudit.views.accounting.compare import Comparison

NOISY: dict[str, tuple[str, Mapping[str, Any]]] = {
    "dpsgd": ("dpsgd", {"sigma": 1.0}),
    "dpsgd, own model without noise": ("dpsgd", {"sigma": 1.0, "own": "plain"}),
    "dpsgd, adapt": ("dpsgd", {"sigma": 1.0, "order": "adapt", "steps": 2}),
    "dpsgd, adapt, plain": ("dpsgd", {"sigma": 1.0, "order": "adapt", "own": "plain"}),
    "dpsgd, noise of steps": ("dpsgd", {"sigma": 1.0, "noise": "step", "steps": 2}),
    "dpsgd, mini-batches": ("dpsgd", {"sigma": 1.0, "samples": 4, "batch": 2}),
    "dpsgd, momentum": ("dpsgd", {"sigma": 1.0, "momentum": 0.5}),
    "dpsgd, slower steps": ("dpsgd", {"sigma": 1.0, "slow": 0.5}),
    "dpnorm": ("dpnorm", {"sigma": 0.3, "records": 2}),
    "dpnorm, noise of steps": ("dpnorm", {"sigma": 0.3, "noise": "inner", "inner": 2}),
    "dpnorm, sent twice": ("dpnorm", {"sigma": 0.3, "inner": 2, "resend": True}),
    "dpnorm, random times": (
        "dpnorm",
        {"sigma": 0.3, "inner": 3, "noise": "inner", "order": "random"},
    ),
    "dpadmm": ("dpadmm", {"sigma": 0.3}),
    "mradmm": ("mradmm", {"rate": 1.0}),
    "recal": ("recal", {"sigma": 0.3}),
    "recal, noise on duals": ("recal", {"sigma": 0.3, "noise_on": "lam"}),
    "muffliato": ("muffliato", {"sigma": 0.3, "gossips": 2}),
    "dkm": ("dkm", {"mechanism": "gaussian", "sensitivity": 0.01}),
    "pvpadmm, primal": ("pvpadmm", {"perturb": "primal"}),
    "pvpadmm, dual": ("pvpadmm", {"perturb": "dual"}),
    "pdmm": ("pdmm", {}),
}
NUMBERS = ("mu", "attained", "linear", "reached", "epsilon", "node_mu", "node_epsilon")


def made(name: str, kind: str, nodes: int, rounds: int, seed: int) -> Protocol:
    key, constants = NOISY[name]
    victim = registry.configure(registry.get("victims", key), dict(constants))
    graph = topology.make(kind, nodes, Generator().manual_seed(seed))
    drawn = victim.schedule(graph, rounds, Generator().manual_seed(seed))
    return Protocol(victim, graph, rounds, {"w0": torch.zeros(1), **drawn})


def same(found: Comparison, expected: Comparison) -> None:
    ours, theirs = found.bound, expected.bound
    for field in fields(ours):
        a, b = getattr(ours, field.name), getattr(theirs, field.name)
        if field.name in NUMBERS and a is not None and b is not None:
            assert math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12), (found.threat, field.name, a, b)
        else:
            assert a == b, (found.threat, field.name, a, b)
    assert found.verdict is expected.verdict
    assert found.like == expected.like
