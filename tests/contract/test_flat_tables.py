"""Tables of results: plain cells, names that stay inert in spreadsheets and in LaTeX, data frames."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import RECORDS, Record, finding, record

import leakaudit as la
from leakaudit import registry
from leakaudit._util import separated
from leakaudit.errors import LeakauditError
from leakaudit.rendering import latex, plots
from leakaudit.results import flat, model

TABLES = [
    (kind, name)
    for kind in ("attack", "audit", "gate", "not scored", "nothing", "failed", "hostile")
    for name in flat.NAMES[RECORDS[kind]["kind"]]
]
FORMULAS = (
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    " =1",
    "\t=1",
    "＝1",
    "a;=1+1",
    "\r\n=cmd|' /C calc'!A0",
)


def rendered(format: str, of: Record, **options: Any) -> str:
    text: str = registry.get("reports", format)(of, **options)
    return text


@pytest.mark.parametrize(("kind", "name"), TABLES)
def test_every_table_has_plain_cells_in_every_format(kind: str, name: str) -> None:
    made = flat.table(model.of_any(RECORDS[kind]), name)
    assert len(set(made.columns)) == len(made.columns)
    assert all(column.replace("_", "").isalnum() for column in made.columns)
    for row in made.rows:
        assert len(row) == len(made.columns)
        assert all(cell is None or isinstance(cell, str | int | float) for cell in row)
    text = rendered("csv", RECORDS[kind], table=name)
    read = list(csv.reader(io.StringIO(text, newline="")))
    assert read[0] == list(made.columns)
    assert len(read) == len(made.rows) + 1
    assert {len(row) for row in read} == {len(made.columns)}
    assert text.count("\n") == text.count("\r\n") == len(read)
    rows = json.loads(rendered("json", RECORDS[kind], table=name))
    assert [list(row) for row in rows] == [list(made.columns)] * len(made.rows)
    page = rendered("latex", RECORDS[kind], table=name)
    assert page.isascii()
    assert page.count(r"\begin{") == page.count(r"\end{")


def test_a_table_says_what_the_record_says() -> None:
    (first, second) = flat.table(model.of_any(RECORDS["attack"])).dicts()
    assert (first["node"], first["psnr_median"], first["exact"]) == (0, 40.0, 0)
    assert (second["certificate"], second["records"], second["recovered"]) == ("exact", 1, 1)
    verdicts = flat.table(model.of_any(RECORDS["audit"])).dicts()
    assert (verdicts[1]["epsilon"], verdicts[1]["rate"]) == (math.inf, 0.15)
    assert isinstance(verdicts[1]["rate_low"], float)
    assert verdicts[1]["rate_low"] == pytest.approx(0.0321, abs=1e-4)  # Clopper and Pearson
    assert verdicts[1]["rate_high"] == pytest.approx(0.3789, abs=1e-4)
    (measure,) = flat.table(model.of_any(RECORDS["gate"]), "measures").dicts()
    assert (measure["measure"], measure["seed"], measure["value"]) == ("psnr", 0, 30.0)


def test_an_unknown_table_is_refused_with_the_known_ones() -> None:
    with pytest.raises(LeakauditError, match="expected one of rules, measures for the results of"):
        rendered("csv", RECORDS["gate"], table="findings")


# --- comma-separated values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", FORMULAS)
def test_no_name_acts_as_a_formula(text: str) -> None:
    page = rendered("csv", record(finding(0, attack=text, note=text), name=text))
    for separator in (",", ";"):
        for row in csv.reader(io.StringIO(page, newline=""), delimiter=separator):
            for cell in row:
                assert not cell.strip().startswith(("=", "+", "-", "@", "＝")), (separator, cell)
    assert "'" in page


def test_numbers_stay_numbers() -> None:
    text = separated.text(["a"], [[-1.5], [math.inf], [None], [True], [math.nan], ['say "x"'], [3]])
    assert text.split("\r\n") == ['"a"', "-1.5", "inf", "", "true", "", '"say ""x"""', "3", ""]


@settings(max_examples=200, derandomize=True)
@given(st.text())
def test_any_text_is_one_cell(text: str) -> None:
    page = separated.text(["a", "b"], [[text, 1]])
    read = list(csv.reader(io.StringIO(page, newline="")))
    assert read[0] == ["a", "b"]
    assert read[1][1] == "1"
    assert not read[1][0].startswith(("=", "+", "-", "@"))


# --- LaTeX ------------------------------------------------------------------------------------------------------------


@settings(max_examples=200, derandomize=True)
@given(st.text())
def test_text_in_latex_has_no_command_of_its_own(text: str) -> None:
    shown = latex.escape(text)
    assert shown.isascii()
    groups = shown.replace(r"\{", "").replace(r"\}", "")
    assert groups.count("{") == groups.count("}")
    for character in "&%$#_":
        assert shown.count(character) == shown.count(f"\\{character}")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b & 5%", r"a\_b \& 5\%"),
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("ε é ï", r"\ensuremath{\varepsilon} \'{e} \" {\i }".replace('\\" {', '\\"{')),
        ("顔", "?"),
        ("[0]", "{}[0]"),
    ],
)
def test_characters_of_latex_are_escaped(text: str, shown: str) -> None:
    assert latex.escape(text) == shown


def test_a_value_above_the_cap_is_given_as_such() -> None:
    page = rendered("latex", RECORDS["attack"])
    assert rf"$>${plots.PSNR_SHOWN:g} & " in page
    assert "200" not in page
    assert f"A PSNR above {plots.PSNR_SHOWN:g}" in page


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="LaTeX is not installed")
def test_tables_compile(tmp_path: Path) -> None:
    long = record(*(finding(k % 8, 20.0) for k in range(90)))
    parts = [rendered("latex", RECORDS[kind], table=name) for kind, name in TABLES]
    parts.append(rendered("latex", long))
    every = "".join(chr(k) for k in range(32, 0x600))
    parts += [latex.escape(every[k : k + 50]) for k in range(0, len(every), 50)]
    head = r"\documentclass{article}\usepackage{booktabs}\usepackage{longtable}\begin{document}"
    text = "\n\n".join([head, *parts, r"\end{document}"])
    (tmp_path / "paper.tex").write_text(text)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "longtable" in parts[len(TABLES)]


# --- data frames ------------------------------------------------------------------------------------------------------


def test_results_become_data_frames() -> None:
    pytest.importorskip("pandas")
    audit = model.fitted(RECORDS["audit"], model.AuditRecord)
    assert list(audit.to_pandas()["verdict"]) == ["REFUTED", "INCONCLUSIVE"]
    assert list(audit.to_pandas("curves")["psnr_best"]) == [30.0, 30.0]
    assert la.to_pandas(list(audit.findings)).shape == (6, len(flat.FINDING))
    assert la.table(audit, "curves")[0]["attack"] == "auto"
    with pytest.raises(LeakauditError, match="a list has a single table"):
        la.table(list(audit.findings), "curves")
    wrong: Any = {"a": 1}
    with pytest.raises(LeakauditError, match="expected the results of audit, check or sweep"):
        la.table(wrong)


def test_scores_become_rows() -> None:
    scores = [la.Score(0, "dlg", matched=(0, None), psnr=(20.0, None)), la.Score(1, "dlg")]
    first, second = la.table(scores)
    assert (first["node"], first["records"], first["recovered"]) == (0, 2, 1)
    assert (first["psnr_best"], second["psnr_best"]) == (20.0, None)


def test_without_pandas_one_line_says_what_to_install() -> None:
    probe = (
        "import sys\n"
        "sys.modules['pandas'] = None\n"
        "import leakaudit as la\n"
        "try:\n"
        "    la.to_pandas([])\n"
        "except la.LeakauditError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "data frames need pandas: pip install 'leakaudit[pandas]'\n"
