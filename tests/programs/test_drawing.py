"""Twelve kinds of programs with shuffled records, one or four per step: the tap says no more, and
nothing else, than the program's own log of batches, models and gradients supports.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tapping import Run, leakaudit, tapped, torchrun

import leakaudit as la
from leakaudit.capture.tap.guessing.explanation import explain
from leakaudit.capture.tap.guessing.observed import collect
from leakaudit.capture.tap.log.reading import read_logs
from leakaudit.tasks.task import Task

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).resolve().parent / "drawing.py"
RANKS, LR = 3, 0.05
TASK = Task.build(la.TaskSpec("mlp", {"hidden": "32"}, shape=(1, 8, 8), classes=4))
NAMED = ("--model", "mlp", "--set", "hidden=32", "--shape", "1,8,8", "--classes", "4")
HOOKS = ("ddp", "fsdp2")
# What is sent -> the words that are true of it; batches of four show no gradient, which leaves open
# what a sum or a server receives.
PAYLOADS = {
    "ddp": ("gradients", "gradients"),
    "fsdp2": ("gradients", "gradients"),
    "reduce": ("NOT KNOWN", "NOT KNOWN"),
    "ring": ("weights", "weights"),
    "adapt": ("weights", "weights"),
    "tracking": ("NOT KNOWN", "NOT KNOWN"),
    "fedavg": ("weights", "weights"),
    "fedsgd": ("gradients", "NOT KNOWN"),
    "diloco": ("NOT KNOWN", "NOT KNOWN"),
    "ecl": ("duals", "duals"),
}
CASES = [(send, batch) for send in PAYLOADS for batch in (1, 4)]
RATES = {"ring": "alpha", "adapt": "alpha", "fedavg": "lr"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Tap the program with some options; each combination runs once."""
    done: dict[tuple[str, ...], Run] = {}

    def run_once(*options: str) -> Run:
        if options not in done:
            folder = tmp_path_factory.mktemp("drawing")
            done[options] = tapped(folder, *torchrun(PROGRAM, *options, ranks=RANKS))
        return done[options]

    return run_once


def used(seen: Run) -> dict[int, set[int]]:
    """Rank -> the records that it used, by its own log."""
    kept = {rank: seen.kept(rank) for rank in range(RANKS)}
    return {
        rank: set(one["used"].flatten().tolist()) for rank, one in kept.items() if "used" in one
    }


@pytest.mark.parametrize(("send", "batch"), CASES)
def test_what_is_said_is_what_the_program_did(
    run: Callable[..., Run], send: str, batch: int
) -> None:
    seen = run("--send", send, "--batch", str(batch))
    described = seen.description
    assert described["payload"] == PAYLOADS[send][batch > 1]
    params = described["params"]
    assert "samples" not in params  # nothing shows how many records a rank owns
    if params.get("batch", "NOT KNOWN") not in (0, "NOT KNOWN"):
        assert params["batch"] == batch
    rate = params.get(RATES.get(send, ""), "NOT KNOWN")
    assert rate in ("NOT KNOWN", pytest.approx(LR))
    assert (batch > 1) <= (seen.code == 3), seen.said


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("send", ["ddp", "fsdp2", "ring", "adapt", "fedavg", "fedsgd"])
def test_the_records_that_are_counted_are_at_most_those_that_were_used(
    run: Callable[..., Run], send: str, batch: int
) -> None:
    seen = run("--send", send, "--batch", str(batch))
    shown = explain(collect(read_logs(seen.folder / "trace.tap"), TASK), TASK).model.records
    most = max(map(len, used(seen).values()))
    if shown is None:  # nothing is said
        assert batch > 1
        return
    assert shown.most <= batch
    assert batch < shown.together <= most
    assert not shown.repeats


@pytest.mark.parametrize("send", ["ddp", "fsdp2", "ring", "adapt", "fedavg", "fedsgd"])
def test_a_new_record_in_each_step_is_stated_and_what_is_exact_was_used(
    run: Callable[..., Run], send: str
) -> None:
    seen = run("--send", send, "--batch", "1")
    assert seen.code == 0, seen.said
    evidence = seen.trace.provenance["evidence"]
    assert isinstance(evidence, dict)
    assert evidence["samples"] == ["UNKNOWN", evidence["samples"][1]]
    assert "different inputs: later steps use new ones" in str(evidence["samples"])
    assert "later steps use new ones" in seen.said
    ranks = sorted(used(seen))
    found = la.attack(la.leaks(seen.trace), generator=torch.Generator().manual_seed(0))
    exact = 0
    for one in found:
        kept = seen.kept(ranks[one.node])
        pictures = kept["x"][kept["used"].flatten().unique()]
        for x in one.x[: one.certified]:
            assert any(torch.equal(x.float(), own) for own in pictures)
        exact += len(one.x) if one.certificate.name == "EXACT" else one.certified
    assert exact


@pytest.mark.parametrize("send", HOOKS)
@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
def test_batches_of_four_name_the_optimiser_and_no_number_of_records(
    run: Callable[..., Run], send: str, optimiser: str
) -> None:
    lr = {"adam": "0.001"}.get(optimiser, str(LR))
    options = ("--optimiser", optimiser, "--lr", lr)
    seen = run("--send", send, "--batch", "4", *options)
    leakaudit(seen.folder, "tap", "describe", "trace.tap", *NAMED, "-o", "four.toml")
    words = ("tap", "merge", "trace.tap", "--describe", "four.toml", "-o", "four.pt")
    done = leakaudit(seen.folder, *words)
    assert "not as described" not in done.stderr
    trace = la.load(seen.folder / "four.pt")
    assert trace.params["lr"] == pytest.approx(float(lr))
    assert trace.params["momentum"] == (0.9 if optimiser == "momentum" else 0)
    assert trace.params["server"] == ("adam" if optimiser == "adam" else "sgd")
    assert {"samples", "batch"}.isdisjoint(trace.params)
    evidence = trace.provenance["evidence"]
    assert isinstance(evidence, dict)
    assert [evidence[name][0] for name in ("payload", "lr", "batch")] == [
        "STATED",
        "VERIFIED",
        "UNKNOWN",
    ]


def test_one_record_that_is_reused_is_called_one(run: Callable[..., Run]) -> None:
    seen = run("--send", "ring", "--batch", "1", "--own", "1")
    assert seen.description["params"]["samples"] == 1
    assert "the same one" in seen.said


def test_models_that_diverge_are_not_named_gradients(run: Callable[..., Run]) -> None:
    seen = run("--send", "ring", "--batch", "4", "--lr", "1.5")
    assert seen.description["payload"] == "NOT KNOWN"


@pytest.mark.parametrize("send", ["ddp", "fedsgd", "ring", "fedavg", "ecl"])
def test_smoothed_labels_are_no_plain_loss(run: Callable[..., Run], send: str) -> None:
    """Gradients name the loss; from steps and duals, the constants are not known either."""
    seen = run("--send", send, "--batch", "1", "--smoothing", "0.1")
    assert seen.code == 3, seen.said
    assert not (seen.folder / "trace.pt").exists()
    leakaudit(seen.folder, "tap", "describe", "trace.tap", *NAMED, "-o", "named.toml")
    text = (seen.folder / "named.toml").read_text()
    assert "step are correct" not in text
    if send in ("ddp", "fedsgd"):
        assert "label smoothing of 0.1" in text
        assert 'loss = "NOT KNOWN"' in text
    elif send == "ecl":
        assert 'rho = "NOT KNOWN"' in text
    else:
        assert f'{RATES[send]} = "NOT KNOWN"' in text
