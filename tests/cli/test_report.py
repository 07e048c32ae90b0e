"""`leakaudit report` and `leakaudit score`: from a finished attack to every format, and to new scores without a new attack."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="arg-type, call-overload, dict-item, index, misc, operator, union-attr"

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from invoked import refused
from PIL import Image
from records import column, finding, record

from leakaudit.cli import main
from leakaudit.core import registry
from leakaudit.reporting.rendering import gallery
from leakaudit.reporting.results import record_file
from leakaudit.reporting.results.model import Finding, fitted
from leakaudit.traces import trace_file

pytestmark = pytest.mark.usefixtures("own_folder")

RECORD = [
    "record",
    "fedsgd",
    "--nodes",
    "3",
    "--rounds",
    "3",
    "--samples",
    "2",
    "--model",
    "mlp",
    "--set",
    "hidden=32",
    "-q",
]
FORMATS = ("html", "markdown", "junit", "sarif", "text", "github", "json")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    assert main([*RECORD, "-o", str(folder / "trace.pt")]) == 0
    assert main(["attack", str(folder / "trace.pt"), "-o", str(folder / "out"), "-q"]) == 0
    assert (
        main(
            [
                "attack",
                str(folder / "trace.pt"),
                "-o",
                str(folder / "blind"),
                "--truth",
                "none",
                "-q",
            ]
        )
        == 0
    )
    return folder


@pytest.fixture
def place(tmp_path: Path, attacked: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the recording and its results, in the working folder."""
    shutil.copytree(attacked, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pictures(page: str) -> list[tuple[str, np.ndarray]]:
    """Label and pixels of every picture of a page."""
    found = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="([^"]+)">', page)
    return [
        (alt, np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))) for data, alt in found
    ]


def changed(path: Path, **entries: Any) -> None:
    of = json.loads(path.read_text())
    path.write_text(json.dumps({**of, **entries}))


# --- report -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_goes_to_a_file_or_to_stdout(
    place: Path, capsys: pytest.CaptureFixture[str], format: str
) -> None:
    capsys.readouterr()
    assert main(["report", "out", "-f", format, "-o", f"made/report.{format}"]) == 0
    written = (place / f"made/report.{format}").read_text()
    assert capsys.readouterr().out == ""
    assert main(["report", "out/results.json", "-f", format]) == 0
    assert capsys.readouterr().out == written
    if format != "html":
        assert written == registry.get("reports", format)(
            record_file.read(place / "out/results.json")
        )


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("r.html", "<!DOCTYPE html>"),
        ("r.HTM", "<!DOCTYPE html>"),
        ("r.md", "# "),
        ("r.json", "{"),
        ("r.sarif", "{"),
        ("r.xml", "<?xml"),
        ("page", "<!DOCTYPE html>"),
    ],
)
def test_the_name_of_the_file_chooses_the_format(place: Path, name: str, begins: str) -> None:
    assert main(["report", "out", "-o", name, "-q"]) == 0
    assert (place / name).read_text().lower().startswith(begins.lower())


def test_a_suffix_without_a_format_needs_one(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no format has this suffix" in refused(capsys, "report", "out", "-o", "r.docx")
    assert not (place / "r.docx").exists()
    assert main(["report", "out", "-o", "r.docx", "-f", "text", "-q"]) == 0


def test_the_pictures_of_a_page_are_the_originals_over_what_was_reconstructed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    main(["report", "out"])
    shown = pictures(capsys.readouterr().out)
    truth, of = (
        trace_file.load_truth(Path("trace.truth.pt")),
        record_file.read(Path("out/results.json")),
    )
    found = {
        f["node"]: r.x[[m for m in f["scores"]["matched"]]]
        for f, r in zip(
            of["findings"], record_file.load_reconstructions(of, Path("out")), strict=True
        )
    }
    assert len(shown) == 2 + 2 * sum(
        map(len, found.values())
    )  # the first screen has two of them, too
    for label, pixels in shown:
        kind, record, node = re.fullmatch(r"(\w+), record (\d+) of node (\d+)", label).groups()
        source = truth.of(int(node))[0] if kind == "original" else found[int(node)]
        wanted = (source[int(record) - 1, 0] * 255).round().to(torch.uint8).numpy()
        assert np.array_equal(pixels, wanted), label


def test_a_redacted_page_shows_no_picture_and_needs_no_file(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (place / "out").glob("*.npz"):
        file.unlink()
    capsys.readouterr()
    assert main(["report", "out", "--redact"]) == 0
    page = capsys.readouterr().out
    assert pictures(page) == []
    assert str(place) not in page
    assert "expected the images" in refused(capsys, "report", "out")


def test_originals_may_be_deleted(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "out/originals.npz").unlink()
    capsys.readouterr()
    assert main(["report", "out"]) == 0
    shown = [label.split(",")[0] for label, _ in pictures(capsys.readouterr().out)]
    assert set(shown) == {"reconstruction"}


def test_two_results_are_compared(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["report", "out", "--against", "blind", "-f", "text"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Compared with the earlier results:" in out
    assert "Also different: the configuration" in out


def test_bad_calls_are_one_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "results.json" in refused(capsys, "report", "nowhere")
    assert "did you mean 'html'" in refused(capsys, "report", "out", "-f", "htm")
    assert "expected a leakaudit results file" in refused(
        capsys, "report", str(_file(place / "other.json", "{}"))
    )
    assert "cannot write" in refused(capsys, "report", "out", "-o", "trace.pt/report.html")
    assert "nowhere" in refused(capsys, "report", "out", "--against", "nowhere")


def _file(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# --- choice and size of pictures ----------------------------------------------------------------------------------------


def entries(*psnr: float) -> list[gallery.Entry]:
    some = fitted(finding(0), Finding)
    return [gallery.Entry(some, k, k, value) for k, value in enumerate(psnr)]


def test_best_median_worst_and_random_pictures_are_chosen() -> None:
    chosen = gallery.choose(entries(*map(float, range(101))), 16)
    by_place: dict[str, list[float]] = {}
    for where, one in chosen:
        by_place.setdefault(where, []).append(one.rank)
    assert by_place["best"] == [100, 99, 98, 97]
    assert by_place["worst"] == [3, 2, 1, 0]
    assert by_place["median"] == [52, 51, 50, 49]
    assert len(by_place["random"]) == 4
    assert len({one.record for _, one in chosen}) == 16
    assert chosen == gallery.choose(entries(*map(float, range(101))), 16)


def test_few_pictures_are_all_shown_the_best_first() -> None:
    chosen = gallery.choose(entries(20.0, 40.0, 30.0), 16)
    assert [(where, one.rank) for where, one in chosen] == [
        ("best", 40.0),
        ("median", 30.0),
        ("worst", 20.0),
    ]
    assert [where for where, _ in gallery.choose(entries(200.0, 200.0, 200.0), 16)] == ["", "", ""]


def test_64_large_colour_pictures_stay_under_a_megabyte(tmp_path: Path) -> None:
    """Noise does not compress: the worst case."""
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (64, 3, 224, 224), dtype=np.uint8)
    np.savez(tmp_path / "originals.npz", node0=x)
    np.savez(tmp_path / "reconstructions.npz", x0=x / np.float32(255))
    scores = {
        "psnr": column(*map(float, range(64))),
        "chance": None,
        "labels_found": None,
        "matched": list(range(64)),
        "not_recovered": 0,
    }
    found = [
        finding(0, adversary=f"node:{k + 1}", batch=64, certified=0, scores=scores)
        for k in range(4)
    ]
    made = gallery.with_pictures(record(*found), tmp_path)["gallery"]
    shown = [image for section in made for image in section["images"]]
    assert len(shown) == 64
    assert all(image["found"] and image["original"] for image in shown)
    assert sum(len(image["found"]) + len(image["original"]) for image in shown) < 800_000


# --- score --------------------------------------------------------------------------------------------------------------


def test_results_without_a_truth_are_scored_later_as_if_it_had_been_there(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "blind", "--rescore", "--truth", "trace.truth.pt", "-q"]) == 0
    later, at_once = (record_file.read(place / name / "results.json") for name in ("blind", "out"))
    for one, other in zip(later["findings"], at_once["findings"], strict=True):
        assert one["scores"] == other["scores"]
        assert one["note"] == other["note"]
    assert later["summary"] == at_once["summary"]
    assert later["originals"] == "originals.npz"
    assert later["provenance"]["truth"]["sha256"] == at_once["provenance"]["truth"]["sha256"]
    assert [e["truth"] for e in later["provenance"]["rescored"]] == [
        at_once["provenance"]["truth"]["sha256"]
    ]
    assert len(pictures(_page(capsys, "blind"))) == len(pictures(_page(capsys, "out")))


def _page(capsys: pytest.CaptureFixture[str], name: str) -> str:
    capsys.readouterr()
    assert main(["report", name]) == 0
    return capsys.readouterr().out


def test_one_metric_is_computed_anew_and_the_others_stay(place: Path) -> None:
    of = record_file.read(place / "out/results.json")
    for one in of["findings"]:
        one["scores"]["ssim"] = {"per_image": [0.0, 0.0], "min": 0.0, "median": 0.0, "mean": 0.0}
        one["scores"]["mse"]["mean"] = 7.0
    record_file.write(place / "out/results.json", of)
    assert main(["report", "out", "--rescore", "--metric", "ssim", "-o", "again", "-q"]) == 0
    new = record_file.read(place / "again/results.json")
    assert all(f["scores"]["ssim"]["min"] == pytest.approx(1.0) for f in new["findings"])
    assert all(f["scores"]["mse"]["mean"] == 7.0 for f in new["findings"])
    assert record_file.read(place / "out/results.json") == of
    assert new["provenance"]["rescored"][0]["metrics"] == ["ssim"]


@pytest.mark.slow
def test_lpips_is_added_to_an_attack_that_ran_without(place: Path, shared_data: Any) -> None:
    weights = next(shared_data("lpips").glob("*squeeze*.npz"))
    assert (
        main(
            [
                "report",
                "out",
                "--rescore",
                "--metric",
                "lpips",
                "--lpips-weights",
                str(weights),
                "-q",
            ]
        )
        == 0
    )
    of = record_file.read(place / "out/results.json")
    assert all(v < 1e-3 for f in of["findings"] for v in f["scores"]["lpips"]["per_image"])
    assert "squeeze" in of["metrics"]["lpips"]


def test_scores_that_cannot_be_had_are_refused_and_nothing_is_written(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "do not name a truth file" in refused(capsys, "report", "--rescore", "blind")
    assert "did you mean 'ssim'" in refused(capsys, "report", "--rescore", "out", "--metric", "sim")
    assert "lpips could not be computed for any record" in refused(
        capsys,
        "report",
        "--rescore",
        "out",
        "--metric",
        "lpips",
        "--lpips-weights",
        "off",
        "-o",
        "x",
    )
    main([*RECORD, "-o", "other.pt", "--seed", "1"])
    assert "expected the truth of recording" in refused(
        capsys, "report", "--rescore", "out", "--truth", "other.truth.pt"
    )
    of = record_file.read(place / "out/results.json")
    changed(
        place / "out/results.json",
        provenance={**of["provenance"], "truth": {"sha256": "0" * 64, "path": "trace.truth.pt"}},
    )
    assert "another sha256" in refused(capsys, "report", "--rescore", "out")
    changed(
        place / "out/results.json",
        provenance={**of["provenance"], "truth": {"sha256": None, "path": "gone.pt"}},
    )
    assert "gone.pt" in refused(capsys, "report", "--rescore", "out")
    changed(place / "out/results.json", **of)
    (place / "out/reconstructions.npz").unlink()
    assert "expected the saved reconstruction" in refused(
        capsys, "report", "--rescore", "out", "-o", "x"
    )
