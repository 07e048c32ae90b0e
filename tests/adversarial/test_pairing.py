"""Results, pictures and truth of one run are never taken for those of another, whatever id the runs were given."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="arg-type, union-attr"

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flat_recorder import flat_recorder

import leakaudit as la
from leakaudit._util.files import write_tensors
from leakaudit.cli import main
from leakaudit.judging.lint import checks
from leakaudit.reporting.results import record_file
from leakaudit.traces import convert, trace_file
from leakaudit.traces._storage.tree import truth_tree

SPEC = la.TaskSpec("logistic", shape=(1, 4, 4), classes=2, levels=255)
REPORTS = ("text", "markdown", "html", "json", "junit", "sarif", "github")


def record(path: Path, seed: int, **settings: object) -> tuple[la.Trace, la.Truth]:
    """Record one step of FedSGD by two nodes, with the data of a seed, under the id that all runs of this file share."""
    random = torch.Generator().manual_seed(seed)
    task = la.Task.build(SPEC)
    graph = la.Graph(3, ((0, 2), (1, 2)))
    w = torch.randn(task.layout.size, generator=random) * 0.1
    about = {
        "protocol": "fedsgd",
        "task": SPEC,
        "graph": graph,
        "params": {"lr": 0.1},
        "public": {"w0": w},
        **settings,
    }
    with flat_recorder(path, rounds=1, id="nightly", **about) as recorder:
        recorder.send(1, 2, [0, 1], "w", w)
        for node in (0, 1):
            x = (torch.rand(1, *SPEC.shape, generator=random) * 255).round() / 255
            y = torch.tensor([node])
            recorder.truth(node, x, y)
            recorder.send(1, node, 2, "g", task.gradient(w, x, y))
    return recorder.trace, recorder.truth_record


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Recordings a and b of one id; results of a without a truth stand in blind/, with it in seen/."""
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a", 1), ("b", 2)):
        record(Path(f"{name}.pt"), seed)
    for folder, truth, code in (("blind", "none", 3), ("seen", "auto", 0)):
        command = ["attack", "a.pt", "--attack", "analytic", "-o", folder, "--truth", truth, "-q"]
        assert main(command) == code
    return tmp_path


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1, err
    return err


def without(path: Path, **changes: object) -> None:
    """Take `files` out of a record, and change other entries."""
    held = json.loads(path.read_text())
    held.pop("files")
    path.write_text(json.dumps({**held, **changes}))


# --- trace, truth and results -------------------------------------------------------------------------------------------


def test_an_attack_refuses_the_truth_of_another_run_of_the_same_id(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["attack", "a.pt", "--truth", "b.truth.pt", "-o", "mixed", "-q"]) == 2
    assert "has the expected id 'nightly', but belongs to another recording" in one_line(capsys)
    assert not (place / "mixed").exists()


def test_a_score_refuses_the_truth_of_another_run_of_the_same_id(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results without a truth were scored with that of any run of the id before."""
    before = (place / "blind" / "results.json").read_bytes()
    capsys.readouterr()
    assert main(["report", "blind", "--rescore", "--truth", "b.truth.pt", "-q"]) == 2
    assert "belongs to another recording than these results" in one_line(capsys)
    assert (place / "blind" / "results.json").read_bytes() == before
    assert main(["report", "blind", "--rescore", "--truth", "a.truth.pt", "-q"]) == 0
    assert "unverified" not in record_file.read(place / "blind" / "results.json")


def test_a_recording_is_told_apart_wherever_trace_and_truth_meet(tmp_path: Path) -> None:
    (trace, truth), (_, other) = (record(tmp_path / f"{k}.pt", k, keep_states=True) for k in (1, 2))
    assert trace_file.same_run(trace, truth)
    for both in (trace_file.same_run, checks.lint):
        with pytest.raises(la.LeakauditError, match="another recording"):
            both(trace, other)


def test_a_run_that_is_recorded_again_with_the_same_data_is_another_one(tmp_path: Path) -> None:
    """Equal data do not make two runs one: their noise and their schedules may differ."""
    (trace, _), (_, other) = (record(tmp_path / f"{k}.pt", 1) for k in (1, 2))
    with pytest.raises(la.LeakauditError, match="another recording"):
        trace_file.same_run(trace, other)


@pytest.mark.parametrize("form", ["copy.npz", "copy/", "again.pt"])
def test_a_converted_trace_keeps_its_truth(tmp_path: Path, form: str) -> None:
    _, truth = record(tmp_path / "a.pt", 1)
    convert.convert(tmp_path / "a.pt", f"{tmp_path}/{form}")
    if form.endswith(".npz"):
        convert.convert(tmp_path / form, tmp_path / "back.pt")
        form = "back.pt"
    assert trace_file.same_run(trace_file.load(tmp_path / form), truth)


def test_a_user_cannot_give_two_recordings_one_number(tmp_path: Path) -> None:
    chosen = {"provenance": {"recording": "0" * 32}, "private": {"recording": "0" * 32}}
    (a, own), (b, _) = (record(tmp_path / f"{k}.pt", k, **chosen) for k in (1, 2))
    assert "0" * 32 not in (a.recording, own.recording)
    assert a.recording == own.recording != b.recording


# --- files that hold no number ------------------------------------------------------------------------------------------


def bare(path: Path, change: Callable[[la.Truth], la.Truth] = lambda truth: truth) -> None:
    """Take the number out of a truth file, as a program of the user's own writes one."""
    truth = trace_file.load_truth(path)
    plain = {k: v for k, v in truth.provenance.items() if k != "recording"}
    write_tensors(path, truth_tree(change(replace(truth, provenance=plain))))
    trace_file.write_sidecar(path)


def test_a_truth_tied_by_its_id_only_is_said_to_be_wherever_it_is_shown(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare(place / "a.truth.pt")
    for command in (
        ["attack", "a.pt", "--attack", "analytic", "-o", "plain", "-q"],
        ["report", "blind", "--rescore", "--truth", "a.truth.pt", "-q"],
    ):
        capsys.readouterr()
        assert main(command) == 0
        assert record_file.ID_ONLY in " ".join(capsys.readouterr().out.split())
    for folder in ("plain", "blind"):
        assert record_file.read(place / folder / "results.json")["unverified"] == [
            record_file.ID_ONLY
        ]
        assert (
            "only its id ties the truth to the trace" in (place / folder / "report.md").read_text()
        )
        for format in REPORTS:
            assert main(["report", folder, "-f", format, "-o", "page", "-q"]) == 0
            assert "only its id ties the truth" in " ".join((place / "page").read_text().split()), (
                format
            )
        assert main(["report", folder, "--redact", "-o", "page", "-q"]) == 0
        assert "only its id ties the truth" in (place / "page").read_text()


def test_a_truth_of_another_task_is_refused_without_a_number(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The id alone ties them, and what the files hold shows that it does so wrongly."""
    trace = trace_file.load(place / "a.pt")
    truth = trace_file.load_truth(place / "a.truth.pt")
    plain = replace(truth, provenance={})
    assert trace_file.same_run(trace, plain) is False
    for other in (
        replace(plain, task=replace(SPEC, classes=10)),
        replace(plain, node=truth.node + 2),
    ):
        with pytest.raises(la.LeakauditError, match="another task or more nodes"):
            trace_file.same_run(trace, other)
    bare(place / "a.truth.pt", lambda truth: replace(truth, task=replace(SPEC, data="other")))
    capsys.readouterr()
    assert main(["report", "blind", "--rescore", "--truth", "a.truth.pt", "-q"]) == 2
    assert "of another task or other nodes" in one_line(capsys)


# --- results without digests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [["report", "seen"], ["report", "seen", "--rescore", "--truth", "a.truth.pt"]]
)
def test_a_record_that_lost_its_digests_is_refused(
    place: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With them out of the way, pictures of any run were shown as those of the record."""
    without(place / "seen" / "results.json")
    capsys.readouterr()
    assert main([*command, "-q"]) == 2
    assert "'files' contains no SHA-256 of that file" in one_line(capsys)


def test_every_picture_needs_its_digest(place: Path) -> None:
    path = place / "seen" / "results.json"
    whole = json.loads(path.read_text())
    assert set(whole["files"]) == {"originals.npz", "reconstructions.npz", "reconstructions.png"}
    for name in whole["files"]:
        path.write_text(
            json.dumps({**whole, "files": {k: v for k, v in whole["files"].items() if k != name}})
        )
        with pytest.raises(la.LeakauditError, match=name):
            record_file.read(path)


def test_a_record_of_version_1_without_digests_is_shown_as_unverified(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without(place / "seen" / "results.json", version=1)
    for format in REPORTS:
        assert main(["report", "seen", "-f", format, "-o", "page", "-q"]) == 0
        shown = " ".join((place / "page").read_text().split())
        assert "the record contains no digests of the files beside it" in shown, format
        assert ("Not verified: " if format == "html" else "UNVERIFIED: ") in shown, format
    capsys.readouterr()
    assert main(["report", "seen", "--rescore", "-q"]) == 0
    assert "UNVERIFIED" in capsys.readouterr().out
    again = record_file.read(place / "seen" / "results.json")
    assert again["unverified"] == [record_file.UNTIED]
    assert again["summary"].count("UNVERIFIED") == 1
    assert (again["version"], set(again["files"])) == (
        2,
        {"originals.npz", "reconstructions.npz", "reconstructions.png"},
    )


def test_a_record_of_version_1_with_digests_is_believed(place: Path) -> None:
    path = place / "seen" / "results.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 1}))
    assert "unverified" not in record_file.read(path)
