"""Tables of results: plain cells, names that stay inert in spreadsheets and in LaTeX, data frames."""

from __future__ import annotations

import copy
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
from leakaudit._util import separated
from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError
from leakaudit.core.quantities import QUANTITIES
from leakaudit.reporting.figures import plots
from leakaudit.reporting.findings import flat
from leakaudit.reporting.rendering import latex
from leakaudit.reporting.results import model

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
    made = flat.table(model.of(RECORDS[kind]), name)
    assert len(set(made.columns)) == len(made.columns)
    assert all(column.replace("_", "").isalnum() for column in made.columns)
    for row in made.rows:
        assert len(row) == len(made.columns)
        assert all(cell is None or isinstance(cell, str | int | float) for cell in row)
    text = rendered("csv", RECORDS[kind], table=name)
    read = list(csv.reader(io.StringIO(text, newline="")))
    assert read[0] == list(made.columns)
    assert len(read) == max(1, len(made.rows)) + 1
    if not made.rows:
        assert read[1][0].startswith("No rows: ")
        assert "No rows: " in rendered("latex", RECORDS[kind], table=name)
    assert {len(row) for row in read} == {len(made.columns)}
    assert text.count("\n") == text.count("\r\n") == len(read)
    rows = json.loads(rendered("json", RECORDS[kind], table=name))
    assert [list(row) for row in rows] == [list(made.columns)] * len(made.rows)
    page = rendered("latex", RECORDS[kind], table=name)
    assert page.isascii()
    assert page.count(r"\begin{") == page.count(r"\end{")


def test_a_table_says_what_the_record_says() -> None:
    (first, second) = flat.table(model.of(RECORDS["attack"])).dicts()
    assert (first["node"], first["psnr_median"], first["exact"]) == (0, 40.0, 0)
    assert (second["certificate"], second["records"], second["recovered"]) == ("exact", 1, 1)
    verdicts = flat.table(model.of(RECORDS["audit"])).dicts()
    assert (verdicts[1]["epsilon"], verdicts[1]["rate"]) == (math.inf, 0.15)
    assert isinstance(verdicts[1]["rate_low"], float)
    assert verdicts[1]["rate_low"] == pytest.approx(0.0321, abs=1e-4)  # Clopper and Pearson
    assert verdicts[1]["rate_high"] == pytest.approx(0.3789, abs=1e-4)
    (measure,) = flat.table(model.of(RECORDS["gate"]), "measures").dicts()
    assert (measure["measure"], measure["seed"], measure["value"]) == ("psnr", 0, 30.0)


# --- every column by hand -------------------------------------------------------------


def measured(best: float, median: float, mean: float, *others: float) -> Record:
    """A column of five records, the last of which was not recovered."""
    return {"per_image": [*others, best, None], "min": 0.0, "median": median, "mean": mean}


def flags(*values: bool | None) -> Record:
    return {"per_image": list(values), "min": None, "median": None, "mean": None}


def expected(name: str, best: float, median: float, mean: float) -> dict[str, float]:
    return {f"{name}_best": best, f"{name}_median": median, f"{name}_mean": mean}


SCORES = {
    "psnr": measured(40.0, 21.0, 22.0, 10.0, 20.0, 30.0),
    "ssim": measured(0.9, 0.5, 0.6, 0.1, 0.4, 0.7),
    "lpips": measured(0.1, 0.3, 0.35, 0.2, 0.4, 0.8),
    "relative_error": measured(0.02, 0.06, 0.07, 0.03, 0.08, 0.09),
    "tokens_correct": measured(0.75, 0.55, 0.45, 0.15, 0.25, 0.65),
    "exact": flags(True, False, False, False, None),
    "label_correct": flags(True, True, False, False, None),
    "identified": flags(True, True, True, False, None),
    "chance": 0.01,
    "labels_found": 0.8,
    "not_recovered": 1,
    "matched": [0, 1, 2, 3, None],
}
SCORED = {
    **{"records": 5, "recovered": 4, "exact": 1, "label_correct": 2, "identified": 3},
    "labels_found": 0.8,
    **expected("psnr", 40.0, 21.0, 22.0),
    **expected("ssim", 0.9, 0.5, 0.6),
    **expected("lpips", 0.1, 0.3, 0.35),
    **expected("relative_error", 0.02, 0.06, 0.07),
    **expected("tokens_correct", 0.75, 0.55, 0.45),
}
FOUND = finding(
    1,
    adversary="node:5+node:6",
    certificate="INTERVAL",
    batch=12,
    certified=7,
    scores=SCORES,
    seconds=2.5,
    residual=1e-6,
    cell={"epsilon": 10.0, "seed": 11},
    others=[4, 2],
    leak={
        "kind": "sum",
        "rounds": {"first": 3, "last": 9, "count": 4},
        "rows": 8,
        "formula": "g[1,3]",
        "scope": "",
        "std": 0.125,
    },
)
THREE_OF_TWENTY = {"low": 0.0320709, "high": 0.3789268}  # Clopper and Pearson at 95 %
COUNTED = {name: 31.0 + k for k, name in enumerate(flat.COUNTS)}


def audit() -> Record:
    """An audit whose tables have a value of its own in every cell."""
    of = copy.deepcopy(RECORDS["audit"])
    of["findings"] = [FOUND]
    part = of["audit"]
    verdict = {**part["verdicts"][0], "epsilon": "inf", "node": 6, "p": 0.25}
    verdict["promise"] = {"name": "a claim", "epsilon": 8.0, "delta": 1e-6, "mu": 1.25}
    verdict["figures"] = {"hits": 3, "trials": 20, **COUNTED, "holds": "at most"}
    part["verdicts"] = [verdict]
    values = {"images": 13.0, "best": 30.0, "median": 20.0, "mean": 21.0}
    part["curves"] = [
        {
            **{"epsilon": 10.0, "adversary": "node:3", "attack": "auto"},
            **{"attacked": 14, "refused": 15, "psnr": values},
            "ssim": {"images": 13.0, "best": 0.9, "median": 0.5, "mean": 0.6},
            "relative_error": {"images": 13.0, "best": 0.02, "median": 0.06, "mean": 0.07},
        }
    ]
    allowed = {"epsilon": 10.0, "adversary": "node:3", "chance": 0.95, "psnr": 24.0, "ssim": 0.8}
    part["ceilings"] = [{**allowed, "nodes": [1, 4]}]
    claim = {"source": "Theorem 1", "epsilon": 3.0}
    part["grid"] = [part["grid"][0]]
    part["grid"][0]["views"][0].update(
        exact=5.0, epsilon=6.0, claim=claim, verdict="REFUTED", holds="exact"
    )
    return of


def gate() -> Record:
    of = copy.deepcopy(RECORDS["gate"])
    ruled = {"value": 30.0, "limit": 25.0, "p": 0.125, "accepted": "2030-01-31", "nodes": [5, 6]}
    of["gate"]["rules"] = [{**of["gate"]["rules"][0], **ruled}]
    of["gate"]["cells"][0]["seeds"] = [17]
    return of


def sweep(project: Path) -> Record:
    """One point of two runs, with 20 records in all."""
    path = project / "tests" / "golden" / "records" / "sweep_v2.json"
    of: Record = json.loads(path.read_text(encoding="utf-8"))
    part = of["sweep"]
    at = {"at": {"sigma": 0.5}, "attack": "analytic", "adversary": "node:1"}
    count = {"attacked": 6, "refused": 1, "recovered": 3, "exact": 2, "certified": 4}
    columns = {
        **count,
        **{"returned": 5, "records": 3, "labels": []},
        "psnr": [10.0, 20.0, 60.0],
        "ssim": [0.125, 0.25, 0.75],
        "relative_error": [0.1, 0.2, 0.6],
    }
    other = {**columns, "psnr": [30, 40, 80], "ssim": [0.25, 0.375, 0.875]}
    other["relative_error"] = [0.3, 0.4, 0.8]
    cell = {**part["cells"][0], **at, "records": 10, "says": "why"}
    part["cells"] = [
        {**cell, "seed": 18, "columns": columns},
        {**cell, "seed": 19, "columns": other},
    ]
    statistics = {
        "psnr": {"best": 81.0, "median": 35.0, "mean": 36.0},
        "ssim": {"best": 0.95, "median": 0.35, "mean": 0.45},
        "relative_error": {"best": 0.05, "median": 0.25, "mean": 0.55},
    }
    part["points"] = [
        {**at, **count, "cells": 2, "records": 20, "labels_found": 0.75, **statistics}
    ]
    return of


def by_hand() -> dict[tuple[str, str], dict[str, Any]]:
    """The first row of every table."""
    rate = {f"rate_{end}": pytest.approx(at, abs=1e-6) for end, at in THREE_OF_TWENTY.items()}
    share = {f"share_{end}": pytest.approx(at, abs=1e-6) for end, at in THREE_OF_TWENTY.items()}
    place = {"sigma": 0.5, "attack": "analytic", "adversary": "node:1"}
    return {
        ("audit", "findings"): {
            **{"epsilon": 10.0, "seed": 11, "node": 1, "all_nodes": "1 2 4"},
            **{"adversary": "node:5+node:6", "attack": "analytic", "leak": "sum"},
            **{"first_round": 3, "last_round": 9, "rows": 8, "noise_std": 0.125},
            **{"certificate": "interval", "certified": 7, "batch": 12, **SCORED},
            **{"residual": 1e-6, "seconds": 2.5, "formula": "g[1,3]", "note": "a note on 1"},
        },
        ("audit", "verdicts"): {
            **{"epsilon": math.inf, "adversary": "node:3", "node": 6, "test": "identification"},
            **{"attack": "auto", "guarantee": "a claim", "guarantee_epsilon": 8.0},
            **{"guarantee_delta": 1e-6, "guarantee_mu": 1.25, "verdict": "REFUTED"},
            **{"hits": 3, "trials": 20, "rate": 0.15, **rate, **COUNTED},
            **{"holds": "at most", "p": 0.25, "level": 0.01, "needs": 40, "reason": "measured"},
            "power": "would detect 5",
        },
        ("audit", "curves"): {
            **{"epsilon": 10.0, "adversary": "node:3", "attack": "auto"},
            **{"attacked": 14, "refused": 15, "records": 13.0},
            **expected("psnr", 30.0, 20.0, 21.0),
            **expected("ssim", 0.9, 0.5, 0.6),
            **expected("relative_error", 0.02, 0.06, 0.07),
        },
        ("audit", "ceilings"): {
            **{"epsilon": 10.0, "adversary": "node:3", "chance": 0.95, "psnr": 24.0, "ssim": 0.8},
            "nodes": "1 4",
        },
        ("audit", "views"): {
            **{"epsilon": math.inf, "node": 1, "adversary": "node:3", "mu": 1.5},
            **{"view_epsilon": 5.0, "holds": "exact", "claim": "Theorem 1", "claimed_epsilon": 3.0},
            **{"verdict": "REFUTED", "reason": "no claim"},
        },
        ("gate", "rules"): {
            **{"kind": "budget", "cell": "main/node:3/exact", "measure": "psnr"},
            **{"status": "OVER", "value": 30.0, "limit": 25.0, "p": 0.125},
            **{"accepted": "2030-01-31", "nodes": "5 6", "reason": "30 dB of node 5"},
        },
        ("gate", "measures"): {
            **{"cell": "main/node:3/exact", "check": "main", "adversary": "node:3"},
            **{"attack": "exact", "measure": "psnr", "seed": 17, "value": 30.0},
        },
        ("sweep", "points"): {
            **{**place, "seeds": 2, "attacked": 6, "refused": 1, "records": 20},
            **{"recovered": 3, "share": 0.15, **share, "exact": 2, "certified": 4},
            "labels_found": 0.75,
            **expected("psnr", 81.0, 35.0, 36.0),
            **{"psnr_median_low": 20.0, "psnr_median_high": 40.0},
            **expected("ssim", 0.95, 0.35, 0.45),
            **{"ssim_median_low": 0.25, "ssim_median_high": 0.375},
            **expected("relative_error", 0.05, 0.25, 0.55),
            **{"relative_error_median_low": 0.2, "relative_error_median_high": 0.4},
        },
        ("sweep", "cells"): {
            **{**place, "seed": 18, "status": "done", "attacked": 6, "refused": 1},
            **{"records": 10, "recovered": 3, "exact": 2, "certified": 4},
            **expected("psnr", 60.0, 20.0, 30.0),
            **expected("ssim", 0.75, 0.25, 0.375),
            **expected("relative_error", 0.1, 0.2, 0.3),
            "reason": "why",
        },
    }


def test_every_column_of_every_table_has_the_value_that_the_record_has(project: Path) -> None:
    """Every cell has a value that no other column of its row can be mistaken for."""
    records = {"audit": audit(), "gate": gate(), "sweep": sweep(project)}
    rows = by_hand()
    names = {(kind, name) for kind, of in records.items() for name in flat.NAMES[of["kind"]]}
    assert set(rows) == names
    for (kind, name), wanted in rows.items():
        row = flat.table(model.of(records[kind]), name).dicts()[0]
        for key in row.keys() - wanted.keys():  # a new quantity, which no record here measured
            assert key.startswith(tuple(QUANTITIES))
            assert row.pop(key) is None
        assert row == wanted, name
        assert list(row) == list(wanted), "the columns have changed their order"


def test_an_unknown_table_is_refused_with_the_known_ones() -> None:
    with pytest.raises(LeakauditError, match="expected one of rules, measures for the results of"):
        rendered("csv", RECORDS["gate"], table="findings")


# --- comma-separated values -----------------------------------------------------------


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


# --- LaTeX ----------------------------------------------------------------------------


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


# --- data frames ----------------------------------------------------------------------


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
    columns: dict[str, Any] = {"psnr": (20.0, None)}
    scores = [la.Score(0, "dlg", matched=(0, None), **columns), la.Score(1, "dlg")]
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
