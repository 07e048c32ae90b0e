"""What a run takes from its data, and what its curves say of held-out records, by other means."""

from __future__ import annotations

import gzip
import io
import itertools
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import Truth
from leakaudit.protocols import recording, training_curves
from leakaudit.protocols.scenario import Scenario
from leakaudit.scoring.scoring import score
from leakaudit.tasks import _torchvision, data, idx, selected_data
from leakaudit.tasks.selection import Selection

Shared = Callable[[str], Path]


def load(name: str, seed: int = 0, root: Path | None = None, **others: object) -> data.Dataset:
    generator = Generator().manual_seed(seed)
    chosen = Selection(name, **others)  # type: ignore[arg-type]
    return selected_data.load(chosen, root, generator=generator)


# --- classes, rows and labels ---------------------------------------------------------------------


def test_classes_are_kept_and_renumbered_in_the_order_in_which_they_stand() -> None:
    every = load("photos")
    some = load("photos", classes="4,1")
    of_four, of_one = every.x[every.y == 4], every.x[every.y == 1]
    assert torch.equal(some.x[some.y == 0], of_four)
    assert torch.equal(some.x[some.y == 1], of_one)
    assert len(some) == len(of_four) + len(of_one)
    assert (some.classes, some.labels) == (2, ("hubble_deep_field", "coffee"))
    named = load("photos", classes="hubble_deep_field, coffee")
    assert torch.equal(named.x, some.x)
    assert torch.equal(named.y, some.y)
    assert load("gaussians", classes="1,0").labels == ("1", "0")


@pytest.mark.parametrize(
    ("name", "others", "says"),
    [
        ("photos", {"classes": "0,6"}, "has the classes 0 to 5, got '6'"),
        ("photos", {"classes": "cofee,1"}, "got 'cofee'; did you mean 'coffee'"),
        ("photos", {"classes": "1,coffee"}, "expected each class once"),
        ("regression", {"classes": "0,1"}, "the records of regression have no classes"),
        ("text", {"rows": "unit"}, "the records of text are tokens"),
        ("text", {"labels": "one-hot"}, "have no classes"),
        ("photos", {"labels": "signs"}, "expected two classes, but photos has 6; choose two"),
        ("regression", {"labels": "signs"}, "have no classes"),
    ],
)
def test_what_a_data_set_cannot_give_is_refused(
    name: str, others: dict[str, Any], says: str
) -> None:
    with pytest.raises(LeakauditError, match=says):
        selected_data.load(Selection(name, **others), generator=Generator().manual_seed(0))


def test_rows_of_unit_norm_are_what_the_model_receives() -> None:
    raw, unit = load("faces"), load("faces", rows="unit")
    flat = raw.x.double().flatten(1)
    want = flat / flat.norm(dim=1, keepdim=True)
    torch.testing.assert_close(unit.x.double().flatten(1), want, rtol=1e-6, atol=1e-8)
    assert (unit.mean, unit.std, unit.levels) == ((0.0,), (1.0,), 0)
    assert not data.Dataset(torch.zeros(2, 3), raw.y[:2], "", 2, 0, (), (0.0,), (1.0,)).x.any()
    plan = recording.plan(Scenario("dpsgd", nodes=3, graph="ring", rows="unit"))
    x = unit.x[:2].double()
    assert torch.equal(plan.task.normalise(x), x)


def test_dark_images_have_the_scores_of_bright_ones() -> None:
    """Scaling all images scales the data range with them, so that PSNR and SSIM are the same."""
    plan = recording.plan(Scenario("dpsgd", nodes=3, graph="ring", samples=4, rows="unit"))
    truth = recording.record(plan, None).truth_record
    width = float(load("faces", rows="unit").x.max())
    assert truth.data_range == plan.data_range == width < 0.2
    noise = 0.01 * torch.randn(4, 1, 25, 25, generator=Generator().manual_seed(0))
    x, y = truth.of(0)
    guess = Reconstruction(0, "test", x + noise, y, Certificate.FAILED, 0.0)
    (dark,) = score(guess, truth)
    bright = replace(truth, x=truth.x / width, pool=truth.pool / width, provenance={})
    (again,) = score(replace(guess, x=guess.x / width), bright)
    assert dark.psnr is not None
    assert dark.ssim is not None
    assert dark.psnr == pytest.approx(again.psnr, abs=1e-3)
    assert dark.ssim == pytest.approx(again.ssim, abs=1e-4)
    assert dark.blind_psnr == pytest.approx(again.blind_psnr, abs=1e-3)


def test_a_record_of_zeros_stays_one(tmp_path: Path) -> None:
    x = np.array([[0.0, 0.0], [3.0, 4.0]])
    np.savez(tmp_path / "a.npz", x=x, y=np.array([0, 1]))
    found = load(f"npz:{tmp_path / 'a.npz'}", rows="unit")
    assert found.x.tolist() == [[0.0, 0.0], [pytest.approx(0.6), pytest.approx(0.8)]]


def test_the_range_of_a_feature_is_zero_to_one(tmp_path: Path) -> None:
    x = np.array([[0.0, 5.0, -2.0], [3.0, 5.0, 0.0], [1.5, 5.0, 2.0]])
    np.savez(
        tmp_path / "a.npz", x=x, y=np.arange(3), x_test=np.array([[6.0, 5.0, 1.0]]), y_test=[2]
    )
    found = load(f"npz:{tmp_path / 'a.npz'}", rows="range", held=True)
    assert found.x.tolist() == [[0.0, 0.0, 0.0], [1.0, 0.0, 0.5], [0.5, 0.0, 1.0]]
    assert found.held is not None
    assert found.held[0].tolist() == [[2.0, 0.0, 0.75]]  # in the training set's units


def test_targets_stand_for_classes() -> None:
    plain = load("photos", classes="1,3")
    signs = load("photos", classes="1,3", labels="signs")
    assert torch.equal(signs.y, 2.0 * plain.y - 1)
    assert signs.labels == ("coffee", "rocket")
    hot = load("photos", labels="one-hot")
    assert torch.equal(hot.y, torch.eye(6)[load("photos").y])
    spec = hot.spec("linear")
    assert (spec.loss, spec.classes) == ("squared", 6)
    rows = data.split(hot, 4, 6, "classes:2", Generator().manual_seed(0))
    assert {len(load("photos").y[own].unique()) for own in rows} == {2}


def test_signs_of_logistic_regression_are_its_classes() -> None:
    """log(1 + exp(-s z)) with s = -1, +1 is the binary cross-entropy of 0, 1."""
    base = Scenario("dpsgd", nodes=3, graph="ring", data="gaussians", model="logistic")
    plain = recording.plan(base)
    signs = recording.plan(Scenario(**{**vars(base), "labels": "signs"}))
    assert signs.task.spec == plain.task.spec
    x, y = plain.source.x[:50].double(), plain.source.y[:50]
    theta = torch.tensor([0.3, -1.2, 0.7], dtype=torch.float64)
    out = x @ theta[:2] + theta[2]
    want = torch.log1p(torch.exp(-(2.0 * y - 1) * out)).mean()
    torch.testing.assert_close(signs.task.loss(theta, x, y), want)


# --- drawn data -----------------------------------------------------------------------------------


def test_the_targets_of_a_regression_are_its_planted_weights() -> None:
    found = load("regression:4000,7")
    assert found.planted is not None
    torch.testing.assert_close(found.x @ found.planted, found.y)
    assert float((found.x.double().T.cov() - torch.eye(7)).abs().max()) < 0.1
    noisy = load("regression:4000,7,0.5")
    assert noisy.planted is not None
    assert float((noisy.y - noisy.x @ noisy.planted).std()) == pytest.approx(0.5, rel=0.05)
    assert load("regression").x.shape == (1000, 10)
    assert not torch.equal(load("regression", seed=1).x, load("regression").x)


def test_classes_are_drawn_from_the_logistic_model() -> None:
    found = load("classification:40000,2")
    assert found.planted is not None
    chance = (found.x @ found.planted).sigmoid()
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        inside = (chance >= low) & (chance < low + 0.2)
        share = float(found.y[inside].double().mean())
        assert share == pytest.approx(float(chance[inside].mean()), abs=0.03)


@pytest.mark.parametrize("name", ["regression:1,3", "regression:10,0", "classification:99999999,9"])
def test_sizes_that_are_refused(name: str) -> None:
    with pytest.raises(LeakauditError, match="expected N >= 2 records of P >= 1 features"):
        load(name)
    with pytest.raises(LeakauditError, match="unknown data set"):
        load("regression:10")


# --- published files ------------------------------------------------------------------------------


def _idx(path: Path, array: np.ndarray) -> None:
    head = np.array([0x0800 + array.ndim, *array.shape], ">i4").tobytes()
    body = head + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(body) if path.suffix == ".gz" else body)


@pytest.mark.parametrize("folder", [".", "MNIST/raw", "mnist", "MNIST"])
@pytest.mark.parametrize("form", ["{}-images-idx3-ubyte.gz", "{}-images.idx3-ubyte"])
def test_idx_files_are_read_as_downloaded(tmp_path: Path, folder: str, form: str) -> None:
    rng = np.random.default_rng(0)
    parts = {}
    for part, count in (("train", 5), ("t10k", 3)):
        x, y = rng.integers(0, 256, (count, 28, 28)), np.arange(count)
        parts[part] = x, y
        name = form.format(part)
        _idx(tmp_path / folder / name, x)
        _idx(tmp_path / folder / name.replace("images", "labels").replace("idx3", "idx1"), y)
    found = load("mnist", root=tmp_path, held=True)
    assert np.array_equal((found.x[:, 0] * 255).round().numpy(), parts["train"][0])
    assert found.y.tolist() == [0, 1, 2, 3, 4]
    assert found.held is not None
    assert np.array_equal((found.held[0][:, 0] * 255).round().numpy(), parts["t10k"][0])
    assert found.held[1].tolist() == [0, 1, 2]
    assert found.labels[7] == "7 - seven"


def test_fashion_is_read_as_downloaded(shared_data: Shared) -> None:
    folder = shared_data("fashion_mnist")
    found = load("fashion", root=folder.parent, held=True, classes="T-shirt/top,1")
    assert len(found) == 12_000  # Fashion-MNIST has 6000 and 1000 records of each class
    assert found.held is not None
    assert found.held[1].bincount().tolist() == [1000, 1000]
    with pytest.raises(LeakauditError, match="are those of Fashion-MNIST; use --data fashion"):
        load("mnist", root=folder)


def test_the_names_of_classes_are_those_of_torchvision() -> None:
    sets = _torchvision.torchvision().datasets
    assert idx.LABELS["mnist"] == tuple(sets.MNIST.classes)
    assert idx.LABELS["fashion"] == tuple(sets.FashionMNIST.classes)


def _damaged(tmp_path: Path, images: bytes, labels: bytes) -> Path:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(images)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(labels)
    return tmp_path


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (b"", "expected an idx file of bytes with 3 axes"),
        (bytes([0, 0, 8, 3, 0, 0]), "expected an idx file of bytes with 3 axes"),
        (bytes([0, 0, 13, 3]) + bytes(12), "expected an idx file of bytes with 3 axes"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, "declares 79228162458924105385300197375 bytes"),
        (bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2]) + b"123", "expected 4 bytes"),
        (bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2]) + b"12345", "expected 4 bytes"),
        (bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2]) + b"1234", "has 1 images, but"),
    ],
)
def test_idx_files_that_are_refused(tmp_path: Path, images: bytes, says: str) -> None:
    labels = bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 5])
    with pytest.raises(LeakauditError, match=says):
        load("mnist", root=_damaged(tmp_path, images, labels))


def test_a_packed_file_that_breaks_off_is_refused(tmp_path: Path) -> None:
    _idx(tmp_path / "train-images-idx3-ubyte.gz", np.zeros((9, 28, 28)))
    _idx(tmp_path / "train-labels-idx1-ubyte.gz", np.zeros(9))
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(LeakauditError, match="cannot be read"):
        load("mnist", root=tmp_path)


def test_cifar10_is_read_from_its_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    cifar = _torchvision.torchvision().datasets.cifar
    monkeypatch.setattr(cifar, "check_integrity", lambda *_: True)  # it has other checksums
    rng = np.random.default_rng(0)
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    batches = {name: rng.integers(0, 256, (2, 3072), dtype=np.uint8) for name in names}
    contents = {
        name: pickle.dumps({"data": batch, "labels": [k % 5, 4]})
        for k, (name, batch) in enumerate(batches.items())
    }
    contents["batches.meta"] = pickle.dumps({"label_names": [f"c{k}" for k in range(10)]})
    folder = tmp_path / "cifar10"
    folder.mkdir()
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        outside = tarfile.TarInfo("../outside")
        archive.addfile(outside, io.BytesIO(b""))
    found = load("cifar10", root=tmp_path, held=True)
    want = np.concatenate([batches[name] for name in names[:5]]).reshape(10, 3, 32, 32)
    assert np.array_equal((found.x * 255).round().numpy(), want)
    assert found.y.tolist() == [0, 4, 1, 4, 2, 4, 3, 4, 4, 4]
    assert found.held is not None
    assert found.held[1].tolist() == [0, 4]
    assert not (tmp_path.parent / "outside").exists()
    assert sorted(path.name for path in folder.iterdir()) == ["cifar-10-python.tar.gz"]
    (folder / "cifar-10-python.tar.gz").write_bytes(b"broken")
    with pytest.raises(LeakauditError, match="cannot be read"):
        load("cifar10", root=tmp_path)


def test_the_test_set_of_an_npz_file_has_the_classes_of_its_training_set(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    x = np.random.default_rng(0).integers(0, 256, (4, 3, 3), dtype=np.uint8)
    labels = np.array(["b", "d", "a", "b"])
    np.savez(path, x_train=x, y_train=labels, x_test=x[:2], y_test=np.array(["d", "a"]))
    found = load(f"npz:{path}", held=True)
    assert found.y.tolist() == [1, 2, 0, 1]
    assert found.held is not None
    assert found.held[1].tolist() == [2, 0]
    assert torch.equal(found.held[0], found.x[:2])
    np.savez(path, x=x, y=labels, x_test=x[:2], y_test=np.array(["c", "a"]))
    assert load(f"npz:{path}").held is None
    with pytest.raises(LeakauditError, match="y_test has classes that y lacks"):
        load(f"npz:{path}", held=True)


def _owned(tmp_path: Path, owner: object) -> str:
    x = np.arange(60.0)[:, None]
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(60) % 3, owner=owner)  # type: ignore[arg-type]
    return f"npz:{tmp_path / 'a.npz'}"


def test_nodes_hold_the_records_of_equally_many_owners(tmp_path: Path) -> None:
    owner = np.array([f"writer {k % 7}" for k in range(60)])  # of 9 or 8 records each
    for classes in ("all", "0,2", ""):
        found = load(_owned(tmp_path, owner), classes=classes)
        rows = data.split(found, 3, 8, "owners", Generator().manual_seed(0))
        assert len(rows.unique()) == 24
        whose = [set(owner[found.x[own, 0].long().numpy()]) for own in rows]
        assert [len(names) for names in whose] == [2, 2, 2]
        assert len(set.union(*whose)) == 6
    again = data.split(found, 3, 8, "owners", Generator().manual_seed(0))
    assert torch.equal(again, rows)


def test_owners_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LeakauditError, match="faces does not say who owns a record"):
        recording.plan(Scenario("dpsgd", nodes=3, graph="ring", split="owners"))
    found = load(_owned(tmp_path, np.arange(60) % 7))
    with pytest.raises(LeakauditError, match=r"the 2 owners of node 0 have 1\d records together"):
        data.split(found, 3, 20, "owners", Generator().manual_seed(0))
    with pytest.raises(LeakauditError, match=r"expected owner \(60,\) of whole numbers or text"):
        load(_owned(tmp_path, np.zeros(60)))
    with pytest.raises(LeakauditError, match=r"got int64 \(59,\)"):
        load(_owned(tmp_path, np.arange(59)))


# --- held-out records -----------------------------------------------------------------------------


def _recorded(**changes: object) -> tuple[recording.Plan, Truth]:
    base: dict[str, object] = {
        "victim": "dpsgd",
        "nodes": 4,
        "graph": "ring",
        "rounds": 7,
        "data": "gaussians:300",
        "samples": 10,
        "model": "logistic",
        "dtype": "float64",
        "states": True,
        "curves": True,
        "test": 90,
    }
    plan = recording.plan(Scenario(**{**base, **changes}))  # type: ignore[arg-type]
    return plan, recording.record(plan, None).truth_record


def test_held_out_records_belong_to_nobody() -> None:
    plan, truth = _recorded()
    rows = plan.tested.tolist()
    assert len(set(rows)) == 90
    assert not set(rows) & set(plan.rows.flatten().tolist())
    x = plan.source.x[plan.tested]
    for others in (truth.pool, truth.x):
        assert float(torch.cdist(x, others).min()) > 0
    assert len(truth.pool) == 300 - 40 - 90
    again, _ = _recorded(test=0)
    assert torch.equal(again.rows, plan.rows)  # the nodes hold what they held without a test set
    other, _ = _recorded(seed=1)
    assert other.tested.tolist() != rows


def test_the_test_set_of_the_data_set_is_used(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 2)), rng.integers(0, 2, 60)
    held_x, held_y = rng.normal(size=(30, 2)) + 50, rng.integers(0, 2, 30)
    np.savez(tmp_path / "a.npz", x=x, y=y, x_test=held_x, y_test=held_y)
    plan, truth = _recorded(data=f"npz:{tmp_path / 'a.npz'}", test=30)
    assert sorted(plan.tested.tolist()) == list(range(30))
    assert len(truth.pool) == 20
    w = truth.states["w"][7]
    right = (held_x @ w[:, :2].T.numpy() + w[:, 2].numpy() > 0) == (held_y[:, None] > 0)
    run = training_curves.kept(truth, "run")
    assert float(run["test_accuracy"][7]) == pytest.approx(right.mean(), abs=1e-12)
    with pytest.raises(LeakauditError, match="at most the 30 records that the test set of npz"):
        _recorded(data=f"npz:{tmp_path / 'a.npz'}", test=31)


def _by_hand(w: Tensor, x: Tensor, y: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Accuracies and losses (N,) of logistic models (N, p + 1), without the task."""
    out = x.double().numpy() @ w[:, :-1].T.numpy() + w[:, -1].numpy()
    labels = y.numpy()[:, None]
    loss = np.logaddexp(0, -out) * labels + np.logaddexp(0, out) * (1 - labels)
    return ((out > 0) == (labels == 1)).mean(0), loss.mean(0)


def test_test_curves_are_those_of_the_states(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, truth = _recorded(set={"l2": 0.01})
    run = training_curves.kept(truth, "run", nodes=True)
    x, y = plan.source.x[plan.tested], plan.source.y[plan.tested]
    for t in range(1, 8):
        w = truth.states["w"][t]
        accuracies, losses = _by_hand(torch.cat([w, w.mean(0, keepdim=True)]), x, y)
        assert float(run["test_accuracy"][t]) == pytest.approx(accuracies[:-1].mean(), abs=1e-12)
        assert float(run["test_accuracy_mean_model"][t]) == pytest.approx(accuracies[-1], abs=1e-12)
        assert float(run["test_loss"][t]) == pytest.approx(losses[:-1].mean(), abs=1e-12)
        assert float(run["test_loss_mean_model"][t]) == pytest.approx(losses[-1], abs=1e-12)
        each = [float(run[f"test_accuracy_node_{k}"][t]) for k in range(4)]
        assert each == pytest.approx(accuracies[:-1].tolist(), abs=1e-12)


@pytest.mark.parametrize(
    ("changes", "outputs"),
    [
        ({"data": "gaussians:300", "model": "linear", "labels": "signs"}, 1),
        ({"data": "photos", "model": "linear", "labels": "one-hot", "samples": 4, "test": 40}, 6),
        ({"data": "photos", "model": "mlp", "samples": 4, "test": 40, "set": {"hidden": 5}}, 0),
        ({"data": "regression:300,4", "model": "linear"}, 0),
    ],
)
def test_accuracy_and_error_of_targets(changes: dict[str, object], outputs: int) -> None:
    plan, truth = _recorded(rounds=2, **changes)
    run = training_curves.kept(truth, "run")
    x, y = plan.source.x[plan.tested].double(), plan.source.y[plan.tested]
    accuracies, errors = [], []
    for theta in truth.states["w"][2]:
        out = plan.task.logits(theta, x).numpy()
        if outputs == 1:
            accuracies.append(np.mean(np.sign(out[:, 0]) == y.numpy()))
        elif not y.is_floating_point():
            accuracies.append(np.mean(out.argmax(1) == y.numpy()))
        elif outputs:
            accuracies.append(np.mean(out.argmax(1) == y.numpy().argmax(1)))
        if y.is_floating_point():
            errors.append(np.sqrt(np.mean((out - y.double().numpy().reshape(out.shape)) ** 2)))
    for name, wanted in (("test_accuracy", accuracies), ("test_error", errors)):
        assert (name in run) == bool(wanted)
        if wanted:
            assert float(run[name][2]) == pytest.approx(np.mean(wanted), abs=1e-6)


def test_curves_have_every_so_many_rounds_and_the_ends() -> None:
    _, truth = _recorded(every=3)
    assert training_curves.rounds(training_curves.kept(truth, "run")) == [1, 3, 6, 7]
    _, dense = _recorded()
    run, every = training_curves.kept(truth, "run"), training_curves.kept(dense, "run")
    for name in set(run) - {"seconds"}:
        assert run[name][[1, 3, 6, 7]].tolist() == every[name][[1, 3, 6, 7]].tolist()
    _, other = _recorded(
        victim="secured", nodes=9, graph="complete", every=4, model="logistic", samples=3
    )
    assert training_curves.rounds(training_curves.kept(other, "run")) == [1, 4, 7]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"test": 261}, "expected at most the 260 records that the nodes leave of 300 records"),
        ({"curves": False}, "90 held-out records are used by curves only; add --curves"),
        ({"test": -1}, "test: expected at least 0, got -1"),
        ({"every": 0}, "every: expected at least 1, got 0"),
        ({"rows": "norm"}, "rows: expected raw, unit or range, got 'norm'"),
        ({"labels": "hot"}, "labels: expected classes, signs or one-hot, got 'hot'"),
        ({"classes": "0,2"}, "classes 0,2: gaussians has the classes 0 to 1, got '2'"),
    ],
)
def test_what_a_scenario_cannot_ask(changes: dict[str, object], says: str) -> None:
    with pytest.raises(LeakauditError, match=says):
        _recorded(**changes)


def test_messages_are_those_of_a_run_without_curves() -> None:
    chosen, _ = _recorded()
    payloads = []
    for others in ({}, recording.SILENT):
        plan = recording.plan(Scenario(**{**vars(chosen.scenario), **others}))
        payloads.append(recording.record(plan, None).trace.messages[0].payload)
    assert torch.equal(*payloads)


# --- distances to the optimum ---------------------------------------------------------------------


def _minimised(x: np.ndarray, y: np.ndarray, l2: float) -> np.ndarray:
    """Least squares with an l2 term as an ordinary one with more rows, by numpy."""
    rows = np.sqrt(l2 * len(x)) * np.eye(x.shape[1])
    right = np.concatenate([y, np.zeros((x.shape[1], y.shape[1]))])
    return np.asarray(np.linalg.lstsq(np.concatenate([x, rows]), right, rcond=None)[0])


@pytest.mark.parametrize("l2", [0.0, 0.05])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("others", [{"data": "regression:60,4,0.3"}, {"data": "photos"}])
def test_the_distance_is_that_to_the_optimum(
    l2: float, bias: bool, others: dict[str, object]
) -> None:
    images = others["data"] == "photos"
    if images and not l2:
        pytest.skip("fewer records than features")
    chosen = {"labels": "one-hot" if images else "classes", "set": {"l2": l2, "bias": bias}}
    _, truth = _recorded(model="linear", rounds=2, test=0, samples=9, **chosen, **others)
    x = truth.x.double().flatten(1).numpy()
    if images:
        x = 2 * x - 1  # the model's normalisation
    if bias:
        x = np.concatenate([x, np.ones((len(x), 1))], 1)
    w = _minimised(x, truth.y.double().numpy().reshape(len(x), -1), l2)
    width = w.shape[0] - bias
    best = np.concatenate([w[:width].T.ravel(), w[width:].ravel()])
    models = truth.states["w"][2].numpy()
    run = training_curves.kept(truth, "run")
    each = np.linalg.norm(models - best, axis=1)
    root = np.sqrt(len(best))
    assert float(run["rmse_nodes"][2]) == pytest.approx(each.mean() / root, rel=1e-9)
    away = np.linalg.norm(models.mean(0) - best)
    assert float(run["rmse"][2]) == pytest.approx(away / root, rel=1e-9)
    relative = np.sqrt((each**2).mean()) / np.linalg.norm(best)
    assert float(run["relative_error"][2]) == pytest.approx(relative, rel=1e-9)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("features", [2, 50])
def test_the_distance_is_that_to_the_optimum_of_logistic_regression(
    features: int, bias: bool
) -> None:
    chosen = {"set": {"l2": 0.05, "bias": bias}, "data": f"classification:36,{features}"}
    _, truth = _recorded(model="logistic", rounds=2, test=0, samples=9, **chosen)
    x = truth.x.double().flatten(1).numpy()
    assert (len(x) < x.shape[1]) == (features == 50)  # fewer records than weights
    if bias:
        x = np.concatenate([x, np.ones((len(x), 1))], 1)
    sign = 2 * truth.y.numpy() - 1

    def value(w: np.ndarray) -> float:
        return float(np.logaddexp(0, -sign * (x @ w)).mean() + 0.025 * (w @ w))

    found = minimize(value, np.zeros(x.shape[1]), method="BFGS", options={"gtol": 1e-9})
    run = training_curves.kept(truth, "run")
    away = np.linalg.norm(truth.states["w"][2].numpy() - found.x, axis=1)
    assert float(run["rmse_nodes"][2]) == pytest.approx(away.mean() / len(found.x) ** 0.5, rel=1e-5)
    _, free = _recorded(model="logistic", rounds=2, test=0, samples=9, set={"bias": bias})
    assert "rmse" not in training_curves.kept(free, "run")  # separable data have no optimum


def test_a_converged_run_is_at_the_optimum_and_near_the_planted_weights() -> None:
    shared = {"data": "regression:400,3", "model": "linear", "rounds": 300, "samples": 90}
    _, exact = _recorded(victim="single", test=0, **shared, set={"mu": 0.5})
    run = training_curves.kept(exact, "run")
    assert float(run["rmse"][-1]) < 1e-7  # the data are float32
    assert float(run["rmse_planted"][-1]) < 1e-6
    assert float(run["rmse_planted"][1]) > 0.1
    _, ridge = _recorded(victim="single", test=0, **shared, set={"mu": 0.5, "l2": 0.3})
    run = training_curves.kept(ridge, "run")
    assert float(run["rmse"][-1]) < 1e-12
    assert float(run["rmse_planted"][-1]) > 0.05


def test_the_optimum_with_an_l1_norm_fulfils_its_conditions() -> None:
    """A subgradient of the objective is zero, and a run of proximal steps ends there."""
    plan, truth = _recorded(
        victim="extra",
        data="regression:200,12,1.5",
        model="linear",
        samples=40,
        rounds=1500,
        test=0,
        every=100,
        set={"alpha": 0.2, "l1": 0.4},
    )
    run = training_curves.kept(truth, "run")
    assert float(run["rmse"][-1]) < 1e-9
    x = truth.x.double().numpy()
    x = np.concatenate([x, np.ones((len(x), 1))], 1)
    w = truth.states["w"][-1].mean(0).numpy()
    slope = x.T @ (x @ w - truth.y.double().numpy()) / len(x)
    used = np.abs(w) > 1e-9
    assert 0 < used.sum() < len(w)
    assert np.abs(slope[used] + 0.4 * np.sign(w[used])).max() < 1e-8
    assert np.abs(slope[~used]).max() < 0.4
    assert plan.victim.l1_weight == 0.4


@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_with_an_l1_norm_does_not_depend_on_the_sizes_of_columns(
    seed: int, tmp_path: Path
) -> None:
    random = np.random.default_rng(seed)
    x = (random.standard_normal((30, 3)) * 10.0 ** random.uniform(-3, 3, 3)).astype("float32")
    y = (x @ random.standard_normal(3) + random.standard_normal(30)).astype("float32")
    l1 = 10.0 ** random.uniform(-2, 1)
    np.savez(tmp_path / "columns.npz", x=x, y=y)
    _, truth = _recorded(
        victim="nids",
        nodes=2,
        graph="ring",
        rounds=1,
        data=f"npz:{tmp_path / 'columns.npz'}",
        model="linear",
        samples=15,
        test=0,
        set={"alpha": 1e-9, "l1": l1, "bias": False},
    )
    run = training_curves.kept(truth, "run")
    best = lasso(truth.x.double().numpy(), truth.y.double().numpy(), l1)
    away = np.linalg.norm(truth.states["w"][1].numpy() - best, axis=1).mean() / 3**0.5
    assert float(run["rmse_nodes"][1]) == pytest.approx(away, rel=1e-6)


def lasso(x: np.ndarray, y: np.ndarray, l1: float) -> np.ndarray:
    """Minimise |x w - y|^2 / 2n + l1 |w|_1: try all signs in 50 digits, w (p,)."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(50):
        rows = mpmath.matrix(x.tolist())
        h = rows.T * rows / len(x)
        c = rows.T * mpmath.matrix(y.tolist()) / len(x)
        for signs in itertools.product((-1, 0, 1), repeat=x.shape[1]):
            used = [k for k, sign in enumerate(signs) if sign]
            w = mpmath.zeros(x.shape[1], 1)
            if used:
                part = mpmath.matrix([[h[a, b] for b in used] for a in used])
                wanted = mpmath.matrix([c[a] - l1 * signs[a] for a in used])
                for place, value in zip(used, mpmath.lu_solve(part, wanted), strict=True):
                    w[place] = value
            slope = h * w - c
            unused = [abs(slope[k]) <= l1 for k, sign in enumerate(signs) if not sign]
            if all(mpmath.sign(w[k]) == signs[k] for k in used) and all(unused):
                return np.array([float(value) for value in w])
    raise AssertionError("no signs fulfil the conditions")


def test_an_optimum_that_is_not_unique_or_not_linear_has_no_distance() -> None:
    for others in (
        {"data": "regression:60,50", "model": "linear"},
        {"data": "regression:60,4", "model": "mlp"},
        {"data": "gaussians:60", "model": "logistic"},
        # Separable: the optimum is so far away that the curvature there is lost in rounding.
        {"data": "classification:60,80", "model": "logistic", "set": {"l2": 1e-15}},
    ):
        _, truth = _recorded(test=0, rounds=2, **others)
        assert not {"rmse", "rmse_nodes", "relative_error"} & set(truth.states)
    _, truth = _recorded(test=0, rounds=2, data="classification:60,4")
    assert "rmse_planted" in truth.states
    _, truth = _recorded(test=0, rounds=2, data="classification:60,4", rows="unit")
    assert "rmse_planted" not in truth.states


def test_ijcnn1_is_read_as_downloaded(tmp_path: Path) -> None:
    folder = tmp_path / "ijcnn1"
    folder.mkdir()
    (folder / "ijcnn1").write_text("-1 1:0.5 3:1\n+1 2:-1\n-1 3:0.25\n")
    (folder / "ijcnn1.t").write_text("+1 1:2\n-1 3:1\n")
    found = data.load("ijcnn1", tmp_path, held=True)
    assert found.x.tolist() == [[0.5, 0, 1], [0, -1, 0], [0, 0, 0.25]]
    assert found.y.tolist() == [0, 1, 0]
    assert found.held is not None
    assert found.held[0].tolist() == [[2, 0, 0], [0, 0, 1]]
    assert found.held[1].tolist() == [1, 0]
    with pytest.raises(LeakauditError, match=r"no ijcnn1 or ijcnn1\.bz2 in it or in its subfolder"):
        data.load("ijcnn1", folder / "none")
