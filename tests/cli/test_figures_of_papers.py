"""Figures and tables as a user asks for them, and the three commands of docs/figures.md with few steps."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from records import RECORDS

from leakaudit.cli import main
from leakaudit.reporting.results import record_file

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results of an audit without files beside them."""
    monkeypatch.chdir(tmp_path)
    of = {**RECORDS["audit"], "picture": None, "originals": None, "files": {}}
    of["findings"] = [{**one, "images": None} for one in of["findings"]]
    record_file.write(tmp_path / "results.json", of)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("a.pdf", b"%PDF-"),
        ("a.png", b"\x89PNG"),
        ("a.svg", b"<?xml"),
        ("a.csv", b'"epsilon"'),
        ("a.tex", b"% needs \\usepackage{booktabs}"),
    ],
)
def test_the_suffix_chooses_the_format(results: Path, name: str, start: bytes) -> None:
    assert main(["report", "results.json", "-o", name, "-q"]) == 0
    assert (results / name).read_bytes().startswith(start)


def test_a_table_and_a_width_are_chosen(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "results.json", "-f", "csv", "--table", "curves"]) == 0
    assert capsys.readouterr().out.startswith('"epsilon","adversary","attack","attacked"')
    for name, width in (("a.pdf", "page"), ("b.pdf", "column")):
        assert main(["report", "results.json", "-o", name, "--width", width, "-q"]) == 0
    assert (results / "a.pdf").read_bytes() != (results / "b.pdf").read_bytes()


@pytest.mark.parametrize("options", ["-f json -o a.txt", "-f csv -o a", "-f markdown -o a.docx"])
def test_a_suffix_that_stands_for_no_other_format_is_kept(results: Path, options: str) -> None:
    assert main(["report", "results.json", *options.split(), "-q"]) == 0
    assert (results / options.split()[-1]).stat().st_size


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("-f markdown --table curves", "--table goes with csv, latex, json, not with markdown"),
        ("-f csv --table points", "expected one of verdicts, curves, ceilings, views, findings"),
        ("-o a.pdf --width wide", "--width: expected column or page, or a number of millimetres"),
        ("-o a.csv --against results.json", "--against does not apply to csv"),
        ("-o a.html --width column", "--width goes with pdf, svg, png, not with html; omit it"),
        ("-f text --width page", "--width goes with pdf, svg, png, not with text; omit it"),
        ("-f json -o a.html", "-f json does not fit a.html, whose suffix stands for html"),
        ("-f pdf -o a.txt", "-f pdf does not fit a.txt, whose suffix stands for text"),
        ("-f csv -o a.TEX", "-f csv does not fit a.TEX, whose suffix stands for latex"),
        ("-o a.docx", "no format has this suffix"),
    ],
)
def test_mistakes_are_one_line(
    results: Path, capsys: pytest.CaptureFixture[str], options: str, says: str
) -> None:
    assert main(["report", "results.json", *shlex.split(options)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.strip().splitlines()) == 1
    assert sorted(path.name for path in results.iterdir()) == ["results.json"]


@pytest.mark.parametrize("name", ["pdf", "png"])
def test_bytes_are_not_printed_to_a_terminal(
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["report", "results.json", "-f", name]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert f"{name} is not text: name a file with -o" in shown.err


def test_bytes_go_to_a_pipe(results: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["report", "results.json", "-f", "png"]) == 0
    assert capfdbinary.readouterr().out.startswith(b"\x89PNG")


def test_a_redacted_figure_names_no_node_and_has_no_picture(results: Path) -> None:
    assert main(["report", "results.json", "--redact", "-o", "a.csv", "-q"]) == 0
    assert main(["report", "results.json", "--redact", "--table", "findings", "-o", "b.csv"]) == 0
    text = (results / "b.csv").read_text()
    assert "a note on" not in text
    assert "g[0,0]" not in text
    assert main(["report", "results.json", "--redact", "-o", "a.pdf", "-q"]) == 0


def commands() -> list[str]:
    page = (PROJECT / "docs/figures.md").read_text()
    found = re.findall(r"^(leakaudit .*?)(?:\s+# .*)?$", page, re.M)
    return [one for one in found if re.search(r"examples/|batch/|dpnorm/", one)]


@pytest.mark.slow
def test_three_commands_make_three_figures(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("audit/dpnorm", "audit/recal", "sweep/batch"):
        text = (PROJECT / f"examples/{name}.toml").read_text()
        fewer = {r"^steps = \d+": "steps = 4", r"^(replays|canary) = \d+": r"\1 = 4"}
        fewer |= {
            r"^epsilon = .*": "epsilon = [inf, 1e6, 1]",
            r"^samples = \[.*": "samples = [1, 2]",
        }
        fewer |= {r"^nodes = \[0, 2\]": "nodes = [0]"}
        for pattern, instead in fewer.items():
            text = re.sub(pattern, instead, text, flags=re.M)
        path = tmp_path / f"examples/{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert len(commands()) == 6
    for command in commands():
        code = main([*shlex.split(command)[1:], "-q"])
        assert code in (0, 1), command  # 1: a claim was refuted
    for name in ("dpnorm.pdf", "recal.pdf", "batch.pdf", "batch-column.pdf"):
        assert (tmp_path / name).read_bytes().startswith(b"%PDF-")
    assert (tmp_path / "dpnorm.svg").read_text().startswith("<?xml")
    assert r"\toprule" in (tmp_path / "dpnorm.tex").read_text()
