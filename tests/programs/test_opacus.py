"""Opacus, tapped as it is: what a rank sends is recorded, and never called an exact gradient.

Every verdict is compared with what the program itself computed by autograd, record by record.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tapping import Run, leakaudit, tapped, torchrun

import leakaudit as la
from leakaudit.traces import framework_epsilon
from leakaudit.views.accounting.view_bound import ViewBound

pytest.importorskip("opacus", reason="is in the environment of `make programs`")
pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).resolve().parent / "private_training.py"
NOISE, NORM, STEPS, STEP = 1.0, 0.5, 4, 0.1  # as in the program
DELTA = 1e-5


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Tap the program with some options; each combination runs once."""
    done: dict[tuple[str, ...], Run] = {}

    def run_once(*options: str) -> Run:
        if options not in done:
            folder = tmp_path_factory.mktemp("opacus")
            done[options] = tapped(folder, *torchrun(PROGRAM, *options), operators=True)
        return done[options]

    return run_once


def rms(vector: torch.Tensor) -> float:
    return float(vector.double().square().mean().sqrt())


def test_the_sums_of_each_rank_are_recorded_and_only_those_of_rank_0_have_noise(
    run: Callable[..., Run],
) -> None:
    seen = run()
    assert seen.code == 0, seen.said
    for rank in (0, 1):
        sent = seen.sent(rank, "opacus")
        own = seen.kept(rank)["clipped"]
        assert len(sent) == len(own) == STEPS
        for value, exact in zip(sent, own, strict=True):
            if rank:
                assert float((value - exact).norm() / exact.norm()) < 1e-4
            else:
                # 6 standard deviations of the root of the mean square of 2,410 numbers
                assert rms(value - exact) == pytest.approx(NOISE * NORM, rel=6 / math.sqrt(4820))
    models = seen.kept(0)["models"]
    assert torch.equal(torch.stack(seen.sent(0, "model")), models)


def test_the_verdict_names_clipping_noise_and_the_rank_that_adds_it(
    run: Callable[..., Run],
) -> None:
    seen = run()
    assert "clipped gradients, those of rank 0 with noise (as Opacus states)" in seen.said
    assert "what rank 1 sends has none" in seen.said
    trace = seen.trace
    assert trace.protocol == "fedsgd"
    stated = {name: trace.params[name] for name in ("clip", "sigma", "noisy", "lr")}
    assert stated == {"clip": NORM, "sigma": NOISE * NORM, "noisy": "first", "lr": STEP}
    assert seen.description["model"]["args"] == {"hidden": "32", "act": "relu"}
    assert seen.description["model"]["levels"] == 255


def test_the_picture_of_the_rank_without_noise_comes_back_bit_for_bit(
    run: Callable[..., Run],
) -> None:
    seen = run()
    shown = seen.pictures()
    certificate, picture = shown[1]
    assert certificate == "EXACT"
    assert torch.equal(picture.float(), seen.kept(1)["x"][0])
    hidden, wrong = shown[0]
    assert hidden != "EXACT"
    assert not torch.equal(wrong.float(), seen.kept(0)["x"][0])


@pytest.mark.filterwarnings("ignore")  # of Opacus' accountants, about their own grids
def test_epsilon_beside_that_of_opacus(run: Callable[..., Run]) -> None:
    """The noise of rank 0 gives what Opacus states, up to what differs by definition.

    Opacus counts a record that is added or removed, which changes a sum by the clipping norm. Then
    leakaudit's epsilon, which is exact, is at most that of Renyi accounting, an upper bound; the
    PRV accountant is exact up to its stated error. leakaudit itself counts a record that is
    replaced by another: a sum may change by twice the norm, so that its epsilon is larger.
    """
    from opacus.accountants import PRVAccountant, RDPAccountant

    stated: dict[str, float] = {}
    for name, accountant in (("rdp", RDPAccountant()), ("prv", PRVAccountant())):
        for _ in range(STEPS):
            accountant.step(noise_multiplier=NOISE, sample_rate=1.0)
        stated[name] = accountant.get_epsilon(delta=DELTA)

    trace = run().trace
    added = _bounds(trace, sensitivity=NORM)
    replaced = _bounds(trace)
    assert added[0].epsilon is not None
    assert replaced[0].epsilon is not None
    assert added[0].epsilon <= stated["rdp"]
    assert added[0].epsilon == pytest.approx(stated["prv"], abs=0.02)  # its error is about .01
    assert replaced[0].epsilon > added[0].epsilon
    # Nothing hides what the other rank sends: Opacus' epsilon is that of the sum of all ranks.
    assert added[1].mu == math.inf
    assert replaced[1].mu == math.inf


def test_the_bound_states_the_epsilon_of_the_program_beside_its_own(
    run: Callable[..., Run],
) -> None:
    seen = run()
    (stated,) = framework_epsilon.of(seen.trace)
    assert stated.epsilon == pytest.approx(float(seen.kept(0)["epsilon"]), rel=1e-6)
    assert (stated.by, stated.delta, stated.steps) == ("Opacus", DELTA, STEPS)
    said = leakaudit(seen.folder, "bound", "trace.pt", "--sensitivity", str(NORM))
    assert f"Opacus states epsilon {stated.epsilon:.4g} at delta 1e-05 by " in said.stdout


@pytest.mark.filterwarnings("ignore")
def test_secret_sampling_is_credited_by_opacus_only() -> None:
    """With a sample rate below 1, Opacus' epsilon is smaller: leakaudit does not assume secrecy."""
    from opacus.accountants import PRVAccountant

    from leakaudit.theory.bounds import gaussian

    accountant = PRVAccountant()
    for _ in range(STEPS):
        accountant.step(noise_multiplier=NOISE, sample_rate=0.1)
    exact = gaussian.epsilon(DELTA, math.sqrt(STEPS) / NOISE)
    assert accountant.get_epsilon(delta=DELTA) < exact


def _bounds(trace: la.Trace, sensitivity: float | None = None) -> dict[int, ViewBound]:
    """Return node -> the bound of its record in the view of an eavesdropper on all channels."""
    views = la.bound(trace, [la.Adversary()], sensitivity=sensitivity, delta=DELTA)
    return {one.threat.node: one.bound for one in views}


def test_several_records_are_summed_and_the_constants_are_those_of_the_sum(
    run: Callable[..., Run],
) -> None:
    seen = run("--records", "4", "--poisson")
    for name, value in {"clip": NORM, "sigma": NOISE * NORM, "noisy": "first"}.items():
        assert seen.description["params"][name] == value
    assert seen.description["messages"]["scale"] == 4.0  # expected records per rank
    sent = [4 * value for value in seen.sent(1, "opacus")]
    for value, exact in zip(sent, seen.kept(1)["clipped"], strict=True):
        assert torch.allclose(value, exact, atol=1e-5)


def test_models_are_not_scaled_with_the_sums_of_a_batch(run: Callable[..., Run]) -> None:
    """Four of twelve shuffled records per rank and step: the trace agrees with its own protocol."""
    seen = run("--records", "4", "--own", "12", "--steps", "6")
    model = ("--model", "mlp", "--set", "hidden=32", "--shape", "1,8,8", "--classes", "10")
    leakaudit(seen.folder, "tap", "describe", "trace.tap", *model, "-o", "four.toml")
    words = ("tap", "merge", "trace.tap", "--describe", "four.toml", "-o", "four.pt")
    done = leakaudit(seen.folder, *words)
    assert "not as described" not in done.stderr
    trace = la.load(seen.folder / "four.pt")
    kept = seen.kept(0)
    assert torch.equal(trace.public["w0"], kept["models"][0])
    assert trace.params["lr"] == pytest.approx(STEP / 4)
    lint = leakaudit(seen.folder, "trace", "lint", "four.pt", check=False)
    assert "REFUTED" not in lint.stdout
    (quiet,) = [leak for leak in la.leaks(trace) if leak.node == 1]
    for value, exact in zip(quiet.value, seen.kept(1)["clipped"], strict=True):
        assert torch.allclose(value.float(), exact, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--wrap", "dpddp", "--clipping", "per_layer"), "clips every layer on its own"),
        (("--strange",), "but Opacus states 0.5"),
    ],
)
def test_what_fedsgd_does_not_describe_is_not_known(
    run: Callable[..., Run], options: tuple[str, ...], why: str
) -> None:
    seen = run(*options)
    assert seen.code == 3
    assert "protocol NOT KNOWN" in seen.said
    assert seen.description["protocol"] == "NOT KNOWN"
    assert why in (seen.folder / "trace.toml").read_text()


def test_a_description_without_the_noise_is_refused(run: Callable[..., Run]) -> None:
    seen = run()
    text = (seen.folder / "trace.toml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("sigma")]
    (seen.folder / "quiet.toml").write_text("\n".join(lines))
    words = ("tap", "merge", "trace.tap", "--describe", "quiet.toml", "-o", "quiet.pt")
    done = leakaudit(seen.folder, *words, check=False)
    assert done.returncode == 2
    assert "params.sigma: 0.0 contradicts Opacus, which states 0.5" in done.stderr
    assert not (seen.folder / "quiet.pt").exists()


def test_under_torch_ddp_the_gradient_travels_before_it_is_clipped(
    run: Callable[..., Run],
) -> None:
    """DistributedDataParallel averages the plain gradients, and Opacus adds up its own later."""
    seen = run("--wrap", "ddp", "--clipping", "per_layer")
    assert seen.code == 0, seen.said
    assert "in stream 'opacus 0' are not in the trace" in seen.said
    for rank in (0, 1):
        exact = seen.kept(rank)["plain"]
        assert torch.allclose(torch.stack(seen.sent(rank, "ddp")), exact, atol=1e-6)
        certificate, picture = seen.pictures()[rank]
        assert certificate == "EXACT"
        assert torch.equal(picture.float(), seen.kept(rank)["x"][0])


def test_models_of_ranks_that_train_with_opacus_are_not_called_by_a_protocol_without_noise(
    run: Callable[..., Run],
) -> None:
    seen = run("--wrap", "models")
    assert seen.code == 3
    assert seen.description["protocol"] == "NOT KNOWN"
    text = (seen.folder / "trace.toml").read_text()
    assert "ranks train with Opacus: their gradients are clipped and have noise" in text


def test_opacus_alone_sends_nothing_and_the_tap_says_so(tmp_path: Path) -> None:
    command = (sys.executable, str(PROGRAM), "--wrap", "alone")
    seen = tapped(tmp_path, *command, operators=True)
    assert seen.code == 2
    *_, line = [line for line in seen.said.splitlines() if line.startswith("leakaudit")]
    assert "no messages of the program were recorded: it sent none" in line
    assert not (tmp_path / "trace.pt").exists()
