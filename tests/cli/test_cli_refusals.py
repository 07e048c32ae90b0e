"""What cannot be used ends with one clear line and code 2, and no file is touched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from invoked import RECORD, refused

import leakaudit as la
from leakaudit.cli import main

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["attack", "absent.pt"], "absent.pt"),
        (
            ["record", "dpsgd", "--node", "3"],
            "record: there is no option --node; did you mean --nodes?",
        ),
        (["attack", "trace.pt", "--atack=dlg"], "no option --atack; did you mean --attack?"),
        (["trace", "info", "trace.pt", "--whatever"], "trace info: there is no option"),
        (["attack", "trace.pt", "--attack", "analytc"], "did you mean 'analytic'"),
        (
            ["attack", "trace.pt", "--node", "9"],
            "node 9 does not exist (the trace has nodes 0 to 3)",
        ),
        (["attack", "trace.pt", "--as", "node:7"], "node 7 does not exist"),
        (["attack", "trace.pt", "--as", "edges:0-2"], "edge 0-2 does not exist"),
        (["attack", "trace.pt", "--as", "everyone"], "expected eavesdropper"),
        (["attack", "trace.pt", "--rounds", "five"], "expected A:B"),
        (["attack", "trace.pt", "--rounds", "90:99"], "expected rounds between 0 and"),
        (["attack", "trace.pt", "--rounds", "90:"], "got rounds from 90"),
        (["bound", "trace.pt", "--epsilon", "nan"], "expected --epsilon > 0 and finite, got nan"),
        (["bound", "trace.pt", "--delta", "2"], "expected --delta between 0 and 1, got 2"),
        (["attack", "trace.pt", "--truth", "nowhere.pt"], "nowhere.pt does not exist"),
        (
            ["attack", "trace.pt", "--set", "depth=3", "--attack", "analytic"],
            "has no parameter 'depth'",
        ),
        (["attack", "trace.pt", "-f", "docx"], "there is no report 'docx'"),
        (["attack", "trace.pt", "-f", "pdf"], "pdf is not text; write it with"),
        (["attack", "trace.pt", "-o", "trace.pt/out"], "cannot be written"),
        (["attack", "trace.pt", "-o", "/proc/leakaudit"], "cannot be written"),
        (["attack", "trace.pt", "--threads", "many"], "threads"),
        (["attack", "trace.pt", "--device", "abacus"], "device 'abacus'"),
        (["attack"], "expected a trace, or --gradient FILE with --weights and --model"),
        (
            ["attakc"],
            "there is no command 'attakc'; did you mean 'attack'?; see 'leakaudit --help'",
        ),
        (["record"], "name a victim"),
        (["record", "pdm", "-o", "x.pt"], "did you mean 'pdmm'"),
        (["record", "pdmm", "-o", "x.pt", "--set", "alfa=1"], "did you mean 'alpha'"),
        (["record", "pdmm", "-o", "x.pt", "--set", "rho=big"], "rho"),
        (["record", "pdmm", "-o", "x.pt", "--set", "theta=2"], "theta"),
        (["record", "pdmm", "-o", "x.pt", "--data", "npz:absent.npz"], "absent.npz"),
        (["record", "pdmm", "-o", "x.pt", "--nodes", "200"], "need 200 records"),
        (["record", "pdmm", "-o", "x.pt", "--graph", "torus"], "unknown graph 'torus'"),
        (["record", "pdmm", "-o", "x.pt", "--model", "transformer"], "model"),
        (["record", "pdmm", "-o", "no/such/folder/x.pt"], "no/such/folder"),
        (["record", "pdmm", "-o", "x.pt", "--max-bytes", "1MB"], "--rounds"),
        (["record", "pdmm", "-o", "x.pt", "--model", "absent:module"], "absent"),
        (["trace", "info", "absent.pt"], "absent.pt"),
        (["trace", "convert", "trace.pt", "trace.xyz"], "xyz"),
    ],
)
def test_bad_input_gets_one_line_and_code_two(
    place: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    assert said in refused(capsys, *argv)


@pytest.mark.parametrize(
    "content", [b"", b"hello, this is no trace\n", b"PK\x03\x04 not a zip", b"\x80\x02}q\x00."]
)
def test_files_that_are_no_traces(
    place: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (place / "bad.pt").write_bytes(content)
    assert "bad.pt" in refused(capsys, "attack", "bad.pt")


def test_a_truncated_trace_and_flipped_bytes(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (place / "trace.pt").read_bytes()
    (place / "short.pt").write_bytes(whole[: len(whole) // 2])
    assert "short.pt" in refused(capsys, "attack", "short.pt")
    flipped = bytearray(whole)
    flipped[len(flipped) // 2] ^= 0xFF
    (place / "trace.pt").write_bytes(flipped)
    assert "sha256" in refused(capsys, "attack", "trace.pt")
    assert "sha256" in refused(capsys, "trace", "verify", "trace.pt")


def test_another_runs_truth_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RECORD, "--seed", "5", "-o", "other.pt"]) == 0
    assert "name the matching file with --truth" in refused(
        capsys, "attack", "trace.pt", "--truth", "other.truth.pt"
    )


def rewritten(place: Path, **changes: Any) -> None:
    """Save the trace again with other contents, through the public recorder."""
    trace = replace(la.load("trace.pt"), **changes)
    (m,) = trace.messages
    about: dict[str, Any] = {
        "protocol": trace.protocol,
        "task": trace.task,
        "graph": trace.graph,
        "params": trace.params,
    }
    with la.Recorder(
        place / "changed.pt",
        options=la.RecorderOptions(layout=trace.layout, check=False),
        **about,
    ) as recorder:
        for k in range(len(m)):
            recorder.send(
                int(m.round[k]),
                int(m.src[k]),
                int(m.dst[k]),
                m.kinds[m.kind[k]],
                m.payload[m.row[k]],
                secure=bool(m.secure[k]),
            )


def test_nan_in_a_message_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = la.load("trace.pt")
    (m,) = trace.messages
    payload = m.payload.clone()
    k = int(((m.round == 3) & (m.src == 1) & (m.dst == 2)).nonzero())
    payload[m.row[k], 7] = float("nan")
    rewritten(place, messages=(replace(m, payload=payload),))
    line = refused(capsys, "attack", "changed.pt")
    assert "1 -> 2 of round 3" in line
    assert "non-finite" in line
    assert main(["attack", "changed.pt", "-q", "-o", "out", "--rounds", "0:3", "--node", "0"]) == 0


def test_an_unknown_protocol_and_a_wrong_model(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(place, protocol="pigeon")
    assert "there is no victim 'pigeon'" in refused(capsys, "attack", "changed.pt")
    trace = la.load("trace.pt")
    rewritten(place, task=replace(trace.task, args={"hidden": 33}))
    assert "wrong model for the trace" in refused(capsys, "attack", "changed.pt")


@pytest.mark.parametrize("verb", ["attack", "explain"])
@pytest.mark.parametrize("number", ["0", "-5"])
def test_no_gradients_to_examine_are_refused(
    verb: str, number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were called not determined, with code 0."""
    monkeypatch.chdir(tmp_path)
    about = ("--nodes", "3", "--rounds", "2", "--data", "gaussians", "--model", "logistic")
    assert main(["record", "dpsgd", "-o", "trace.pt", *about, "-q"]) == 0
    before = {file.name for file in tmp_path.iterdir()}
    assert main([verb, "trace.pt", f"--gradients={number}"]) == 2
    assert {file.name for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf"])
def test_a_time_limit_that_is_none_is_refused(
    seconds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A negative one replaced complete results by those of an interrupted run."""
    monkeypatch.chdir(tmp_path)
    assert main(["attack", "trace.pt", f"--max-seconds={seconds}", "-o", "out"]) == 2
    assert not list(tmp_path.iterdir())


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recording of three nodes."""
    monkeypatch.chdir(tmp_path)
    about = ("--nodes", "3", "--rounds", "2", "--data", "gaussians", "--model", "logistic")
    assert main(["record", "dpsgd", "-o", "trace.pt", *about, "-q"]) == 0
    return tmp_path


@pytest.mark.parametrize("verb", ["attack", "explain"])
def test_nobody_learns_about_its_own_data(
    verb: str, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that "recovered" its own picture was a certain leak."""
    assert "controlled by" in refused(capsys, verb, "trace.pt", "--as", "node:1", "--node", "1")
    assert sorted(file.suffix for file in recording.iterdir()) == [
        ".pt",
        ".pt",
        ".sha256",
        ".sha256",
    ]


def test_a_page_replaces_no_recording_and_no_results(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {file: file.read_bytes() for file in recording.iterdir()}
    for own in ("trace.pt", "trace.truth.pt"):
        assert "choose another file" in refused(capsys, "bound", "trace.pt", "-o", own)
    assert "name the trace" in refused(capsys, "record", "dpsgd", "-o", "trace.truth.pt")
    assert main(["attack", "trace.pt", "-o", "out", "-q"]) in (0, 3)
    kept |= {file: file.read_bytes() for file in (recording / "out").iterdir()}
    for own, form in (("results.json", "json"), ("reconstructions.npz", "html")):
        assert "choose another file" in refused(
            capsys, "report", "out", "-o", f"out/{own}", "-f", form
        )
    assert {file: file.read_bytes() for file in kept} == kept


def test_a_page_has_the_format_of_its_suffix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RECORD, "-o", "trace.pt"]) == 0
    for form, name in (("json", "b.html"), ("html", "b.json"), ("html", "b.pdf")):
        said = refused(capsys, "bound", "trace.pt", "-f", form, "-o", name)
        assert f"-f {form} does not fit {name}" in said
    assert main(["bound", "trace.pt", "-o", "b.json", "-q"]) == 0
    assert Path("b.json").read_text().startswith("[")
    assert main(["bound", "trace.pt", "-f", "json", "-o", "b.txt", "-q"]) == 0


def test_a_recording_replaces_an_earlier_one_only_if_there_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = [word for word in RECORD if word != "-q"]
    Path("empty").mkdir()
    for target in ("empty", "new/", "new.pt"):
        capsys.readouterr()
        assert main([*record, "-o", target]) == 0
        assert "in place of an earlier one" not in capsys.readouterr().err
        assert main([*record, "-o", target]) == 0
        assert "in place of an earlier one" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["bound", "audit"])
def test_an_empty_scenario_is_refused(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit of a file that was cut off ran with the defaults, and passed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.toml").touch()
    assert "is empty" in refused(capsys, verb, "empty.toml")
    assert [file.name for file in tmp_path.iterdir()] == ["empty.toml"]
