"""results.json: what goes in comes out, what is wrong is refused, and a file is whole or absent."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from leakaudit._util.files import replacing
from leakaudit.core.errors import LeakauditError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import Graph, Layout, TaskSpec, Trace, Truth
from leakaudit.reporting.findings import findings
from leakaudit.reporting.results import model, provenance, record_file
from leakaudit.reporting.results.model import Provenance
from leakaudit.scoring.scoring import score

Record = dict[str, Any]
SPEC = TaskSpec("mlp", shape=(1, 8, 8), levels=255, data="faces")
TRACE = Trace(
    "pdmm", {}, SPEC, Graph(2, ((0, 1),)), Layout(("w",), ((4,),)), (0, 4), 3, (), id="run"
)


def truth() -> Truth:
    x = torch.randint(0, 256, (2, 1, 8, 8), generator=torch.Generator().manual_seed(0)) / 255
    return Truth("run", SPEC, x, torch.tensor([1, 0]), torch.arange(2), torch.arange(2), x[:0])


def attacked(residual: float = 1e-9) -> list[Reconstruction]:
    own = truth()
    return [
        Reconstruction(
            n, "exact", own.x[[n]], own.y[[n]], Certificate.EXACT, residual, 0.5, "a note"
        )
        for n in (0, 1)
    ]


def leak(node: int) -> GradientLeak:
    rounds, combination = torch.tensor([0, 1]), torch.tensor([[1.0, -1.0]])
    return GradientLeak(
        node,
        rounds,
        combination,
        torch.zeros(1, 4),
        torch.tensor([1e-8]),
        (0, 4),
        batch=1,
        formula="z1 - z0",
    )


def source(**settings: Any) -> Provenance:
    return provenance.collect(
        TRACE,
        settings=settings,
        seeds={"attack": 0},
        device="cpu",
        started=datetime(2030, 1, 31, 13, tzinfo=timezone(timedelta(hours=1))),
        seconds=1.5,
        trace_sha256="0" * 64,
    )


def record(own: Truth | None = None, **settings: Any) -> Record:
    found = attacked()
    entries = [
        findings.finding(leak(f.node), f, s) for f, s in zip(found, score(found, own), strict=True)
    ]
    lpips = "not measured (no weights)"
    out = findings.build(TRACE, entries, source(**settings), not_tried=["dlg"], lpips=lpips)
    drawn = replace(out, picture="grid.png", files={"grid.png": "2" * 64})
    return model.plain(drawn)


def put(record: Record, place: str, value: object) -> Record:
    """A copy with one entry set; a place is written as in the messages."""
    out = copy.deepcopy(record)
    *way, last = place.replace("[", ".").replace("]", "").split(".")
    inner: Any = out
    for key in way:
        inner = inner[int(key) if key.isdigit() else key]
    inner[last] = value
    return out


@pytest.mark.parametrize("own", [truth(), None])
def test_what_is_written_is_read(tmp_path: Path, own: Truth | None) -> None:
    wanted = record(own, mode="auto", steps=300, tolerance=1e-6, names=["ü", "\ud800"])
    record_file.write(tmp_path / "results.json", wanted)
    assert record_file.read(tmp_path / "results.json") == wanted
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_scores_are_per_image_with_min_median_and_mean() -> None:
    scores = record(truth())["findings"][0]["scores"]
    assert scores["psnr"] == {"per_image": [200.0], "min": 200.0, "median": 200.0, "mean": 200.0}
    assert scores["exact"]["per_image"] == scores["label_correct"]["per_image"] == [True]
    assert scores["chance"] == 0.5
    assert record(None)["findings"][0]["scores"] is None
    assert "no truth file: not scored" in record(None)["findings"][0]["note"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "place",
    [
        "findings[0].residual",
        "findings[1].scores.psnr.per_image[0]",
        "provenance.settings.lr",
        "provenance.seconds",
    ],
)
def test_numbers_that_json_cannot_hold_are_never_written(
    tmp_path: Path, place: str, bad: float
) -> None:
    wrong = (
        put(record(truth()), place, bad)
        if not place.endswith("[0]")
        else put(record(truth()), place[:-3], [bad])
    )
    with pytest.raises(LeakauditError) as caught:
        record_file.write(tmp_path / "results.json", wrong)
    assert place in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_residual_that_is_not_finite_becomes_null() -> None:
    found = attacked(math.nan)[0]
    assert findings.finding(leak(0), found, score(found, None)[0]).residual is None


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("findings[0].node", True, "findings[0].node: expected a whole number, got True"),
        ("findings[0].node", 1.5, "findings[0].node: expected a whole number, got 1.5"),
        ("findings[0].surprise", 1, "findings[0]: unknown entry 'surprise'"),
        (
            "findings[1].certificate.name",
            "CERTAIN",
            "findings[1].certificate.name: expected 'APPROXIMATE' or 'EXACT' or 'FAILED'",
        ),
        (
            "findings[0].scores.exact.per_image",
            [1],
            "findings[0].scores.exact.per_image[0]: expected true or false or null, got 1",
        ),
        (
            "findings[0].images",
            {"file": "../x.npz", "x": "x0", "y": None},
            "findings[0].images.file: expected a file name without a folder",
        ),
        ("findings", {}, "findings: expected a list"),
        (
            "picture",
            "https://example.org/a.png",
            "picture: expected a file name without a folder or null",
        ),
        ("picture", ".hidden", "picture: expected a file name"),
        ("provenance.started", "yesterday", "provenance.started: expected a time in UTC"),
        ("provenance.digest", "0" * 63, "provenance.digest: expected a sha256"),
        ("provenance.settings", {1: 2}, "a key of provenance.settings: expected text, got 1"),
        ("version", 3, "written by a newer leakaudit (format version 3"),
        ("version", "1", "version: expected 1 or 2"),
        ("kind", "horoscope", "expected kind to be one of attack, "),
        ("schema", "other", "expected a leakaudit results file"),
    ],
)
def test_a_departure_from_the_schema_is_named_with_its_place(
    place: str, value: object, said: str
) -> None:
    with pytest.raises(LeakauditError) as caught:
        record_file.validate(put(record(truth()), place, value))
    assert said in str(caught.value)


def test_every_entry_is_needed() -> None:
    whole = record(truth())
    for key in set(whole) - {
        "schema",
        "kind",
        "attacks",
        "originals",
        "files",
    }:  # the last three are younger than version 1
        with pytest.raises(LeakauditError, match=f"{key!r} is missing"):
            record_file.validate({k: v for k, v in whole.items() if k != key})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1, 2]",
        "null",
        '{"schema": NaN}',
        "[" * 100_000,
        '{"a": ' + "9" * 5000 + "}",
        "\xff\xfe",
    ],
)
def test_files_that_are_no_record_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(LeakauditError) as caught:
        record_file.read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(LeakauditError, match=r"nowhere\.json"):
        record_file.read(tmp_path / "nowhere.json")


def test_an_exception_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    record_file.write(path, record())
    before = path.read_bytes()

    def half() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    with pytest.raises(LeakauditError):
        record_file.write(path, put(record(), "complete", "perhaps"))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LeakauditError, match=r"^cannot write .*--output$"):
        record_file.write(tmp_path / "file" / "results.json", record())
    (tmp_path / "results.json").mkdir()
    with pytest.raises(LeakauditError, match="cannot write"):
        record_file.write(tmp_path / "results.json", record())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "results.json"]


def test_kept_reconstructions_are_scored_again_to_the_same_numbers(tmp_path: Path) -> None:
    found = [
        *attacked(),
        Reconstruction(1, "none", torch.empty(0, 1, 8, 8), None, Certificate.FAILED, 1.0),
    ]
    images = record_file.save_reconstructions(tmp_path / "reconstructions.npz", found)
    scores = score(found, truth())
    entries = [
        findings.finding(leak(f.node), f, s, i)
        for f, s, i in zip(found, scores, images, strict=True)
    ]
    whole = findings.build(TRACE, entries, source(), not_tried=["dlg"], lpips="off")
    record_file.keep(whole, tmp_path, report=False)
    again = record_file.load_reconstructions(record_file.read(tmp_path / "results.json"), tmp_path)
    assert score(again, truth()) == scores
    assert all(torch.equal(a.x, f.x) for a, f in zip(again, found, strict=True))


def test_reconstructions_that_are_gone_are_said_so(tmp_path: Path) -> None:
    with pytest.raises(LeakauditError, match="was not stored"):
        record_file.load_reconstructions(record(), tmp_path)
    gone = {
        **put(record(), "findings[0].images", {"file": "a.npz", "x": "x0", "y": None}),
        "files": {"a.npz": "0" * 64},
    }
    with pytest.raises(LeakauditError, match="expected the saved reconstruction 'x0'"):
        record_file.load_reconstructions(gone, tmp_path)


def test_the_digest_is_that_of_the_settings_and_not_of_their_order() -> None:
    assert provenance.digest({"a": 1, "b": [2.5, None]}) == provenance.digest(
        {"b": [2.5, None], "a": 1}
    )
    assert provenance.digest({"a": 1}) != provenance.digest({"a": 2})
    assert provenance.digest({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()
    with pytest.raises(LeakauditError, match="expected JSON values"):
        provenance.digest({"a": math.nan})


def test_the_schema_is_plain_json() -> None:
    assert json.loads(json.dumps(record(truth()), allow_nan=False)) == record(truth())


def test_the_provenance_names_versions_and_time_in_utc() -> None:
    said = source(steps=3)
    assert said.started == datetime(2030, 1, 31, 12, tzinfo=UTC).isoformat()
    assert str(said.versions["torch"]).startswith(torch.__version__.split("+")[0])
    assert {
        "leakaudit",
        "torchvision",
        "numpy",
        "scikit-image",
        "lpips",
        "python",
    } <= said.versions.keys()
    assert said.threads == torch.get_num_threads()
