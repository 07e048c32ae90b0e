"""Data sets against their sources read by other means, and files that are broken or hostile."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import skimage.data
import torch
from PIL import Image
from torch import Generator

from leakaudit.core.errors import LeakauditError
from leakaudit.tasks import _torchvision, data_sources
from leakaudit.tasks.data import MOST_GAUSSIANS, NAMES, load, split
from leakaudit.tasks.task import Task

Shared = Callable[[str], Path]


def npz(path: Path, **arrays: object) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return f"npz:{path}"


# bundled


def test_faces_are_the_hundred_faces_rounded() -> None:
    data = load("faces")
    assert data.x.shape == (100, 1, 25, 25)
    assert data.x.dtype == torch.float32
    grid = data.x.double() * 255
    assert float((grid - grid.round()).abs().max()) < 1e-4
    assert torch.equal((grid.round() / 255).float(), data.x)  # k/255, correctly rounded
    source = np.asarray(skimage.data.lfw_subset())[:100]
    assert np.abs(data.x[:, 0].numpy() - source).max() <= 0.5 / 255 + 1e-7
    assert len(data.x.flatten(1).unique(dim=0)) == 100
    assert torch.equal(data.y, torch.arange(100))
    assert (data.classes, data.levels, data.mean, data.std, data.name) == (
        100,
        255,
        (0.5,),
        (0.5,),
        "faces",
    )


def test_faces_detect_has_both_kinds() -> None:
    data, faces = load("faces-detect"), load("faces")
    assert torch.equal(data.x[:100], faces.x)
    assert data.y.tolist() == [1] * 100 + [0] * 100
    assert data.labels == ("other", "face")


def test_photos_are_distinct_tiles_of_all_six() -> None:
    data = load("photos")
    assert data.x.shape[1:] == (3, 32, 32)
    assert len(data) > 150
    assert data.labels == (
        "astronaut",
        "coffee",
        "chelsea",
        "rocket",
        "hubble_deep_field",
        "retina",
    )
    assert int(data.y.bincount(minlength=6).min()) >= 20
    assert len(data.x.flatten(1).unique(dim=0)) == len(data)
    assert float(data.x.std(dim=(1, 2, 3)).min()) > data_sources.CONTRAST
    grid = data.x.double() * 255
    assert float((grid - grid.round()).abs().max()) < 1e-4
    again = load("photos")
    assert torch.equal(again.x, data.x)


def test_photo_tiles_lie_side_by_side_in_the_scaled_photograph() -> None:
    data = load("photos")
    tiles = data.x[data.y == 0]  # 512x512 to 160x160: 5x5 tiles, none left out
    rows = [torch.cat(list(tiles[5 * r : 5 * r + 5]), dim=2) for r in range(5)]
    got = torch.cat(rows, dim=1).permute(1, 2, 0).numpy()
    photo = np.asarray(skimage.data.astronaut())
    want = np.asarray(Image.fromarray(photo).resize((160, 160), Image.Resampling.BOX)) / 255
    assert (
        np.abs(got - want).mean() < 0.02
    )  # both average over areas, with other rules at their borders
    assert np.corrcoef(got.ravel(), want.ravel())[0, 1] > 0.995


def test_a_photograph_that_is_not_bundled_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(data_sources.PHOTOS, "coffee", "not_there.png")
    with pytest.raises(LeakauditError, match="does not include not_there"):
        load("photos")


@pytest.mark.parametrize("count", [1, MOST_GAUSSIANS + 1])
def test_gaussians_are_two_to_ten_million(count: int) -> None:
    assert len(load("gaussians:2", generator=Generator().manual_seed(0))) == 2
    with pytest.raises(LeakauditError, match="expected 2 to 10000000 records"):
        load(f"gaussians:{count}")


def test_gaussians_are_those_of_the_thesis() -> None:
    data = load("gaussians:20000", generator=Generator().manual_seed(0))
    assert data.x.shape == (20000, 2)
    for label, centre in ((0, -1.0), (1, 1.0)):
        x = data.x[data.y == label].double()
        assert len(x) == 10000
        assert float((x.mean(0) - centre).abs().max()) < 0.05
        assert float((x.T.cov() - torch.eye(2)).abs().max()) < 0.05
    assert len(load("gaussians", generator=Generator().manual_seed(0))) == 1000
    same, other = (load("gaussians:10", generator=Generator().manual_seed(s)).x for s in (3, 4))
    assert torch.equal(same, load("gaussians:10", generator=Generator().manual_seed(3)).x)
    assert not torch.equal(same, other)
    with pytest.raises(LeakauditError, match="Generator"):
        load("gaussians")


# torchvision's layout


def test_fashion_is_the_original(shared_data: Shared, tmp_path: Path) -> None:
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for packed in shared_data("fashion_mnist").glob("*.gz"):
        (raw / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    data = load("fashion", tmp_path)
    pixels = np.frombuffer(
        (raw / "train-images-idx3-ubyte").read_bytes(), np.uint8, offset=16
    ).reshape(60000, 28, 28)
    labels = np.frombuffer((raw / "train-labels-idx1-ubyte").read_bytes(), np.uint8, offset=8)
    assert data.x.shape == (60000, 1, 28, 28)
    assert torch.equal(
        (data.x[::97, 0] * 255).round().to(torch.uint8), torch.from_numpy(pixels[::97].copy())
    )
    assert np.array_equal(data.y.numpy(), labels)
    assert data.y[:5].tolist() == [9, 0, 0, 3, 0]
    assert data.y.bincount().tolist() == [6000] * 10
    assert data.labels[9] == "Ankle boot"


def test_mnist_in_torchvisions_layout(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pixels = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(
            np.array([2051, 3, 28, 28], ">i4").tobytes() + pixels.tobytes()
        )
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(
            np.array([2049, 3], ">i4").tobytes() + bytes([7, 2, 1])
        )
    data = load("mnist", tmp_path)
    assert torch.equal(data.x[:, 0], torch.from_numpy(pixels).float() / 255)
    assert data.y.tolist() == [7, 2, 1]


def test_cifar10_in_torchvisions_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar = _torchvision.torchvision().datasets.cifar
    monkeypatch.setattr(
        cifar, "check_integrity", lambda *_: True
    )  # the made-up files have other checksums
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    rng = np.random.default_rng(0)
    batches = [rng.integers(0, 256, (2, 3072), dtype=np.uint8) for _ in range(5)]
    for i, batch in enumerate(batches, 1):
        (folder / f"data_batch_{i}").write_bytes(
            pickle.dumps({"data": batch, "labels": [i, i + 1]})
        )
    (folder / "batches.meta").write_bytes(
        pickle.dumps({"label_names": [f"c{i}" for i in range(10)]})
    )
    data = load("cifar10", tmp_path)
    assert torch.equal(
        data.x, torch.from_numpy(np.concatenate(batches)).reshape(10, 3, 32, 32).float() / 255
    )
    assert data.y.tolist() == [1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    assert data.labels[3] == "c3"


@pytest.mark.parametrize("name", ["mnist", "fashion", "cifar10"])
def test_data_that_are_not_there_say_what_to_do(name: str, tmp_path: Path) -> None:
    with pytest.raises(LeakauditError, match="--data-root"):
        load(name)
    with pytest.raises(LeakauditError, match="check --data-root, or add --download"):
        load(name, tmp_path)
    assert not list(tmp_path.rglob("*.gz"))


# files


def test_npz_of_gray_and_colour_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    gray, colour = (
        rng.integers(0, 256, (4, 5, 6), dtype=np.uint8),
        rng.integers(0, 256, (4, 5, 6, 3), dtype=np.uint8),
    )
    data = load(npz(tmp_path / "gray.npz", x=gray, y=np.array([0, 1, 2, 1])))
    assert data.x.shape == (4, 1, 5, 6)
    assert torch.equal(data.x[:, 0], torch.from_numpy(gray).float() / 255)
    assert (data.levels, data.classes, data.labels, data.name) == (255, 3, (), "npz:gray.npz")
    data = load(npz(tmp_path / "colour.npz", x=colour, y=np.array([3, -1, 3, 7])))
    assert torch.equal(data.x, torch.from_numpy(colour).permute(0, 3, 1, 2).float() / 255)
    assert (data.y.tolist(), data.labels, data.mean) == (
        [1, 0, 1, 2],
        ("-1", "3", "7"),
        (0.5, 0.5, 0.5),
    )
    data = load(
        npz(tmp_path / "float.npz", x=gray / 255.0, y=np.array(["cat", "dog", "cat", "ape"]))
    )
    assert (data.y.tolist(), data.labels, data.levels) == ([1, 2, 1, 0], ("ape", "cat", "dog"), 0)
    torch.testing.assert_close(data.x[:, 0], torch.from_numpy(gray).float() / 255)


def test_npz_of_features_and_targets(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(6, 3)) * 100, np.linspace(-1, 1, 6)
    data = load(npz(tmp_path / "table.npz", x=x, y=y))
    torch.testing.assert_close(data.x, torch.from_numpy(x).float())
    torch.testing.assert_close(data.y, torch.from_numpy(y).float())
    assert (data.mean, data.std, data.levels) == ((0.0,), (1.0,), 0)
    spec = data.spec("mlp", {"hidden": 4})
    assert (spec.loss, spec.classes) == ("squared", 1)
    assert Task.build(spec).layout.shapes[-1] == (1,)


def bomb(path: Path, claim: tuple[int, ...], body: bytes) -> str:
    """An npz whose x says more than it holds."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|u1", "fortran_order": False, "shape": claim}
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", head.getvalue() + body)
        archive.writestr("y.npy", b"")
    return f"npz:{path}"


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (np.zeros((3, 2), object), np.arange(3), "pickled"),
        (np.zeros((3, 2)), np.array([{}, {}, {}]), "pickled"),
        (np.zeros(3), np.arange(3), "expected numbers x"),
        (np.zeros((3, 2, 2, 2, 2)), np.arange(3), "expected numbers x"),
        (np.zeros((3, 2), complex), np.arange(3), "expected numbers x"),
        (np.zeros((0, 2)), np.arange(0), "expected numbers x"),
        (np.zeros((3, 4, 4, 5)), np.arange(3), "1 or 3 channels last"),
        (np.zeros((3, 2)), np.arange(4), r"expected y \(3,\)"),
        (np.zeros((3, 2)), np.zeros((3, 1)), r"expected y \(3,\)"),
        (np.full((3, 2), np.nan), np.arange(3), "6 values are not finite"),
        (np.full((3, 2), 1e300), np.arange(3), "6 values are not finite"),
        (np.zeros((3, 2)), np.array([0.1, np.inf, 0.3]), "1 values are not finite"),
        (np.full((3, 4, 4), 2.0), np.arange(3), r"expected images in \[0, 1\]"),
    ],
)
def test_arrays_that_are_refused(x: np.ndarray, y: np.ndarray, says: str, tmp_path: Path) -> None:
    with pytest.raises(LeakauditError, match=says):
        load(npz(tmp_path / "bad.npz", x=x, y=y))


def test_npz_files_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, a=np.zeros(3), b=np.zeros(3))
    with pytest.raises(LeakauditError, match=r"expected arrays x and y, got a, b"):
        load(f"npz:{path}")
    whole = io.BytesIO()
    np.savez(whole, x=np.zeros((300, 20)), y=np.arange(300))
    flipped = bytearray(whole.getvalue())
    flipped[5000] ^= 255
    for content in (b"", b"text", whole.getvalue()[:3000], bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(LeakauditError, match="cannot be read"):
            load(f"npz:{path}")
    with pytest.raises(LeakauditError, match="cannot be read"):
        load(f"npz:{tmp_path / 'absent.npz'}")
    with pytest.raises(
        LeakauditError, match=r"x has 4000000000000 bytes as float32, expected at most \d+"
    ):
        load(bomb(path, (10**6, 10**6), b"\0" * 100))
    with pytest.raises(LeakauditError, match="declares 5000 bytes"):
        load(bomb(path, (50, 100), b"\0" * 100))


def picture(
    path: Path, seed: int, size: tuple[int, ...] = (6, 5), mode: str | None = None
) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    image = Image.fromarray(pixels)
    path.parent.mkdir(exist_ok=True, parents=True)
    (image.convert(mode) if mode else image).save(path)
    return pixels


def test_folder_of_classes(tmp_path: Path) -> None:
    want = [
        picture(tmp_path / "cat" / "a.png", 0),
        picture(tmp_path / "cat" / "b.PNG", 1),
        picture(tmp_path / "dog" / "c.png", 2),
    ]
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    (tmp_path / ".hidden").mkdir()
    data = load(f"images:{tmp_path}")
    assert torch.equal(data.x[:, 0], torch.from_numpy(np.stack(want)).float() / 255)
    assert (data.y.tolist(), data.labels, data.levels) == ([0, 0, 1], ("cat", "dog"), 255)


def test_flat_folder_of_gray_colour_and_transparent_images(tmp_path: Path) -> None:
    gray, colour = picture(tmp_path / "a.png", 0), picture(tmp_path / "b.png", 1, (6, 5, 3))
    clear = picture(tmp_path / "c.png", 2, (6, 5, 4))
    picture(tmp_path / "d.jpg", 3, (6, 5, 3))
    data = load(f"images:{tmp_path}")
    assert data.x.shape == (4, 3, 6, 5)
    assert torch.equal(data.x[0], torch.from_numpy(gray).float().expand(3, 6, 5) / 255)
    assert torch.equal(data.x[1], torch.from_numpy(colour).permute(2, 0, 1).float() / 255)
    assert torch.equal(
        data.x[2], torch.from_numpy(clear[..., :3].copy()).permute(2, 0, 1).float() / 255
    )
    assert (data.y.tolist(), data.classes) == ([0, 1, 2, 3], 4)


def test_folders_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LeakauditError, match="no such folder"):
        load(f"images:{tmp_path / 'absent'}")
    with pytest.raises(LeakauditError, match="found none"):
        load(f"images:{tmp_path}")
    picture(tmp_path / "a.png", 0)
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:60])
    with pytest.raises(LeakauditError, match=r"b\.png: cannot be read"):
        load(f"images:{tmp_path}")
    (tmp_path / "b.png").write_text("not an image")
    with pytest.raises(LeakauditError, match=r"b\.png: cannot be read"):
        load(f"images:{tmp_path}")
    picture(tmp_path / "b.png", 1, (6, 7))
    with pytest.raises(LeakauditError, match=r"b\.png and a\.png have sizes 7x6 and 5x6"):
        load(f"images:{tmp_path}")
    Image.fromarray(np.zeros((6, 5), np.uint16)).save(tmp_path / "b.png")
    with pytest.raises(LeakauditError, match=r"b\.png: expected 8 bits per channel"):
        load(f"images:{tmp_path}")
    Image.new("1", (6000, 5000)).save(tmp_path / "b.png")
    with pytest.raises(LeakauditError, match=r"b\.png: expected at most 16777216 pixels"):
        load(f"images:{tmp_path}")
    monkeypatch.setattr("leakaudit.tasks.data_files.LARGEST", 100)
    with pytest.raises(LeakauditError, match="need more than 100 bytes"):
        load(f"images:{tmp_path}")


@pytest.mark.parametrize("suffix", ["txt", "bz2", "gz"])
def test_libsvm_text(suffix: str, tmp_path: Path) -> None:
    text = b"+1 1:0.5 3:-2e-1 # comment\n\n-1 2:3\r\n-1\n+1 4:1"
    path = tmp_path / f"data.{suffix}"
    path.write_bytes({"txt": lambda b: b, "bz2": bz2.compress, "gz": gzip.compress}[suffix](text))
    data = load(f"libsvm:{path}")
    assert (
        data.x.tolist()
        == torch.tensor([[0.5, 0, -0.2, 0], [0, 3, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]).tolist()
    )
    assert (data.y.tolist(), data.labels, data.classes) == ([1, 0, 0, 1], ("-1", "1"), 2)
    assert data.spec("logistic").loss == "binary"


def test_libsvm_regression(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("0.5 1:1\n2 1:2\n")
    data = load(f"libsvm:{tmp_path / 'r'}")
    assert data.y.tolist() == [0.5, 2.0]
    assert data.spec("linear").loss == "squared"


def test_ijcnn1_has_its_published_counts(shared_data: Shared) -> None:
    path = shared_data("ijcnn1/ijcnn1.trn.bz2")
    data = load(f"libsvm:{path}")
    assert data.x.shape == (49990, 22)
    assert data.y.bincount().tolist() == [49990 - 4853, 4853]
    with bz2.open(path, "rt") as lines:
        for row, line in zip(range(0, 500), lines, strict=False):
            label, *pairs = line.split()
            want = np.zeros(22, np.float32)
            for pair in pairs:
                index, value = pair.split(":")
                want[int(index) - 1] = float(value)
            assert np.array_equal(data.x[row].numpy(), want)
            assert int(data.y[row]) == int(float(label) > 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1 2:1 3:1 2:4\n", "line 1: expected each index once, got 2 repeatedly"),
        ("", "found none"),
        ("1\n2\n", "found none"),
        ("1 1:2\nx 1:3\n", "line 2: expected"),
        ("1 1:2 qid:3\n", "line 1: expected"),
        ("1 1:2:3\n", "line 1: expected"),
        ("1 1=2\n", "line 1: expected"),
        ("1 99999999999999999999999:2\n", "line 1: expected"),
        ("1 0:2\n", "indices from 1"),
        ("1 1999999999:2\n", "at most 2147483648 bytes as a table"),
        ("1 1:nan\n", "1 values are not finite"),
        ("1 1:1e300\n", "1 values are not finite"),
        ("1 1:1\ninf 1:1\n", "record 1 has a label"),
    ],
)
def test_libsvm_text_that_is_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text(text)
    with pytest.raises(LeakauditError, match=says):
        load(f"libsvm:{tmp_path / 'bad'}")


def test_libsvm_files_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LeakauditError, match="cannot be read"):
        load(f"libsvm:{tmp_path / 'absent'}")
    for name, content in (
        ("a.bz2", b"text"),
        ("b.gz", b"text"),
        ("c.gz", gzip.compress(b"1 1:2\n" * 1000)[:-12]),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(LeakauditError, match="cannot be read"):
            load(f"libsvm:{tmp_path / name}")
    (tmp_path / "line.bz2").write_bytes(bz2.compress(b"1" * 2**25))
    with pytest.raises(LeakauditError, match="expected lines under"):
        load(f"libsvm:{tmp_path / 'line.bz2'}")
    monkeypatch.setattr("leakaudit.tasks.data_files.LARGEST", 1000)
    (tmp_path / "long.gz").write_bytes(gzip.compress(b"1 1:2\n" * 1000))
    with pytest.raises(LeakauditError, match="a text under 1000 bytes"):
        load(f"libsvm:{tmp_path / 'long.gz'}")


# all


@pytest.mark.parametrize(
    "name",
    [
        "face",
        "",
        "faces:3",
        "npzz:file",
        "gaussians:",
        "gaussians:x",
        "gaussians:1",
        "gaussians:99999999",
    ],
)
def test_names_that_are_unknown(name: str) -> None:
    with pytest.raises(LeakauditError, match=r"unknown data set|expected 2 to"):
        load(name, generator=Generator().manual_seed(0))


def test_specs_describe_the_data() -> None:
    faces, plane = load("faces"), load("gaussians", generator=Generator().manual_seed(0))
    spec = faces.spec("lenet", {"act": "relu"})
    assert (spec.loss, spec.shape, spec.classes, spec.levels, spec.data) == (
        "cross_entropy",
        (1, 25, 25),
        100,
        255,
        "faces",
    )
    assert plane.spec("logistic").loss == "binary"
    assert plane.spec("logistic", loss="cross_entropy").classes == 2
    assert faces.spec("logistic").loss == "cross_entropy"
    assert (plane.spec("linear").loss, plane.spec("linear").classes) == ("squared", 1)
    for data, model in (
        (faces, "mlp"),
        (faces, "convnet"),
        (plane, "logistic"),
        (plane, "linear"),
        (load("photos"), "lenet"),
    ):
        spec = data.spec(model)
        json.dumps(spec.to_json())
        task = Task.build(spec)
        loss = task.loss(task.init(Generator().manual_seed(0)), data.x[:4], data.y[:4])
        assert bool(torch.isfinite(loss))


def test_classes_share_the_records_of_a_node_as_evenly_as_possible() -> None:
    data = load("gaussians:100", generator=Generator().manual_seed(0))
    for samples, counts in ((5, [2, 3]), (6, [3, 3])):
        rows = split(data, 4, samples, "classes:2", Generator().manual_seed(0))
        assert rows.shape == (4, samples)
        assert all(data.y[node].bincount().sort().values.tolist() == counts for node in rows)


def test_loading_leaves_the_global_state() -> None:
    before, state = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    for name in ("faces", "photos", "gaussians"):
        load(name, generator=Generator().manual_seed(0))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], state)  # type: ignore[index]  # noqa: NPY002
    assert set(NAMES) >= {"faces", "photos"}
