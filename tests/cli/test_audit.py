"""`audit`, as a user calls it: one command, one record, one figure."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="call-overload, index, operator, union-attr"

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from leakaudit.cli import main
from leakaudit.reporting.results import record_file

SCENARIO = """
[scenario]
victim = "dpsgd"
nodes = 3
graph = "ring"
rounds = 2
data = "faces"
model = "mlp"

[scenario.set]
hidden = 32
order = "adapt"
alpha = 0.1
clip = 1.0
sigma = 1.0
"""
AUDIT = """
[audit]
epsilon = [inf, 2]
delta = 1e-5
sensitivity = 2.0
adversaries = ["eavesdropper", "node:1"]
attacks = ["analytic", "inverting"]
nodes = [0]
replays = 6
canary = 8
candidates = 5

[audit.set.inverting]
steps = 4
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    (folder / "a.toml").write_text(SCENARIO + AUDIT)
    assert main(["audit", str(folder / "a.toml"), "-o", str(folder / "out"), "-q"]) == 0
    return folder / "out"


@pytest.fixture(scope="module")
def again(done: Path) -> tuple[int, Path]:
    """The same audit once more, with --strict: its exit code and its folder."""
    folder = done.parent / "again"
    code = main(["audit", str(done.parent / "a.toml"), "-o", str(folder), "--strict", "-q"])
    return code, folder


def test_one_command_leaves_a_record_a_figure_and_a_report(done: Path) -> None:
    assert {p.name for p in done.iterdir()} == {
        "results.json",
        "audit.png",
        "report.md",
        "originals.npz",
        "reconstructions.npz",
        "reconstructions.png",
    }
    found = record_file.read(done / "results.json")
    assert found["kind"] == "audit"
    assert {(f["cell"]["epsilon"], f["adversary"], f["attack"]) for f in found["findings"]} == {
        (e, who, a)
        for e in ("inf", 2)
        for who in ("eavesdropper", "nodes:1")
        for a in ("analytic", "inverting")
    }
    with Image.open(done / "audit.png") as picture:
        assert picture.size[0] > 1200
        assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 10
    page = (done / "report.md").read_text()
    assert "](audit.png)" in page
    assert "INCONCLUSIVE" in page


def test_without_noise_the_images_come_back_and_with_it_they_do_not(done: Path) -> None:
    curves = record_file.read(done / "results.json")["audit"]["curves"]
    best = {
        (c["epsilon"], c["attack"]): c["psnr"]["best"]
        for c in curves
        if c["adversary"] == "eavesdropper" and "psnr" in c
    }
    assert best["inf", "analytic"] > 60
    assert (
        best.get((2, "analytic"), 0) < 20
    )  # its equations have no solution, so no image may come back
    assert best[2, "inverting"] < 20
    assert all(
        c[m]["best"] >= c[m]["median"] and c[m]["images"] == 1
        for c in curves
        for m in ("psnr", "ssim")
        if m in c
    )


def test_verdicts_have_counts_power_and_the_trials_they_need(done: Path) -> None:
    found = record_file.read(done / "results.json")["audit"]["verdicts"]
    private = [v for v in found if v["epsilon"] == 2 and v["promise"]]
    assert {v["test"] for v in private} >= {
        "identification by likelihood",
        "canary replays",
        "PSNR >= 20 dB",
    }
    assert {v["verdict"] for v in private} <= {"INCONCLUSIVE", "NOT_REFUTED"}
    for v in private:
        assert v["power"]
        assert v["promise"]["epsilon"] <= 2 + 1e-9
        if v["verdict"] == "INCONCLUSIVE":
            assert "would be needed" in v["says"]
            assert v["needs"] > (v["figures"].get("trials") or 0)
    assert {v["verdict"] for v in found if v["epsilon"] == "inf" and v["promise"] is None} == {
        "UNCLAIMED"
    }


def test_the_same_seed_gives_the_same_audit(done: Path, again: tuple[int, Path]) -> None:
    first, second = (
        record_file.read(folder / "results.json")["audit"] for folder in (done, again[1])
    )
    assert first == second


def test_a_dry_run_prints_the_grid_and_writes_nothing(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            ["audit", str(done.parent / "a.toml"), "-o", str(tmp_path / "none"), "--dry-run", "-q"]
        )
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert not (tmp_path / "none").exists()
    assert (said["runs"], said["replays"], said["attacks"]) == (2, 2 * 2 * 14, 2 * 2 * 2)
    assert said["grid"][0]["record"]["eavesdropper"] == pytest.approx(2)
    assert said["grid"][1]["constants"] == {"sigma": 0.0}
    assert said["omitted"] == ""


def test_a_dry_run_of_countless_rounds_states_its_work_without_epsilon(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Epsilon of a million rounds takes most of an hour; a fuzzer asked for it."""
    few = (done.parent / "a.toml").read_text(encoding="utf-8")
    many = tmp_path / "many.toml"
    many.write_text(few.replace("rounds = 2", "rounds = 1_000_000", 1), encoding="utf-8")
    assert main(["audit", str(many), "--dry-run", "-q"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["runs"], said["replays"], said["attacks"]) == (2, 2 * 2 * 14, 2 * 2 * 2)
    assert [point["epsilon"] for point in said["grid"]] == ["no noise", "2"]
    assert all(point["record"] == point["holds"] == {} for point in said["grid"])
    assert "a dry run computes epsilon for at most 200,000" in said["omitted"]


def test_a_refuted_promise_is_exit_code_1_and_an_unsettled_one_3_where_asked(
    again: tuple[int, Path], tmp_path: Path
) -> None:
    """Table II's noise for DP-SGD, all records in both steps: epsilon 2.2 is reached at a nominal 1."""
    wrong = """
[scenario]
victim = "dpsgd"
nodes = 3
graph = "ring"
rounds = 2
data = "gaussians:60"
model = "logistic"
samples = 4
[scenario.set]
alpha = 0.03
epsilon = 1.0
noise = "step"
horizon = 2
[audit]
replays = 0
canary = 0
nodes = [0]
attacks = ["dlg"]
[audit.set.dlg]
steps = 1
restarts = 1
"""
    (tmp_path / "wrong.toml").write_text(wrong)
    assert main(["audit", str(tmp_path / "wrong.toml"), "-o", str(tmp_path / "out"), "-q"]) == 1
    found = record_file.read(tmp_path / "out" / "results.json")
    first = next(
        v for v in found["audit"]["verdicts"] if v["test"] == "exact view against the claim"
    )
    assert first["verdict"] == "REFUTED"
    assert first["figures"]["exact"] > 2
    assert found["summary"].startswith("REFUTED: view bound against the claim")
    assert again[0] == 3


PLAIN = """
victim = "dpnorm"
nodes = 3
graph = "ring"
rounds = 2
data = "gaussians:40"
model = "logistic"
[set]
sigma = 0.5
"""
FEW = """
[audit]
nodes = [0]
replays = 8
canary = 8
"""


def audited(folder: Path, plan: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The record of an audit of this plan."""
    (folder / "s.toml").write_text(plan)
    words = ["audit", str(folder / "s.toml"), "-o", str(folder / "out"), "-f", "json", "-q"]
    assert main(words) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    "table",
    [pytest.param("", marks=pytest.mark.slow, id="as it is"), pytest.param(FEW, id="few replays")],
)
def test_a_plain_scenario_is_audited_as_it_is(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = audited(tmp_path, PLAIN + table, capsys)
    (level,) = found["audit"]["grid"]
    assert level["epsilon"] is None
    assert any(
        v["promise"] and v["promise"]["name"].startswith("DP-Norm")
        for v in found["audit"]["verdicts"]
    )
    claim = next(
        v for v in found["audit"]["verdicts"] if v["test"] == "exact view against the claim"
    )
    assert claim["verdict"] == "INCONCLUSIVE"
    assert "specify --smoothness" in claim["says"]
    assert not any(
        v["promise"] and v["promise"]["name"].startswith("the view bound")
        for v in found["audit"]["verdicts"]
    )


def test_a_smoothness_gives_a_plain_scenario_an_epsilon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = audited(tmp_path, PLAIN + FEW + "smoothness = 0.1\n", capsys)
    claim = next(
        v for v in found["audit"]["verdicts"] if v["test"] == "exact view against the claim"
    )
    assert claim["verdict"] == "NOT_REFUTED"
    assert claim["figures"]["rounds_priced"] == 2


def test_what_is_over_in_time_is_kept_and_marked(done: Path, tmp_path: Path) -> None:
    arguments = [
        "audit",
        str(done.parent / "a.toml"),
        "-o",
        str(tmp_path / "out"),
        "--max-seconds",
        "0.001",
        "-q",
    ]
    for strict in ([], ["--strict"]):
        assert main([*arguments, *strict]) == 3
        found = record_file.read(tmp_path / "out" / "results.json")
        assert not found["complete"]
        assert "Nothing was tested; the run was interrupted and is incomplete" in found["summary"]
        page = (tmp_path / "out" / "report.md").read_text()
        curves: Any = found["audit"]["curves"]
        assert page.count("| not run | \\- |") == len(curves) == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SCENARIO + "[audit]\nepsilons = [1]", "did you mean 'epsilon'"),
        (SCENARIO + "[audit]\nnodes = [7]", "node 7 does not exist"),
        (
            SCENARIO + '[audit]\nadversaries = ["node:0"]\nnodes = [0]',
            "expected nodes that no adversary controls",
        ),
        (SCENARIO + '[audit]\nadversaries = ["edges:0-5"]', "edge 0-5 does not exist"),
        (SCENARIO.replace("dpsgd", "dpsdg"), "did you mean 'dpsgd'"),
        ("[scenario", "not valid TOML"),
    ],
)
def test_bad_plans_get_one_line_and_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "a.toml").write_text(text)
    assert main(["audit", str(tmp_path / "a.toml"), "-o", str(tmp_path / "out"), "-q"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["dpnorm", "recal"])
def test_the_papers_simulations_are_plans_with_and_without_noise(
    project: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The file that one command runs: both have the noiseless case, private ones, the three attacks and real images."""
    assert (
        main(["audit", str(project / "examples" / "audit" / f"{name}.toml"), "--dry-run", "-q"])
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert said["plan"]["scenario"]["victim"] == name
    assert said["plan"]["scenario"]["data"] == "faces"
    assert said["plan"]["attacks"] == ["dlg", "inverting", "gradinversion"]
    assert said["grid"][-1]["epsilon"] == "no noise"
    assert len(said["grid"]) > 3
    assert all(
        math.isfinite(level["record"]["eavesdropper"] or level["node_at_most"]["eavesdropper"])
        for level in said["grid"][:-1]
    )
