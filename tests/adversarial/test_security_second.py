"""What a second security review found: what purge leaves or deletes, and files of a sweep."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from leakaudit._util import marks
from leakaudit._util.files import intended, replacing, write_arrays, write_tensors
from leakaudit.capture.gloo import scratch
from leakaudit.cli import main
from leakaudit.reporting.figures.pictures import Pair
from leakaudit.reporting.rendering import gallery, leaked
from leakaudit.reporting.results import model, record_file
from leakaudit.runs.pipeline import purge

RECORD = ("record", "dpsgd", "--nodes", "2", "--rounds", "1", "--model", "mlp", "-q")
PLAN = """
[scenario]
victim = "fedsgd"
nodes = 2
rounds = 1
model = "logistic"
[sweep]
attacks = ["labels"]
seeds = 2
"""
SWEEP = ("sweep", "plan.toml", "--workers", "0", "-o", "swept", "-q")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording and the results of an attack."""
    folder = tmp_path_factory.mktemp("run")
    assert main([*RECORD, "-o", str(folder / "demo.pt")]) == 0
    assert main(["attack", str(folder / "demo.pt"), "-o", str(folder / "out"), "-q"]) == 0
    return folder


@pytest.fixture
def place(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `run`, as the current folder."""
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Run a call that must be refused in one line."""
    assert main([*argv]) == 2
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1, err
    return err


# --- purge: nothing stays -----------------------------------------------------------------------

PERSONAL = ("png", "svg", "pdf", "md", "txt", "html")
SCORES = ("csv", "tex", "xml", "sarif")


def test_reports_with_pictures_or_labels_go_under_any_name(place: Path) -> None:
    for suffix in (*PERSONAL, *SCORES):
        assert main(["report", "out", "-o", f"r.{suffix}", "-q"]) == 0
    for suffix in PERSONAL:
        shutil.copy(f"r.{suffix}", f"copy-of-{suffix}")
    shutil.copy("demo.truth.pt", "copy-of-truth")
    shutil.copy("out/originals.npz", "copy-of-npz")
    shutil.copy("out/results.json", "copy-of-json")
    kept = {"demo.pt", "demo.pt.sha256", "out/results.json", "copy-of-json"}
    kept |= {f"r.{suffix}" for suffix in SCORES}
    assert main(["purge", ".", "--yes", "-q"]) == 0
    assert files(place) == kept
    for name in ("out/results.json", "copy-of-json"):
        record = json.loads((place / name).read_text())
        assert all(one["labels"] is None and one["images"] is None for one in record["findings"])
        assert record["findings"][0]["scores"]["exact"]["per_image"]


def test_reports_without_pictures_and_labels_stay(place: Path) -> None:
    for suffix in ("png", "svg", "pdf", "md", "txt", "json"):
        assert main(["report", "out", "--redact", "-o", f"r.{suffix}", "-q"]) == 0
    assert main(["purge", ".", "--yes", "-q"]) == 0
    assert {"r.png", "r.svg", "r.pdf", "r.md", "r.txt", "r.json"} <= files(place)


def test_a_record_with_a_comparison_loses_its_labels(place: Path) -> None:
    assert main(["report", "out", "--against", "out", "-o", "r.json", "-q"]) == 0
    (place / "elsewhere").mkdir()
    shutil.move("r.json", "elsewhere/r.json")
    assert main(["purge", ".", "--yes", "-q"]) == 0
    record: Any = record_file.read(place / "elsewhere/r.json")
    assert [one["labels"] for one in record["findings"]] == [None, None]


def test_exported_pages_go(place: Path) -> None:
    assert main(["view", ".", "--export", "pages", "-q"]) == 0
    assert main(["purge", "pages", "--yes", "-q"]) == 0
    assert files(place / "pages") == set()


def test_the_pictures_of_a_gate_go(place: Path) -> None:
    image = torch.zeros(1, 8, 8)
    pair = Pair("node 0", image, image, None, "exact")
    assert leaked.save({"cell": pair}, place / "gate")
    assert files(place / "gate") == {leaked.PICTURE, leaked.ARRAYS}
    assert main(["purge", "gate", "--yes", "-q"]) == 0
    assert files(place / "gate") == set()


@pytest.mark.parametrize("name", ["demo.truth.pt", "report.html", "r.json", "results.json.sha256"])
def test_what_a_killed_write_leaves_goes(place: Path, name: str) -> None:
    with replacing(place / name):
        (path,) = place.glob(f".{name}.*")
    path.write_text("what a process that was killed had written")
    assert intended(path) == name
    others = [".name.tmp", ".name.0123.tmp", ".name.0123456789abcdeX.tmp", "a.0123456789abcdef.tmp"]
    for other in others:
        (place / other).write_text("mine")
    assert main(["purge", ".", "--yes", "-q"]) == 0
    assert not path.exists()
    assert set(others) <= files(place)


def test_the_records_of_killed_processes_go(place: Path) -> None:
    """Of `record --engine gloo`; a file of this form elsewhere is somebody else's."""
    records = {"x": torch.zeros(2, 3), "y": torch.zeros(2)}
    for folder in (scratch.PREFIX + "abc", "mine"):
        (place / folder).mkdir()
        write_tensors(place / folder / "data0.pt", records)
    assert main(["purge", ".", "--yes", "-q"]) == 0
    assert purge.SCRATCH == scratch.PREFIX
    assert [path.parent.name for path in place.rglob("data0.pt")] == ["mine"]


def test_images_of_earlier_versions_go_if_the_record_states_their_digests(place: Path) -> None:
    """They have no mark."""
    with Image.open("out/reconstructions.png") as picture:
        picture.copy().save("out/reconstructions.png")
    arrays = (place / "out/originals.npz").read_bytes()
    mark = marks.PERSONAL.encode()
    plain = arrays.removesuffix(len(mark).to_bytes(2, "little") + mark) + b"\0\0"
    (place / "out/originals.npz").write_bytes(plain)
    assert np.load("out/originals.npz").files
    record = json.loads((place / "out/results.json").read_text())
    sealed = record_file.sealed(model.of_run(record), place / "out")
    (place / "out/results.json").write_text(json.dumps(model.plain(sealed)))
    assert main(["purge", ".", "--yes", "-q"]) == 0
    assert files(place / "out") == {"results.json"}


def test_marked_files_can_be_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    image = np.arange(12.0).reshape(1, 3, 2, 2)
    with path.open("wb") as file:
        write_arrays(file, {"x": image})
    assert (np.load(path)["x"] == image).all()
    assert gallery.image(np.load(path)["x"], 0) is not None
    with path.open("rb") as file:
        assert marks.found(file)


# --- purge: files of others stay ----------------------------------------------------------------


def test_a_record_cannot_name_a_file_that_is_not_ours(place: Path) -> None:
    (place / "out/thesis.tex").write_text("mine")
    np.savez(place / "out/data.npz", x0=np.zeros(3))
    Image.new("RGB", (4, 4)).save(place / "out/logo.png")
    (place / "outside.npz").write_bytes((place / "out/originals.npz").read_bytes())
    os.link(place / "outside.npz", place / "safe.npz")
    (place / "out/originals.npz").unlink()
    (place / "out/originals.npz").symlink_to(place / "outside.npz")
    record = json.loads((place / "out/results.json").read_text())
    record["findings"][0]["images"]["file"] = "thesis.tex"
    record["findings"][1]["images"]["file"] = "data.npz"
    record["picture"] = "logo.png"
    sealed = record_file.sealed(model.of_run(record), place / "out")
    (place / "out/results.json").write_text(json.dumps(model.plain(sealed)))
    assert main(["purge", "out", "--yes", "-q"]) == 0
    assert files(place / "out") == {
        *("thesis.tex", "data.npz", "logo.png", "originals.npz", "results.json")
    }
    assert (place / "out/originals.npz").is_symlink()
    assert (place / "outside.npz").exists()


def test_files_that_only_look_like_ours_stay(place: Path) -> None:
    mine = place / "mine"
    mine.mkdir()
    (mine / "notes.md").write_text(f"A page may end with {marks.COMMENT}, as SECURITY.md says.\n")
    (mine / "thesis.tex").write_text('% <meta name="generator" content="leakaudit">\n')
    (mine / "results.json").write_text('{"schema": "leakaudit.results"}')
    (mine / "reconstructions.png").write_text("mine")
    (mine / "a.png.sha256").write_text("mine")
    (mine / "empty").touch()
    shutil.copy("out/reconstructions.png", "mine/a.png")
    before = files(mine)
    assert main(["purge", ".", "--yes", "-q"]) == 0
    assert files(mine) == before - {"a.png"}


# --- sweeps -------------------------------------------------------------------------------------


@pytest.fixture
def swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a sweep that has not begun."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "swept").mkdir()
    (tmp_path / "outside").mkdir()
    return tmp_path / "swept"


@pytest.mark.parametrize("name", ["cells", "errors", "times-1-of-1.jsonl", "times-2-of-2.jsonl"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_sweep_does_not_follow_links_in_its_folder(
    swept: Path, name: str, exists: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    target = swept.parent / "outside"
    if name.startswith("times"):
        target = target / "file"
        if exists:
            target.write_text("mine\n")
    elif not exists:
        target = target / "new"
    (swept / name).symlink_to(target)
    before = files(swept.parent)
    assert f"{swept.name}/{name}: expected a f" in said(capsys, *SWEEP)
    assert files(swept.parent) == before
    if target.is_file():
        assert target.read_text() == "mine\n"


def test_a_named_pipe_does_not_block_a_sweep(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(swept / "times-1-of-1.jsonl")
    assert "expected a file of this sweep" in said(capsys, *SWEEP)


def test_the_results_of_two_cells_cannot_be_exchanged(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SWEEP]) == 0
    one, other = sorted((swept / "cells").iterdir())
    honest = {path: path.read_bytes() for path in (one, other)}
    record = (swept / "results.json").read_bytes()
    one.write_bytes(honest[other])
    other.write_bytes(honest[one])
    complaint = said(capsys, "sweep", "merge", "swept", "-o", "merged.json")
    assert "changed or renamed after it was written" in complaint
    assert main([*SWEEP]) == 0
    assert {path: path.read_bytes() for path in (one, other)} == honest
    assert (swept / "results.json").read_bytes() == record
