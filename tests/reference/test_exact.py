"""Exact recovery of batches: real images from recorded differential training, planted problems with closed forms, and no false claim."""

from __future__ import annotations

import gzip
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.core import registry
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.inversion.exact import duals_to_inputs, first_layer_rows
from leakaudit.inversion.exact.activation_patterns import Groups
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.labels import consistency
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.scoring.scoring import Score

D = torch.float64


def attacked(samples: int, name: str = "exact", **changes: Any) -> tuple[Reconstruction, Score]:
    """Node 0 of four faces-trainers in a ring, differential PDMM with k_max = 1."""
    settings = {"hidden": 128, "z0": 0.01, **changes.pop("set", {})}
    scenario = Scenario(
        **{
            "nodes": 4,
            "graph": "ring",
            "rounds": 20,
            "samples": samples,
            "set": settings,
            "wires": "node:0",
            **changes,
        }
    )
    recorder = recording.record(recording.plan(scenario), None)
    leaks = la.leaks(recorder.trace, nodes=[0])
    found = la.attack(leaks, name, generator=Generator().manual_seed(0))[0]
    return found, la.score(found, recorder.truth_record)[0]


def planted(
    b: int = 4, rounds: int = 12, units: int = 30, pixels: int = 40, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (units, rounds, p + 1) of ReLU neurons that ignore half of the samples each, these patterns (units, b), and inputs (b, p)."""
    g = Generator().manual_seed(seed)
    x = torch.randint(256, (b, pixels), generator=g).double() / 255
    active = torch.rand(units, b, generator=g) < 0.5
    delta = torch.randn(units, rounds, b, generator=g, dtype=D) * active[:, None]
    return delta @ torch.cat([x, torch.ones(b, 1, dtype=D)], dim=1), active, x


def grid(pixels: int) -> PixelGrid:
    return PixelGrid(255, torch.zeros(pixels, dtype=D), torch.ones(pixels, dtype=D))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("differential", [True, False])
@pytest.mark.parametrize("samples", [2, 8, pytest.param(16, marks=pytest.mark.slow)])
def test_every_face_of_a_batch_comes_back_bit_for_bit(
    samples: int, differential: bool, dtype: str
) -> None:
    found, score = attacked(samples, dtype=dtype, set={"differential": differential})
    assert found.certificate is Certificate.EXACT
    assert score.exact == (True,) * samples
    assert f"all {samples} different inputs" in found.note
    if not differential:
        assert score.label_correct == (True,) * samples


def test_auto_takes_it_for_batches_and_leaves_single_samples_to_the_analytic_attack() -> None:
    assert attacked(1, "auto")[0].attack == "analytic"
    assert attacked(4, "auto")[0].attack == "exact"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_data_without_a_grid_get_an_interval_that_holds_the_truth(dtype: str) -> None:
    """Gradients of a logistic model all but repeat from round to round: the mean of four samples looks like a batch of one."""
    shape: dict[str, Any] = {"victim": "fedsgd", "nodes": 3, "data": "gaussians", "dtype": dtype}
    for model, samples, rounds, exact in (
        ("logistic", 4, 2, False),
        ("logistic", 1, 5, True),
        ("mlp", 2, 10, True),
    ):
        scenario = Scenario(
            model=model,
            samples=samples,
            rounds=rounds,
            set={"hidden": 64} if model == "mlp" else {},
            **shape,
        )
        recorder = recording.record(recording.plan(scenario), None)
        leaks = la.leaks(recorder.trace)
        found = la.attack(leaks, "exact", generator=Generator().manual_seed(0))
        assert [f.certificate is Certificate.INTERVAL for f in found] == [exact] * 3
        for one in found:
            assert (one.interval is not None) == exact
            if one.interval is not None:
                apart = (one.x[:, None] - recorder.truth_record.of(one.node)[0][None]).abs()
                nearest = apart.flatten(2).amax(2).argmin(1)
                assert bool((apart[torch.arange(len(nearest)), nearest] <= one.interval).all())
        errors = [
            e
            for s in la.score(found, recorder.truth_record)
            for e in s.relative_error or ()
            if e is not None
        ]
        assert max(errors) < 1e-6 if exact else min(errors) > 0.01


def test_inner_steps_and_large_dual_starts() -> None:
    for settings in ({"k_max": 3}, {"z0": 1.0}, {"theta": 0.5}):
        found, score = attacked(4, set=settings)
        assert found.certificate is Certificate.EXACT, settings
        assert score.exact == (True,) * 4


def test_eight_images_from_one_gradient_each_neuron_seen_once() -> None:
    found, score = attacked(
        6, rounds=2, dtype="float64", set={"hidden": 256, "differential": False}
    )
    assert found.certificate is Certificate.EXACT
    assert score.exact == (True,) * 6


@pytest.mark.parametrize("cell", [1e-5, 1e-3, 1e-1])
def test_noise_is_never_called_exact_wrongly(cell: float) -> None:
    found, score = attacked(4, set={"quantize": cell})
    right = sum(bool(e) for e in score.exact or ())
    claimed = (
        4
        if found.certificate is Certificate.EXACT
        else int(found.note.split()[0])
        if "inputs exact" in found.note
        else 0
    )
    assert claimed <= right
    assert claimed >= 3 if cell == 1e-5 else claimed == 0


def test_the_same_image_twice_counts_once() -> None:
    rows, _, x = planted(b=4)
    stack = torch.cat([rows, rows]).permute(1, 0, 2)
    span = first_layer_rows.span(stack, 5, Generator().manual_seed(0))
    assert span is not None
    assert span.batch == 4
    assert torch.allclose(span.basis @ span.basis.T, torch.eye(4, dtype=D), atol=1e-12)
    full = torch.cat([x, torch.ones(4, 1, dtype=D)], dim=1)
    assert torch.allclose(full @ span.basis.T @ span.basis, full, atol=1e-10)


def test_duals_are_the_columns_of_the_inverse_and_their_zeros_the_planted_patterns() -> None:
    rows, active, x = planted(b=6, units=60)
    basis = torch.linalg.qr(torch.cat([x, torch.ones(6, 1, dtype=D)], dim=1).T).Q.T
    coordinates = rows @ basis.T
    groups = Groups.of(coordinates, torch.full((60,), 1e-12, dtype=D))
    duals = groups.search(150, Generator().manual_seed(0))
    inverse = torch.linalg.inv(torch.cat([x, torch.ones(6, 1, dtype=D)], dim=1) @ basis.T)
    truth = inverse / inverse.norm(dim=0)
    overlap = (torch.stack([d.vector for d in duals]) @ truth).abs()
    assert torch.allclose(overlap.amax(1), torch.ones(6, dtype=D), atol=1e-9)
    assert overlap.argmax(1).unique().numel() == 6
    some = active.any(1)  # the others hold nothing and are left out
    for dual, k in zip(duals, overlap.argmax(1).tolist(), strict=True):
        assert torch.equal(dual.zero, ~active[some, k])


def test_an_input_that_another_one_always_accompanies_is_freed_by_the_grid() -> None:
    """Sample 1 is active only where sample 0 is, so its rows show a mixture of both, known up to one number."""
    rows, active, x = planted(b=4, units=60, pixels=120)
    g = Generator().manual_seed(1)
    active[:, 1] &= active[:, 0]
    full = torch.cat([x, torch.ones(4, 1, dtype=D)], dim=1)
    rows = (torch.randn(60, 12, 4, generator=g, dtype=D) * active[:, None]) @ full
    basis = torch.linalg.qr(full.T).Q.T
    groups = Groups.of(rows @ basis.T, torch.full((60,), 1e-12, dtype=D))
    found = duals_to_inputs.recover(groups, basis, grid(120), x[:0], 150, g)
    assert len(found.certified) == 4
    assert float((found.certified[:, None] - x).abs().amax(2).amin(0).max()) == 0


def test_a_mixture_of_two_images_is_not_on_the_grid_even_where_both_are_black() -> None:
    g = Generator().manual_seed(0)
    x = torch.zeros(2, 1000, dtype=D)
    x[:, :60] = torch.randint(1, 255, (2, 60), generator=g).double() / 255
    wrong = (0.4 * x[0] + 0.6 * x[1])[None]
    assert grid(1000).holds(x).all()
    assert not grid(1000).holds(wrong).any()
    line = grid(1000).in_plane(wrong[0], x[:1])
    assert line is not None
    assert torch.allclose(line, x[1], atol=1e-12)


def test_random_numbers_are_never_on_the_grid() -> None:
    g = Generator().manual_seed(0)
    assert not grid(40).holds(torch.rand(100_000, 40, generator=g, dtype=D)).any()


def test_labels_of_a_known_batch_solve_linear_equations() -> None:
    task = la.Task.build(
        la.TaskSpec(
            "mlp", {"hidden": 32}, shape=(1, 8, 8), classes=10, mean=(0.5,), std=(0.5,), levels=255
        )
    )
    g = Generator().manual_seed(0)
    theta = torch.stack([task.init(g).double() for _ in range(3)])
    x, y = torch.rand(6, 1, 8, 8, generator=g, dtype=D), torch.randint(10, (6,), generator=g)
    value = torch.stack([task.gradient(w, x, y) for w in theta])
    rows = torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]], dtype=D)
    leak = GradientLeak(
        0,
        torch.arange(3),
        rows,
        rows @ value,
        torch.zeros(2),
        (0, task.layout.size),
        theta=theta,
        batch=6,
    )
    found = consistency.labels(leak, task, x)
    assert found is not None
    assert torch.equal(found, y)
    assert consistency.labels(leak, task, x.flip(0).roll(1, 3)) is None


def test_what_it_refuses() -> None:
    task = la.Task.build(la.TaskSpec("lenet", shape=(1, 28, 28), classes=10))
    value = torch.zeros(1, task.layout.size)
    leak = GradientLeak(
        0, torch.arange(1), torch.ones(1, 1), value, torch.zeros(1), (0, task.layout.size), batch=4
    )
    with pytest.raises(la.LeakauditError, match="not fully connected"):
        registry.get("attacks", "exact")()(leak, task, Generator().manual_seed(0))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_thirty_two_pieces_of_clothing_bit_for_bit(
    shared_data: Any, dtype: str, tmp_path: Any
) -> None:
    raw = shared_data("fashion_mnist")
    x = np.frombuffer(
        gzip.decompress((raw / "t10k-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16
    ).reshape(-1, 28, 28)
    y = np.frombuffer(
        gzip.decompress((raw / "t10k-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8
    ).astype(np.int64)
    np.savez(tmp_path / "fashion.npz", x=x, y=y)
    found, score = attacked(
        32, data=f"npz:{tmp_path / 'fashion.npz'}", rounds=39, dtype=dtype, set={"hidden": 256}
    )
    assert found.certificate is Certificate.EXACT
    assert score.exact == (True,) * 32


def test_certified_inputs_are_told_from_the_others() -> None:
    found = Reconstruction(
        0, "exact", torch.zeros(3, 2), None, Certificate.APPROXIMATE, 0.1, certified=1
    )
    assert found.certificates == (
        Certificate.EXACT,
        Certificate.APPROXIMATE,
        Certificate.APPROXIMATE,
    )
