"""No false alarm: on what every victim records, the lint says what is true of its paper and constants, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from leakaudit.core import registry
from leakaudit.judging.lint.checks import lint
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario

FITS: dict[str, dict[str, Any]] = {
    "secagg": {"graph": "complete"},
    "secured": {"graph": "complete", "nodes": 9},
}
NOISE: dict[str, Any] = {"sigma": 0.1}
# what is wrong by the paper's own constants, and what the truth adds: gradients beyond the norm that a claim assumes
RUNS: list[tuple[str, dict[str, Any], set[int], set[int]]] = [
    *((name, {}, set(), {5} if name == "dpnorm" else set()) for name in registry.names("victims")),
    ("dpsgd", NOISE, set(), set()),
    ("dpsgd", {**NOISE, "clip": 1.0}, set(), set()),
    ("dpsgd", {**NOISE, "noise": "step", "steps": 2, "clip": 0.5, "batch": 4}, set(), set()),
    ("dpsgd", {**NOISE, "own": "plain", "slow": 0.1}, set(), set()),
    ("dpsgd", {"epsilon": 1.0, "noise": "step", "horizon": 8, "order": "adapt"}, {2}, {5}),
    ("gossip", {**NOISE, "steps": 2}, set(), set()),
    ("muffliato", {"gossips": 2, "accelerate": True}, set(), set()),
    ("dpnorm", {"epsilon": 1.0}, set(), {5}),
    ("dpnorm", {"inner": 4, "noise": "inner", "resend": True}, set(), {5}),
    ("dpnorm", {"inner": 4, "order": "random"}, {6}, {5}),
    ("dpnorm", {"inner": 4, "noise": "inner", "order": "random"}, set(), {5}),
    ("pdmm", {"active": 2}, set(), set()),
    ("recal", {"sigma": 0.3, "decay": 0.97}, set(), set()),
    ("recal", {"sigma": 0.3, "noise_on": "lam"}, {6}, set()),
    ("dkm", {"mechanism": "laplace"}, set(), set()),
    ("dkm", {"mechanism": "gaussian", "fade": 4.0}, set(), set()),
    ("dkm", {"mechanism": "truncated_laplace"}, {10}, set()),
    ("dkm", {"mechanism": "truncated_gaussian"}, {10}, set()),
    ("dpadmm", {"epsilon": 2.0, "horizon": 8}, set(), {5}),
    ("dpadmm", {"sigma": 0.3}, {20}, {5}),
    ("dpadmmserver", {"epsilon": 0.5}, set(), {5}),
    ("dpadmmserver", {"epsilon": 2.0}, {18}, {5}),
    ("mradmm", {"rate": 5.0}, set(), {5}),
    ("pvpadmm", {"perturb": "dual"}, set(), {5}),
    ("pvpadmm", {"perturb": "primal"}, set(), {5}),
    ("rwadmm", NOISE, set(), set()),
    ("tracking", NOISE, set(), set()),
    ("tracking", {**NOISE, "noise": "message"}, set(), set()),
    ("extra", {**NOISE, "fade": 0.9, "spread": 0.3}, set(), set()),
    ("extra", {**NOISE, "noise": "message", "l1": 0.05}, set(), set()),
    ("nids", {**NOISE, "fade": 0.9}, set(), set()),
]
NOTES = {
    1,
    3,
    4,
    6,
    14,
    19,
}  # of what nobody promises: rounds, nodes, listeners, noise-free parts, a large delta, the truth's seed


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "settings", "wrong", "seen"),
    RUNS,
    ids=[f"{n}-{','.join(map(str, s))}" for n, s, _, _ in RUNS],
)
def test_a_clean_run_is_silent_but_for_what_is_true(
    name: str, settings: dict[str, Any], wrong: set[int], seen: set[int], dtype: str
) -> None:
    values = {
        "nodes": 4,
        "graph": "ring",
        "rounds": 8,
        "samples": 6,
        "data": "gaussians",
        "model": "logistic",
    }
    seed = 1_000_003 * (1 + len(settings)) + (dtype == "float64")
    made = Scenario(
        **{
            "victim": name,
            "set": settings,
            "states": True,
            "dtype": dtype,
            "seed": seed,
            **values,
            **FITS.get(name, {}),
        }
    )
    recorder = recording.record(recording.plan(made), None)
    for truth, expected in ((None, wrong), (recorder.truth_record, wrong | seen)):
        found = lint(recorder.trace, truth)
        assert {p.number for p in found if p.bad} == expected
        assert {p.number for p in found if not p.bad} <= NOTES
        assert [p.bad for p in found] == sorted((p.bad for p in found), reverse=True)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dpsgd", NOISE),
        ("dpnorm", {"sigma": 0.5}),
        ("muffliato", {}),
        ("extra", NOISE),
        ("dkm", {"mechanism": "laplace"}),
        ("fedsgd", {}),
    ],
)
def test_a_network_is_silent_too(name: str, settings: dict[str, Any]) -> None:
    """Thousands of coordinates, where the tests of noise have power."""
    values: dict[str, Any] = {
        "nodes": 5,
        "graph": "complete",
        "rounds": 6,
        "samples": 3,
        "data": "faces",
        "model": "mlp",
        "seed": 1_000_003,
    }
    recorder = recording.record(
        recording.plan(Scenario(victim=name, set={**settings, "hidden": 8}, states=True, **values)),
        None,
    )
    for truth in (None, recorder.truth_record):
        assert {p.number for p in lint(recorder.trace, truth) if p.bad} <= (
            {5} if truth and name == "dpnorm" else set()
        )
