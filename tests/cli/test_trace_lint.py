"""`leakaudit trace lint` as users meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leakaudit.cli import main

RECORD = [
    "--nodes",
    "4",
    "--graph",
    "ring",
    "--rounds",
    "6",
    "--data",
    "gaussians",
    "--model",
    "logistic",
    "--states",
    "-q",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lint")
    assert main(["record", "pdmm", *RECORD, "-o", str(folder / "clean.pt")]) == 0
    claim = [
        part
        for s in ("epsilon=1", "noise=step", "horizon=6", "order=adapt")
        for part in ("--set", s)
    ]
    assert (
        main(
            ["record", "dpsgd", *RECORD, *claim, "--samples", "5", "-o", str(folder / "claimed.pt")]
        )
        == 0
    )
    loud = [part for s in ("epsilon=100", "records=5") for part in ("--set", s)]
    assert (
        main(["record", "dpnorm", *RECORD, *loud, "--samples", "5", "-o", str(folder / "norm.pt")])
        == 0
    )
    return folder


@pytest.fixture(autouse=True)
def _inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def test_a_clean_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "lint", "clean.pt", "--strict"]) == 0
    said = capsys.readouterr().out
    assert "0 findings. A trace cannot show every pitfall" in said
    assert "Not examined: the noise, its seed, and gradients of single records" in said
    assert main(["trace", "lint", "clean.pt", "--truth", "clean.truth.pt"]) == 0
    assert "Not examined" not in capsys.readouterr().out
    assert main(["trace", "lint", "clean.pt", "--truth", "clean.truth.pt", "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_findings_are_printed_and_strict_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "lint", "claimed.pt"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("UNSUPPORTED P02 adjacency: (1, 0.001) of Fukami et al.")
    assert "replacing a record can change a gradient twice as much" in said
    assert main(["trace", "lint", "claimed.pt", "--strict", "-f", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(p["code"], p["verdict"]) for p in found] == [
        ("P02", "UNSUPPORTED"),
        ("P03", "UNCLAIMED"),
    ]
    assert set(found[0]) == {"code", "name", "verdict", "says", "figures", "fix"}
    assert found[0]["figures"]["all"] > 2 * found[0]["figures"]["claimed"]


def test_the_truth_adds_what_a_trace_cannot_show(capsys: pytest.CaptureFixture[str]) -> None:
    def codes(*more: str) -> set[str]:
        assert main(["trace", "lint", "norm.pt", "-f", "json", *more]) == 0
        return {p["code"] for p in json.loads(capsys.readouterr().out)}

    assert codes("--truth", "norm.truth.pt") - codes() == {"P05", "P19"}


def test_notes_alone_are_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "lint", "norm.pt", "--truth", "none", "--strict"]) == 0
    assert "UNCLAIMED  P03 unit of privacy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["nowhere.pt"], "nowhere.pt"),
        (["clean.pt", "--truth", "norm.truth.pt"], "expected the truth of recording"),
        (["clean.truth.pt"], "truth"),
        (["clean.pt", "--truth", "clean.pt"], "truth"),
    ],
)
def test_bad_input_gets_one_line(
    given: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "lint", *given, "-q"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert says in error
