"""`bound` without --as: the table over adversaries, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leakaudit.cli import main

LINES = [
    'victim = "dpnorm"',
    "nodes = 6",
    'graph = "ring"',
    "rounds = 12",
    'data = "gaussians"',
    'model = "logistic"',
    "samples = 2",
]


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "s.toml"
    path.write_text(
        "\n".join([*LINES, "[set]", "sigma = 0.1", "mu = 0.05", "inner = 1", "alpha = 0.2"])
    )
    return str(path)


def test_every_adversary_is_listed_with_the_claim_and_the_noise_for_it(
    scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Path(scenario)
    plan.write_text(plan.read_text().replace("rounds = 12", "rounds = 4"))
    assert main(["bound", scenario, "--smoothness", "0.1", "-f", "json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 6 * (1 + 2 + 2 + 3)
    assert {one["kind"] for one in found if one["node"] == 3} == {
        "outsider",
        "wire",
        "neighbour",
        "node",
    }
    for one in found:
        assert one["verdict"] == "NOT_REFUTED"
        assert one["ratio"] == pytest.approx(one["exact"] / one["claim"]["epsilon"])
        assert one["recommended"]["holds"]
        assert one["recommended"]["factor"] == pytest.approx(one["mu"] / one["recommended"]["mu"])


def test_the_table_shows_the_worst_of_each_kind_once(
    scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bound", scenario, "-q"]) == 0
    said = capsys.readouterr().out
    assert said.count("outsider, all channels") == 1
    assert "nodes 1, 2, 3, 4, 5: the same as node 0" in said
    assert "DP-Norm, Theorem 1" in said
    assert main(["bound", scenario, "--all", "-q"]) == 0
    assert capsys.readouterr().out.count("outsider, all channels") == 6


def test_without_a_smoothness_the_table_gives_no_epsilon_for_records(
    scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """DP-Norm's nodes keep their models; the figure of the node has its own field and its own words."""
    assert main(["bound", scenario, "--as", "eavesdropper", "-f", "json", "-q"]) == 0
    for one in json.loads(capsys.readouterr().out):
        assert one["mu"] is None
        assert one["epsilon"] is None
        assert one["node_epsilon"] > 0
        assert one["rounds_priced"] == 12
        assert one["verdict"] == "INCONCLUSIVE"
        assert "specify --smoothness" in one["why"]
    assert main(["bound", scenario, "--as", "eavesdropper", "-q"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "no epsilon for records" in said
    assert "rounds: 12" in said
    assert "NOT REFUTED;" not in said


def test_of_a_long_run_only_the_outsider_is_priced_unless_others_are_asked_for(
    scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(scenario).write_text(Path(scenario).read_text().replace("rounds = 12", "rounds = 400"))
    assert main(["bound", scenario, "--node", "0", "-f", "json", "--progress", "none"]) == 0
    said = capsys.readouterr()
    assert [one["kind"] for one in json.loads(said.out)] == ["outsider"]
    assert "only the outsider is evaluated" in said.err


def test_the_plan_of_an_audit_is_priced_too(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(project / "examples" / "audit" / "recal.toml")
    assert main(["bound", plan, "--coalitions", "0", "--node", "0", "-f", "json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["sensitivity"] for one in found} == {50.0}
    assert {one["claim"]["source"][:8] for one in found} == {"DP-RECAL"}


def test_noise_for_an_epsilon_of_ones_own(
    scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        "bound",
        scenario,
        "--as",
        "eavesdropper",
        "--node",
        "0",
        "--delta",
        "1e-5",
        "--smoothness",
        "0.1",
        "-f",
        "json",
        "-q",
    ]
    assert main([*asked, "--epsilon", "1"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    (low, high) = one["recommended"]["noise"]["n"]
    Path(scenario).write_text(Path(scenario).read_text().replace("sigma = 0.1", f"sigma = {low!r}"))
    assert low == high
    assert main(asked) == 0
    assert json.loads(capsys.readouterr().out)[0]["epsilon"] == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--coalitions", "-1"], "--coalitions"),
        (["--coalitions", "1", "--as", "node:1"], "--coalitions"),
        (["--node", "9"], "node 9 does not exist"),
        (["--epsilon", "-1"], "--epsilon"),
        (["--sensitivity", "0"], "--sensitivity"),
        (["--smoothness", "-1"], "--smoothness"),
        (["--smoothness", "inf"], "--smoothness"),
    ],
)
def test_bad_options_get_one_line(
    scenario: str, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    assert main(["bound", scenario, *argv, "-q"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
