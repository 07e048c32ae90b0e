"""What a program states about its training, and whether the messages agree."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from tapping import leakaudit, tapped, torchrun

import leakaudit as la

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
SGD = {"lr": 0.1, "server": "sgd", "momentum": 0.9, "decay": 1e-4}
AGREES = "stated by the program, agrees with the messages to "


def states(folder: Path, way: str, protocol: str = "fedsgd") -> tuple[str, dict[str, Any]]:
    """Return the description that a tapped program gets, and its constants."""
    seen = tapped(folder, *torchrun(HERE / "stating.py", way))
    assert (folder / "trace.tap").is_dir(), seen.said
    text = leakaudit(folder, "tap", "describe", "trace.tap").stdout
    found = tomllib.loads(text)
    payload = "gradients" if protocol == "fedsgd" else "weights"
    assert (found["payload"], found["protocol"]) == (payload, protocol)
    return text, found["params"]


def described(folder: Path, text: str) -> None:
    """Write a description with the model that was trained, the only value that is not stated."""
    model = 'name = "mlp"\nargs = { hidden = 16 }'
    whole = text.replace('name = "NOT KNOWN"', model).replace("\nargs = {} ", "\n# ")
    (folder / "mine.toml").write_text(whole)


@pytest.mark.parametrize("way", ["plain", "evaluated", "raises", "compiled", "by hand", "frozen"])
def test_optimiser_and_batch_are_stated_and_the_optimiser_agrees(tmp_path: Path, way: str) -> None:
    text, params = states(tmp_path, way)
    assert params == {**SGD, "batch": 8}
    assert text.count(AGREES) == 1 + len(SGD)
    found = tomllib.loads(text)["model"]
    assert (found["shape"], found["classes"], found["loss"]) == ([1, 6, 6], 4, "cross_entropy")


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("groups", "groups of parameters have different constants"),
        ("betas", "no protocol has AdamW with betas0 0.8, betas1 0.9"),
        ("scheduled", "the step size changes"),
        ("clipped", "the mean gradient is clipped"),
        ("sharded", "the mean gradient is clipped"),  # norms travel between gradient and step
    ],
)
def test_an_optimiser_that_no_protocol_has_is_stated_and_agrees(
    tmp_path: Path, way: str, why: str
) -> None:
    text, params = states(tmp_path, way)
    assert params == {"server": "unknown", "batch": 8}
    assert f"{why} ({AGREES}" in text
    assert f": {AGREES}" in text


def test_a_statement_that_the_messages_contradict_is_reported_and_not_used(tmp_path: Path) -> None:
    text, params = states(tmp_path, "moved")
    assert params == {"batch": 8}
    assert "but the messages contradict it: a step misses by" in text
    assert AGREES not in text


def test_the_scale_of_a_loss_is_divided_out(tmp_path: Path) -> None:
    text, params = states(tmp_path, "scaled")
    assert params == {**SGD, "batch": 8}
    assert AGREES in text
    assert tomllib.loads(text)["messages"] == {"scale": 1 / 1024}


def test_gradients_of_a_scaled_loss_may_be_clipped_before_they_are_divided(tmp_path: Path) -> None:
    text, params = states(tmp_path, "clipped scaled")
    assert params == {"server": "unknown", "batch": 8}
    assert f"clipped to norm 0.3: {AGREES}" in text
    assert tomllib.loads(text)["messages"] == {"scale": 1 / 1024}


def test_a_step_that_the_scaler_skips_is_no_round(tmp_path: Path) -> None:
    text, params = states(tmp_path, "overflow")
    assert params == {**SGD, "batch": 8}
    assert AGREES in text
    assert tomllib.loads(text)["messages"] == {"scale": 1 / 1024}
    described(tmp_path, text)
    words = ("tap", "merge", "trace.tap", "-o", "mine.pt", "--describe", "mine.toml")
    assert (
        "1 step of the program had gradients that overflowed" in leakaudit(tmp_path, *words).stderr
    )
    trace = la.load(tmp_path / "mine.pt")
    assert trace.rounds == 3


@pytest.mark.parametrize(
    ("way", "batch", "said"),
    [
        ("accumulated", 16, "16 per gradient, by the first dimension of the model's input, in 2"),
        ("twice", None, "the model is called 2 times for 1 backward passes"),
        ("last", None, "3 to 8 records per gradient"),
    ],
)
def test_records_behind_a_gradient(tmp_path: Path, way: str, batch: int | None, said: str) -> None:
    text, params = states(tmp_path, way)
    assert params.get("batch") == batch
    assert said in text
    assert params["lr"] == 0.1


@pytest.mark.parametrize("way", ["local", "flat"])
def test_parameters_that_all_ranks_average_are_fedavg_with_its_local_steps(
    tmp_path: Path, way: str
) -> None:
    """The next model is that of the sum, which is no message of the program."""
    text, params = states(tmp_path, way, "fedavg")
    local = {"lr": 0.01, "optimiser": "adam", "steps": 2, "batch": 8, "keep": True}
    assert params == local
    assert tomllib.loads(text).get("messages") == ({"scale": 2.0} if way == "flat" else None)
    words = ("tap", "merge", "trace.tap", "-o", "mine.pt", "--describe", "mine.toml")
    described(tmp_path, text)
    assert "were not recorded" not in leakaudit(tmp_path, *words).stderr
    trace = la.load(tmp_path / "mine.pt")
    assert {**local, "server": "mean"}.items() <= trace.params.items()
    evidence = trace.provenance["evidence"]
    assert isinstance(evidence, dict)
    origins = {name: held[0] for name, held in evidence.items()}
    assert {origins[name] for name in local} == {"STATED"}
    assert origins["server"] == "VERIFIED"


def test_a_loss_with_other_arguments_is_not_called_a_loss_of_ours(tmp_path: Path) -> None:
    text, _ = states(tmp_path, "smoothed")
    assert tomllib.loads(text)["model"]["loss"] == "NOT KNOWN"
    assert "loss: cross_entropy, with other arguments than the usual ones" in text


def test_a_description_that_contradicts_statement_and_messages_is_rejected(tmp_path: Path) -> None:
    text, _ = states(tmp_path, "plain")
    words = ("tap", "merge", "trace.tap", "-o", "mine.pt", "--describe", "mine.toml")
    described(tmp_path, text.replace("lr = 0.1 ", "lr = 0.2 "))
    done = leakaudit(tmp_path, *words, check=False)
    assert done.returncode == 2
    assert "params.lr: 0.2 contradicts 0.1, which is stated by the program" in done.stderr
    described(tmp_path, text)
    assert leakaudit(tmp_path, *words).returncode == 0
