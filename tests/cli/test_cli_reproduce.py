"""`reproduce`, as a user calls it: the list, an item of one's own, kills, resumption, bad input."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="call-overload, index, operator, union-attr"

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoked import refused

from leakaudit.cli import main
from leakaudit.core.errors import LeakauditError
from leakaudit.judging.papers import items
from leakaudit.judging.papers.measured import MeasuredLine, MeasuredPanel
from leakaudit.reporting.figures import curves
from leakaudit.runs.reproducing import picture

CURVES = """
kind = "figure"
title = "Loss against rounds"
place = "Figure 9"
quotes = [ { place = "section 1", text = "The loss falls with the number of rounds." } ]
undetermined = ["the step size"]
chosen = ["alpha = 0.3"]
small = "5 of 8 rounds"
[plan]
seeds = 2
[plan.scenario]
nodes = 3
graph = "ring"
rounds = 8
data = "gaussians"
model = "logistic"
samples = 200
[plan.small.scenario]
rounds = 5
[[plan.line]]
name = "D-PSGD"
scenario = { victim = "dpsgd", set = { alpha = 0.3 } }
[[plan.line]]
name = "D-PSGD, no step"
scenario = { victim = "dpsgd", set = { alpha = 0.0001 } }
[[plan.panel]]
y = "loss"
[[plan.panel]]
y = "accuracy"
lines = ["D-PSGD"]
[[plan.printed]]
line = "D-PSGD"
y = "loss"
value = 0.2
tolerance = 1.0
place = "Table 9"
[[plan.expected]]
says = "training lowers the loss"
rule = "above"
lines = ["D-PSGD, no step", "D-PSGD"]
y = "loss"
"""
WORDS = ("REPRODUCED", "SAME SHAPE", "DIFFERS", "NOT DETERMINED")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "fig9.toml"
    path.write_text(CURVES)
    return path


def made(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[dict[str, Any]]:
    """What the command says as JSON."""
    capsys.readouterr()
    assert main(["reproduce", *words, "-q", "-f", "json", "--workers", "0"]) == code
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_without_an_item_all_are_listed(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    listed = made(capsys)
    assert [one["item"] for one in listed] == [item.full_name for item in items.every()]
    assert all(one["state"] in ("runs", "claims", "not determined") for one in listed)
    assert all(one["missing"] for one in listed if one["state"] == "not determined")
    assert main(["reproduce", "-q"]) == 0
    shown = capsys.readouterr().out
    assert "pdmm-thesis/appendix-fig4" in shown
    head, *rows = shown.splitlines()
    states = [row[head.index("state") : head.index("data")].strip() for row in rows[1:]]
    for one, state in zip(listed, states[: len(listed)], strict=True):
        claims = f"claims {', '.join(map(str, one['claims']))}"
        runs = "needs data" if one["data"] else "runs"
        assert state == {"runs": runs, "claims": claims}.get(one["state"], one["state"])
    missing = [one for one in listed if one["missing"]]
    for one, line in zip(missing, rows[1 + len(listed) :], strict=True):
        assert line == f"{one['item']}, not determined: {one['missing']}"
    assert max(map(len, rows[: 1 + len(listed)])) < 250
    assert main(["reproduce", "-q", "-f", "html"]) == 0
    assert "<h2>pdmm-thesis</h2>" in capsys.readouterr().out


def test_an_item_is_run_and_its_page_says_the_verdict_first(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    (small,) = made(capsys, "fig9.toml", "-o", "out")
    assert small["word"] == "SAME SHAPE"
    assert "small scale: 5 of 8 rounds; one seed has no interval" in small["why"]
    (paper,) = made(capsys, "fig9.toml", "-o", "out", "--scale", "paper", "--seeds", "3")
    assert paper["word"] == "REPRODUCED"
    assert paper["seeds"] == 3
    (number,) = paper["numbers"]
    low, high = number["interval"]
    assert low < number["ours"] < high
    assert number["deviation"] == pytest.approx(number["ours"] - 0.2)

    folder = Path("out/own/fig9")
    page = (folder / "index.html").read_text()
    head = page[page.index("<h1") : page.index("</h1>")]
    assert "REPRODUCED (1 printed number, 3 seeds" in head
    for words in ("The loss falls with the number of rounds.", "the step size", "alpha = 0.3"):
        assert words in page
    assert "leakaudit reproduce fig9.toml --scale paper --seeds 3" in page
    assert (folder / "figure.pdf").read_bytes().startswith(b"%PDF")
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    curves = (folder / "figure.csv").read_text().splitlines()
    assert curves[0] == '"quantity","line","x","mean","low","high"'
    assert len(curves) == 1 + 3 * 9  # three lines in two panels, rounds 0 to 8
    assert "Table 9" in (folder / "table.csv").read_text()
    assert r"\toprule" in (folder / "table.tex").read_text()


def test_the_file_of_a_line_is_a_sweep_with_the_same_cells(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    made(capsys, "fig9.toml", "-o", "out")
    folder = Path("out/own/fig9")
    lines = sorted((folder / "lines").glob("*.toml"))
    assert [path.name for path in lines] == ["01-d-psgd.toml", "02-d-psgd-no-step.toml"]
    before = {path.name: path.read_bytes() for path in (folder / "cells").iterdir()}
    found = set()
    for path in lines:
        assert main(["sweep", str(path), "-o", path.stem, "-q", "--workers", "0"]) == 0
        for cell in Path(path.stem, "cells").iterdir():
            assert before[cell.name] == cell.read_bytes()
            found.add(cell.name)
    assert found == {*before}


def test_a_second_run_computes_nothing_again(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    made(capsys, "fig9.toml", "-o", "out")
    cells = [*Path("out/own/fig9/cells").iterdir()]
    times = {path: path.stat().st_mtime_ns for path in cells}
    page = Path("out/own/fig9/figure.csv").read_bytes()
    made(capsys, "fig9.toml", "-o", "out", "--seeds", "2")
    assert {path: path.stat().st_mtime_ns for path in cells} == times
    assert len([*Path("out/own/fig9/cells").iterdir()]) == 2 * len(cells)
    made(capsys, "fig9.toml", "-o", "out")
    assert Path("out/own/fig9/figure.csv").read_bytes() == page


@pytest.mark.slow
def test_a_run_that_was_killed_continues(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(CURVES.replace("rounds = 5", "rounds = 200"))
    words = ["fig9.toml", "-o", "out", "--seeds", "12", "-q"]
    command = [sys.executable, "-m", "leakaudit", "reproduce", *words, "--workers", "1"]
    cells = Path("out/own/fig9/cells")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ}) as process:
        while len([*cells.glob("*.json")]) < 2:
            time.sleep(0.01)
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    kept = {path: path.stat().st_mtime_ns for path in cells.glob("*.json")}
    assert 2 <= len(kept) < 24
    (found,) = made(capsys, *words)
    assert found["complete"]
    assert found["seeds"] == 12
    assert len([*cells.glob("*.json")]) == 24
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_an_interrupted_run_says_in_one_line_what_is_done(
    capsys: pytest.CaptureFixture[str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(capsys, "fig9.toml", "-o", "out")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("leakaudit.runs.reproducing.run.compute", stop)
    words = ["fig9.toml", "-o", "out", "--seeds", "20", "--workers", "0"]
    assert main(["reproduce", *words]) == 130
    shown = capsys.readouterr()
    assert not shown.out
    assert "2 of 40 results are computed; run the same command again" in shown.err
    assert "38 of 40 cells: not run" in Path("out/own/fig9/index.html").read_text()


def test_data_that_replace_those_of_the_paper_are_named_wherever_a_line_is(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    text = file.read_text().replace('small = "5', 'data = ["gaussians"]\nsmall = "other data, 5')
    other = 'name = "D-PSGD"\nsmall = { scenario = { data = "classification:600,2" } }'
    file.write_text(text.replace('name = "D-PSGD"', other, 1))
    name = "D-PSGD (stand-in: classification:600,2)"
    capsys.readouterr()
    assert main(["reproduce", "fig9.toml", "-o", "out", "-q", "--workers", "0"]) == 0
    assert f"minus {name}" in " ".join(capsys.readouterr().out.split())
    folder = Path("out/own/fig9")
    for written in ("index.html", "figure.csv", "table.csv", "table.tex"):
        assert name in (folder / written).read_text()
    record = json.loads((folder / "result.json").read_text())
    assert record["numbers"][0]["stand_in"] == "classification:600,2"
    assert name in record["expectations"][0]["found"]
    page = (folder / "index.html").read_text()
    # One line still needs the data that must be there; the other one does not.
    assert page.count("leakaudit sweep lines/02-d-psgd-no-step.toml --data-root FOLDER") == 1
    assert "leakaudit sweep lines/01-d-psgd.toml --data-root" not in page
    assert "leakaudit reproduce fig9.toml --seeds 1 --data-root FOLDER" in page
    made(capsys, "fig9.toml", "-o", "out", "--scale", "paper")
    assert "stand-in" not in (folder / "index.html").read_text()


def test_a_page_shows_only_what_its_runs_are_about(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    made(capsys, "fig9.toml", "-o", "out")
    page = Path("out/own/fig9/index.html").read_text()
    assert "certificate" not in page
    assert "Printed and ours" in page
    paper = "4 cells of up to 3 nodes, 8 rounds and 200 records a node; here 2 cells of up to 3"
    assert f"own size: {paper}" in page
    words = ["fig9.toml", "-o", "out", "--scale", "paper", "--workers", "0"]
    assert main(["reproduce", *words]) == 0
    assert "own/fig9: 4 cells of up to 3 nodes" in capsys.readouterr().err
    text = file.read_text()
    start = text.index("[[plan.printed]]")
    text = text[:start] + text[text.index("[[plan.expected]]") :]
    sweep = '[plan.sweep]\nattacks = ["analytic"]\n[[plan.line]]'
    file.write_text(text.replace("[[plan.line]]", sweep, 1))
    made(capsys, "fig9.toml", "-o", "out")
    page = Path("out/own/fig9/index.html").read_text()
    assert "certificate" in page
    assert "Printed and ours" not in page
    assert "What the paper shows" in page


def test_an_item_of_claims_shows_their_verdicts_and_keeps_them(
    capsys: pytest.CaptureFixture[str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'kind = "theorem"\ntitle = "t"\nplace = "Theorem 1"\nclaims = [7]\n'
    Path("theorem1.toml").write_text(text)
    (found,) = made(capsys, "theorem1.toml", "-o", "out")
    (row,) = found["claims"]
    assert row["row"] == 7
    assert found["word"] == row["verdict"].replace("_", " ")
    assert found["why"] == f"row 7 of the scoreboard: {found['word']}"

    def refuse(*_: object) -> None:
        raise AssertionError("evaluated twice")

    monkeypatch.setattr("leakaudit.judging.papers.judge", refuse)
    (again,) = made(capsys, "theorem1.toml", "-o", "out")
    assert again["claims"] == found["claims"]


def test_the_accuracy_of_a_model_that_diverged_is_missing(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    text = CURVES.replace('model = "logistic"', 'model = "mlp"').replace("0.0001", "1e30")
    text = text.replace('\nlines = ["D-PSGD"]', "").replace("falls", "ends")
    text = text.replace(
        'lines = ["D-PSGD, no step", "D-PSGD"]\ny = "loss"',
        ('lines = ["D-PSGD", "D-PSGD, no step"]\ny = "accuracy"'),
    )
    file.write_text(text)
    (found,) = made(capsys, file.name, "-o", "out", "--scale", "paper")
    assert found["word"] == "NOT DETERMINED"
    (shape,) = found["expectations"]
    assert shape["outcome"] == "not measured"
    assert "a run diverged" in shape["found"]
    rows = Path("out/own/fig9/figure.csv").read_text().splitlines()
    mine = [row for row in rows if row.startswith('"accuracy","D-PSGD",')]
    assert len(mine) == 9
    assert not any(row.endswith(",,,") for row in mine[1:])


def test_numbers_are_stated_together_with_a_claim_that_is_refuted(
    capsys: pytest.CaptureFixture[str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(CURVES.replace("[plan]\n", "claims = [3, 12]\n[plan]\n", 1))
    words = [file.name, "-o", "out", "--scale", "paper", "--seeds", "3"]
    (found,) = made(capsys, *words)
    assert [row["verdict"] for row in found["claims"]] == ["REFUTED", "NOT_REFUTED"]
    assert found["word"] == "REPRODUCED"
    assert found["why"].endswith("the paper's size; row 3 of the scoreboard: REFUTED")
    assert found["level"] == "error"
    lost = 'kind = "table"\ntitle = "lost"\nplace = "Table 1"\nlost = "the table"\n'
    Path("table1.toml").write_text(lost)
    made(capsys, "table1.toml", *words)
    assert "1 of 2 published items come out" in (index := Path("out/index.html").read_text())
    assert "of 1, a claim is refuted" in index

    file.write_text(CURVES.replace("[plan]\n", "claims = [13]\n[plan]\n", 1))
    monkeypatch.setattr("leakaudit.runs.reproducing.run.expired", lambda: True)
    (found,) = made(capsys, *words)
    assert found["why"].endswith("row 13 of the scoreboard: not evaluated")
    assert found["level"] == "warning"
    theorem = 'kind = "theorem"\ntitle = "t"\nplace = "Theorem 1"\nclaims = [12, 13]\n'
    Path("theorem1.toml").write_text(theorem)
    (found,) = made(capsys, "theorem1.toml", "-o", "out")
    assert found["word"] == "NOT DETERMINED"


def test_an_item_of_which_a_part_is_lost_is_not_reproduced(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_text(CURVES.replace("[plan]\n", 'lost = "the captions"\n[plan]\n', 1))
    (found,) = made(capsys, file.name, "-o", "out", "--scale", "paper", "--seeds", "3")
    assert found["word"] == "SAME SHAPE"
    assert found["why"] == "not known of the paper: the captions"


def test_data_that_are_missing_are_no_result(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_text(CURVES.replace('data = "gaussians"', 'data = "npz:none.npz"'))
    (found,) = made(capsys, "fig9.toml", "-o", "out", code=2)
    assert found["word"] == "NOT DETERMINED"
    assert "none.npz" in found["why"]
    assert not [*Path("out/own/fig9").glob("cells/*")]
    page = Path("out/own/fig9/index.html").read_text()
    assert "Provide what is missing" in page
    assert "--scale paper" not in page


def test_data_are_not_needed_for_results_that_are_there(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    records = np.random.default_rng(0).normal(size=(600, 2)).astype("float32")
    labels = np.arange(600) % 2
    np.savez("some.npz", x_train=records, y_train=labels, x_test=records, y_test=labels)
    file.write_text(CURVES.replace('data = "gaussians"', 'data = "npz:some.npz"'))
    (before,) = made(capsys, "fig9.toml", "-o", "out")
    Path("some.npz").unlink()
    (after,) = made(capsys, "fig9.toml", "-o", "out")
    assert after["numbers"] == before["numbers"]


def test_a_cell_that_fails_is_named_and_is_no_number(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    # Two nodes have no ring, which shows only when the cell is computed.
    text = CURVES.replace(
        'name = "D-PSGD, no step"\nscenario = { victim = "dpsgd",',
        ('name = "D-PSGD, no step"\nscenario = { victim = "dpsgd", samples = 600, '),
    )
    file.write_text(text)
    (found,) = made(capsys, "fig9.toml", "-o", "out")
    assert found["word"] == "NOT DETERMINED"
    assert found["troubles"]
    assert found["numbers"][0]["outcome"] == "holds"
    assert found["expectations"][0]["outcome"] == "not measured"


def test_an_index_of_several_items_shows_each_outcome(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    lost = 'kind = "table"\ntitle = "lost"\nplace = "Table 1"\nlost = "the table"\n'
    Path("table1.toml").write_text(lost)
    found = made(capsys, "fig9.toml", "table1.toml", "-o", "out")
    assert [one["word"] for one in found] == ["SAME SHAPE", "NOT DETERMINED BY THE PAPER"]
    index = Path("out/index.html").read_text()
    assert 'href="own/fig9/index.html"' in index
    assert "NOT DETERMINED BY THE PAPER" in index
    listed = json.loads(Path("out/coverage.json").read_text())
    assert [one["last"]["word"] for one in listed] == [one["word"] for one in found]
    assert "| table1 | lost | not determined |" in Path("out/coverage.md").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["thesis/figg5"], "has no item 'figg5'"),
        (["dp-nrm"], "did you mean 'dp-norm'"),
        (["fig9.toml", "--seeds", "0"], "--seeds: expected an integer from 1"),
        (["--paper", "dp-norm"], "expected together with --claims"),
        (["--claims", "dp-norm"], "--claims: expected no items"),
        (["--all", "dp-norm"], "--all: expected no items"),
        (["none.toml"], "none.toml"),
    ],
)
def test_bad_input_is_one_line_with_code_two(
    capsys: pytest.CaptureFixture[str], file: Path, words: list[str], says: str
) -> None:
    assert says in refused(capsys, "reproduce", *words)


def test_a_figure_shows_shares_from_zero_to_one_and_caps_psnr() -> None:
    runs = {0: (200.0, 30.0), 1: (200.0, 40.0)}
    psnr = MeasuredPanel("psnr", "PSNR, dB", "samples", (MeasuredLine("a", (1, 4), runs),))
    exact = MeasuredPanel("exact", "share", "samples", (MeasuredLine("a", (1,), {0: (1.0,)}),))
    figure = picture.content([psnr, exact], 2, own_size=False)
    assert figure.note == f"{picture.SMALL}; {picture.NOTE.format(2)}"
    ((_, (decibels, shares)),) = figure.rows
    assert [*decibels.lines[0].values] == [60.0, 35.0]
    assert (decibels.low, decibels.cap) == (0.0, 60.0)
    assert decibels.lines[0].intervals[0] in (None, (60.0, 60.0))
    assert (shares.low, shares.high) == (0.0, 1.0)
    assert picture.SMALL not in picture.content([exact], 1, own_size=True).note


def test_bars_and_markers_of_curves_stand_at_the_same_rounds_and_those_of_lines_apart() -> None:
    rounds = tuple(range(13))
    runs = {seed: tuple(0.5 + 0.01 * seed for _ in rounds) for seed in range(3)}
    lines = [MeasuredLine(name, rounds, runs) for name in ("a", "b", "c")]
    panel = MeasuredPanel("accuracy", "accuracy", "round", lines)
    content = picture.content([panel], 3, own_size=True)
    ((_, (made,)),) = content.rows
    barred = [{k for k, one in enumerate(line.intervals) if one} for line in made.lines]
    assert all(barred)
    assert not barred[0] & barred[1] | barred[1] & barred[2] | barred[0] & barred[2]
    (place,) = curves.on_screen(content).axes
    for k, at in enumerate(barred):
        (drawn,) = [line for line in place.get_lines() if line.get_gid() == f"line{k}"]
        xdata, markers = np.asarray(drawn.get_xdata()), drawn.get_markevery()
        assert xdata.tolist() == [*rounds]  # no line is moved sideways
        assert isinstance(markers, list)
        assert {*markers} == at
    # On an axis of names, every place has its bar, and lines are set apart.
    three = [MeasuredLine(name, (1, 2, 4), {0: (0.5,) * 3, 1: (0.6,) * 3}) for name in "ab"]
    few = MeasuredPanel("accuracy", "accuracy", "epsilon", three)
    ((_, (made,)),) = picture.content([few], 3, own_size=True).rows
    assert all(all(line.intervals) for line in made.lines)


def test_an_item_begins_with_the_entries_of_the_one_that_it_is_like(tmp_path: Path) -> None:
    (tmp_path / "fig9.toml").write_text(CURVES)
    base = items.load(tmp_path / "fig9.toml", items.OWN)
    assert base.plan is not None
    name = base.plan.line[0].name
    lines = f'[[plan.line]]\nname = "{name}"\nscenario = {{ set = {{ alpha = 0.1 }} }}\n'
    text = f'like = "fig9"\ntitle = "Other"\n[plan.scenario]\nseed = 7\n{lines}'
    (tmp_path / "fig10.toml").write_text(text)
    (tmp_path / "fig11.toml").write_text('like = "fig10"\nplace = "Figure 11"\n')
    found = items.load(tmp_path / "fig11.toml", items.OWN)
    assert (found.title, found.place, found.quotes) == ("Other", "Figure 11", base.quotes)
    assert found.plan is not None
    assert dict(found.plan.scenario) == {**base.plan.scenario, "seed": 7}
    assert [line.name for line in found.plan.line] == [line.name for line in base.plan.line]
    assert found.plan.line[0].scenario["set"]["alpha"] == 0.1
    assert found.plan.line[1:] == base.plan.line[1:]
    new = '[[plan.line]]\nname = "new"\n'
    (tmp_path / "fig12.toml").write_text(f'like = "fig9"\n{new}')
    with pytest.raises(LeakauditError, match="no line is named"):  # the other lines are replaced
        items.load(tmp_path / "fig12.toml", items.OWN)


@pytest.mark.parametrize(
    ("like", "complaint"),
    [
        ('"fig9"', "expected the name of another item of the folder, got 'fig9'"),
        ('"../fig8"', "expected the name of another item of the folder"),
        ("3", "expected the name of another item of the folder, got 3"),
        ('"fig8"', "like fig8: No such file"),
        ('"fig7"', "expected the name of another item of the folder, got 'fig9'"),
    ],
)
def test_an_item_is_like_another_one_of_its_folder(
    tmp_path: Path, like: str, complaint: str
) -> None:
    (tmp_path / "fig9.toml").write_text(f"like = {like}\n")
    (tmp_path / "fig7.toml").write_text('like = "fig9"\n')
    with pytest.raises(LeakauditError, match=re.escape(complaint)):
        items.load(tmp_path / "fig9.toml", items.OWN)


# --- items and folders of strangers -----------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("tolerance = 1.0", "tolerance = inf", "finite tolerance"),
        ("value = 0.2", "value = inf", "only an epsilon can be inf"),
        ("value = 0.2", "value = nan", "expected a finite number"),
        ('place = "Table 9"', 'place = "Table 9"\nx = nan', "expected finite numbers, got nan"),
        ('place = "Table 9"', f'place = "Table 9"\nx = 1{"0" * 400}', "expected finite numbers"),
        ('place = "Table 9"', 'place = "Table 9"\nscale = "small"', "scale"),
        ('rule = "above"', 'rule = "above"\nby = nan', "expected finite numbers"),
        ('rule = "above"', 'rule = "above"\nby = -1.0', "by is a number >= 0, got -1"),
        ('rule = "above"', 'rule = "ratio"', "by is a number > 0"),
        ('rule = "above"', 'rule = "falls"\nbetween = [0, inf]', "expected finite numbers"),
        ('rule = "above"', 'rule = "flat"\nbetween = ["last", "last"]', "got last twice"),
        ('rule = "above"', 'rule = "flat"\nx = "first"', "got first twice"),
        ('rule = "above"', 'rule = "falls"\nx = "every"', "falls looks at one last place"),
        ('["D-PSGD, no step", "D-PSGD"]', '["D-PSGD", "D-PSGD"]', "a name twice"),
        ('small = "5 of 8 rounds"', "", "how the small scale differs"),
        ("[plan]\n", '[plan]\nx = "epsilonn"\n', "the horizontal axis is epsilonn"),
        ('place = "Figure 9"', 'place = "Figure 9"\nclaims = [999]', "row 999 does not exist"),
        ("alpha = 0.0001", "alpha = 0.3", "its runs are those of line D-PSGD"),
        ('name = "D-PSGD"\n', 'name = "D-PSGD"\nstride = 9\n', "stride: expected at most"),
        (
            "[plan]\n",
            '[plan]\nsweep = { adversaries = ["node:1", "eavesdropper"] }\n',
            "adversaries",
        ),
        ("[plan]\n", '[plan]\nsweep = { attacks = ["auto", "analytic"] }\n', "attacks has several"),
        ("[plan]\n", '[plan]\nx = "l2"\nsweep = { over = { l2 = [1, 1.0] } }\n', "distinct"),
        (
            'title = "L',
            'data = ["mnist"]\ntitle = "L',
            "data: no line at the paper's size has mnist",
        ),
    ],
)
def test_an_item_that_would_allow_a_false_verdict_is_rejected(
    capsys: pytest.CaptureFixture[str], file: Path, old: str, new: str, says: str
) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    words = [file.name, "-o", "out", "--scale", "paper"]
    assert says in refused(capsys, "reproduce", *words)
    assert not Path("out").exists()


def test_all_numbers_of_the_paper_are_compared_at_its_own_size(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    text = CURVES.replace("[plan.small.scenario]\nrounds = 5\n", "")
    text = text.replace('small = "5 of 8 rounds"', 'small = ""')
    file.write_text(text.replace('place = "Table 9"', 'place = "Table 9"\nscale = "paper"'))
    assert "scale: expected none" in refused(capsys, "reproduce", file.name, "-o", "out")
    file.write_text(text.replace('rule = "above"', 'rule = "above"\nscale = "small"'))
    assert "scale: expected none" in refused(capsys, "reproduce", file.name, "-o", "out")


def test_only_the_papers_of_leakaudit_have_functions(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_text('kind = "figure"\ntitle = "t"\nplace = "p"\ndrawn = true\nsmall = ""\n')
    assert "drawn: expected a table [plan]" in refused(capsys, "reproduce", file.name, "-o", "out")
    assert not Path("out").exists()


def test_items_whose_folders_would_be_the_same_or_outside_are_rejected(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    other = Path("other")
    other.mkdir()
    (other / file.name).write_text(file.read_text().replace("D-PSGD", "DP-SGD"))
    assert "rename one" in refused(
        capsys, "reproduce", file.name, f"other/{file.name}", "-o", "out"
    )
    above = Path("...toml")
    above.write_text(file.read_text())
    assert "a name before .toml" in refused(capsys, "reproduce", above.name, "-o", "out")


@pytest.mark.parametrize("link", ["own", "own/fig9", "own/fig9/lines"])
def test_a_link_in_the_output_folder_is_not_followed(
    capsys: pytest.CaptureFixture[str], file: Path, link: str
) -> None:
    elsewhere = Path("elsewhere")
    elsewhere.mkdir()
    place = Path("out", link)
    place.parent.mkdir(parents=True)
    place.symlink_to(elsewhere.resolve())
    assert "found a link" in refused(capsys, "reproduce", file.name, "-o", "out")
    assert not [*elsewhere.iterdir()]


def test_a_record_with_unknown_verdicts_is_no_outcome(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    made(capsys, "secured-fl/lemma3.1", "-o", "out")
    record = Path("out/secured-fl/lemma3.1/result.json")
    kept = record.read_text()
    assert '"verdict": "NOT_REFUTED"' in kept
    record.write_text(kept.replace("NOT_REFUTED", "PROVED").replace("NOT REFUTED", "PROVED"))
    assert main(["reproduce", "secured-fl/fig1", "secured-fl/fig2", "-o", "out", "-q"]) == 0
    assert "PROVED" not in Path("out/index.html").read_text()
    (again,) = made(capsys, "secured-fl/lemma3.1", "-o", "out")
    assert again["word"] == "NOT REFUTED"
    assert "PROVED" not in record.read_text()
