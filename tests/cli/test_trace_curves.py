"""`leakaudit trace curves` as users meet it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from PIL import Image

from leakaudit.cli import main


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curves")
    about = [
        "--nodes",
        "4",
        "--graph",
        "ring",
        "--rounds",
        "30",
        "--data",
        "gaussians",
        "--samples",
        "5",
        "--model",
        "logistic",
        "-q",
    ]
    assert main(["record", "dpsgd", *about, "-o", str(folder / "sgd.pt"), "--curves"]) == 0
    assert main(["record", "dpnorm", *about, "-o", str(folder / "norm.pt"), "--curves"]) == 0
    assert main(["record", "dpsgd", *about, "-o", str(folder / "plain.pt")]) == 0
    return folder


@pytest.fixture(autouse=True)
def _inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def test_several_runs_as_text_json_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "curves", "sgd.truth.pt", "norm.pt"]) == 0
    text = capsys.readouterr().out
    assert "sgd; 12 of 30 rounds shown" in text
    assert "norm_dual" in text
    assert main(["trace", "curves", "sgd.truth.pt", "norm.pt", "-f", "json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert set(tree) == {"sgd", "norm"}
    assert tree["norm"]["round"] == list(range(1, 31))
    assert tree["sgd"]["loss"][0] > tree["sgd"]["loss"][-1]
    assert main(["trace", "curves", "sgd.truth.pt", "-f", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(row["loss"]) for row in rows] == tree["sgd"]["loss"]


@pytest.mark.parametrize(
    ("name", "head"), [("c.png", b"\x89PNG"), ("c.SVG", b"<?xml"), ("c.pdf", b"%PDF-")]
)
def test_one_figure_for_all_in_the_format_of_its_suffix(
    name: str, head: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / name
    assert main(["trace", "curves", "sgd.truth.pt", "norm.truth.pt", "-o", str(picture)]) == 0
    assert "written" in capsys.readouterr().err
    assert picture.read_bytes().startswith(head)
    if name.endswith("png"):
        with Image.open(picture) as page:
            assert page.size[0] > 800


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["plain.truth.pt"], "plain.truth.pt contains no curves; record with --curves"),
        (["sgd.truth.pt", "plain.pt"], "plain.truth.pt contains no curves; record with --curves"),
        (["nowhere.pt"], "nowhere.truth.pt"),
        (["sgd.pt", "-o", "curves.jpg"], "ends in .png, .svg or .pdf"),
        (["sgd.pt", "-f", "html"], "-f/--format: there is no 'html'"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(
    given: list[str], says: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(place.iterdir())
    try:
        code = main(["trace", "curves", *given])
    except SystemExit as e:
        code = int(str(e.code))
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert sorted(place.iterdir()) == before
