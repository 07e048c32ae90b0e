"""The declarations of D-PSGD and its relatives on white-box runs in every mode; what is refused, and in which words."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError
from leakaudit.protocols import declared

RUNS: dict[str, Any] = runpy.run_path(str(Path(__file__).with_name("test_victims_consensus.py")))
train, models, declare = (RUNS[n] for n in ("train", "models", "declare"))
RING, CHORDS, OWN, DTYPES = (RUNS[n] for n in ("RING", "CHORDS", "OWN", "DTYPES"))

NOISY: dict[str, Any] = {"sigma": 0.1}
CHECKED: list[tuple[str, dict[str, Any]]] = [
    *(("gossip", c) for c in ({}, {"steps": 3, **NOISY})),
    *(
        ("muffliato", c)
        for c in ({}, {"accelerate": True, "gossips": 3}, {"sigma": 0.0, "clip": 0.0})
    ),
    *(
        ("dpsgd", {"order": o, **c})
        for o in ("combine", "adapt")
        for c in ({}, {"steps": 3, "slow": 0.1}, {**NOISY, "own": "plain"})
    ),
    ("dpsgd", NOISY | {"noise": "step", "steps": 2, "clip": 0.5, "batch": 7}),
    ("dpsgd", {"epsilon": 1.0, "noise": "step", "horizon": 6, "order": "adapt"}),
    *(("tracking", {"alpha": 0.02, **c}) for c in ({}, NOISY, {**NOISY, "noise": "message"})),
    *(("choco", {"compress": c}) for c in ("top", "random", "fixed", "quantize", "none")),
    *(
        (name, {"l1": l1, **noise, **start})
        for name in ("extra", "nids")
        for l1 in (0.0, 0.05)
        for noise in ({}, {**NOISY, "fade": 0.9}, {**NOISY, "noise": "message"})
        for start in ({}, {"spread": 0.3})
    ),
    ("nids", {"alphas": OWN}),
    *(("fedavg", c) for c in ({}, {"epochs": 2, "batch": 11, "decay": 0.01})),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize(("name", "constants"), CHECKED)
def test_the_declaration_describes_the_run(
    name: str, constants: dict[str, Any], dtype: torch.dtype
) -> None:
    run = train(name, 5, dtype=dtype, graph=CHORDS, **constants)
    found = declared.check(run.trace, run.truth_record)
    assert found.skipped == 0
    assert found.checked > 0
    assert (
        found.worst < (1e-12 if dtype == torch.float64 else 3e-4)
        or "quantize" in constants.values()
    )


def test_noise_is_not_redrawn_where_only_the_wires_differ() -> None:
    heard, deaf = (train("muffliato", 6, wires=wires, seed=3) for wires in (True, False))
    np.testing.assert_array_equal(models(heard), models(deaf))


@pytest.mark.parametrize(
    ("name", "constants", "words"),
    [
        ("dpsgd", {"alpha": 0.0}, "dpsgd: expected alpha > 0 and finite, got 0.0"),
        ("dpsgd", {"sigma": -1.0}, "dpsgd: expected sigma >= 0 and finite, got -1.0"),
        ("dpsgd", {"epsilon": 1.0, "noise": "step"}, "horizon"),
        ("dpsgd", {"epsilon": 1.0, "noise": "step", "horizon": 9, "delta": 1.0}, "0 < delta < 1"),
        ("gossip", {"steps": 0}, "gossip: expected steps > 0"),
        ("muffliato", {"delta": 1.0}, "muffliato: expected 0 < delta < 1, got 1.0"),
        ("muffliato", {"gossips": 0}, "muffliato: expected gossips > 0"),
        ("tracking", {"sigma": float("nan")}, "sigma: expected a finite number, got nan"),
        ("choco", {"share": 1.5}, "choco: expected share <= 1"),
        ("extra", {"fade": 1.5}, "extra: expected fade <= 1, got 1.5"),
        ("nids", {"l1": -0.1}, "nids: expected l1 >= 0"),
        ("fedavg", {"epochs": 0}, "fedavg: expected epochs > 0"),
    ],
)
def test_wrong_constants_are_refused(name: str, constants: dict[str, Any], words: str) -> None:
    with pytest.raises(LeakauditError, match=words):
        registry.configure(registry.get("victims", name), constants)


def test_what_a_declaration_lacks_is_said() -> None:
    with pytest.raises(
        LeakauditError,
        match="expected alphas to be 8 positive numbers separated by commas, got '1,2'",
    ):
        declare("nids", RING, 3, alphas="1,2")
    with pytest.raises(LeakauditError, match="set samples"):
        declare("dpsgd", RING, 3, epsilon=1.0, noise="step", horizon=3)
    with pytest.raises(LeakauditError, match="with batch=5 the number of steps"):
        declare("fedavg", RING, 3, batch=5)
