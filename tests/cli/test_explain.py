"""`explain`, `bound` and `trace verify --relations`, as a user calls them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from PIL import Image

import leakaudit as la
from leakaudit.cli import main
from leakaudit.core.errors import LeakauditError
from leakaudit.protocols import declared
from leakaudit.traces import trace_file
from leakaudit.views.extraction.explanation import ExplainedRow, Explanation

RECORD = [
    "record",
    "pdmm",
    "-o",
    "trace.pt",
    "--nodes",
    "5",
    "--graph",
    "ring",
    "--rounds",
    "7",
    "--data",
    "gaussians",
    "--samples",
    "3",
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explain")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*RECORD, "--model", "logistic", "--states", "-q"]) == 0
    return folder


@pytest.fixture
def place(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(recorded)
    return recorded


def test_the_formula_computes_what_it_says(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed rationals, applied by hand to the messages, give the difference of gradients that autograd gives."""
    assert main(["explain", "trace.pt", "--node", "3", "-f", "json", "-q"]) == 0
    (node,) = json.loads(capsys.readouterr().out)
    assert node["node"] == 3
    assert len(node["rows"]) == 5
    trace, truth = trace_file.load("trace.pt"), trace_file.load_truth("trace.truth.pt")
    from leakaudit.core.adversary import Adversary
    from leakaudit.tasks.task import Task

    view, task = Adversary().view(trace), Task.build(trace.task, dtype=torch.float64)
    x, y = truth.of(3)
    for row in node["rows"]:
        total = torch.zeros(trace.layout.size, dtype=torch.float64)
        for sign, coefficient, src, dst, t in _terms(row["formula"]):
            total += sign * float(coefficient) * view.message(t, src, dst, "dz").double()
        true = sum(
            float(Fraction(weight))
            * task.gradient(truth.states["w"][t - 1, 3].double(), x.double(), y)
            for t, _, weight in row["weights"]
        )
        assert (total - true).norm() < 1e-3 * torch.as_tensor(true).norm()
        assert row["amplification"] > 1
        assert not row["noisy"]
        assert not row["formal"]


def _terms(formula: str) -> list[tuple[int, Fraction, int, int, int]]:
    import re

    found = re.findall(r"([+-]?) ?(\d+(?:/\d+)?)? ?dz\[(\d+)>(\d+),(\d+)\]", formula)
    assert found
    return [
        (-1 if sign == "-" else 1, Fraction(c or 1), int(i), int(j), int(t))
        for sign, c, i, j, t in found
    ]


def test_a_table_a_picture_and_a_line_a_node(
    place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["explain", "trace.pt", "--node", "3", "-o", str(tmp_path / "rows.png"), "-q"]) == 0
    table = capsys.readouterr().out
    assert "g[3,2] - g[3,3]" in table
    assert "not proved to be private" in " ".join(table.split())
    assert len(set(Image.open(tmp_path / "rows.png").convert("RGB").get_flattened_data())) > 10
    assert main(["explain", "trace.pt", "-q"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        f"node {i}" for i in range(5)
    ]


def test_partial_taps_are_called_a_lower_bound(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["explain", "trace.pt", "--node", "1", "--as", "edges:0-1,1-0,1-2,2-3,3-2", "-q"]) == 0
    )
    said = capsys.readouterr().out
    assert "lower bound on what leaks" in said or "not observed" in said
    assert (
        main(
            [
                "attack",
                "trace.pt",
                "--as",
                "node:0+edges:1-2,2-3,3-2",
                "--node",
                "1",
                "-o",
                "out",
                "-q",
                "-f",
                "text",
                "-f",
                "markdown",
            ]
        )
        == 0
    )
    assert " ".join(capsys.readouterr().out.split()).count("lower bound on what leaks") == 2


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["explain", "trace.pt", "--node", "9"], "node 9 does not exist"),
        (["explain", "trace.pt", "--as", "edges:0-2"], "edge 0-2 does not exist"),
        (
            ["explain", "trace.pt", "--as", "edges:0-1", "-o", "x.png"],
            "expected at least one determined combination",
        ),
        (["bound", "trace.pt", "--delta", "2"], "--delta"),
        (["bound", "trace.pt", "--node", "7"], "node 7 does not exist"),
        (["bound", "nothing.toml"], "nothing.toml"),
        (["trace", "verify", "trace.pt", "--relations", "--truth", "trace.pt"], "truth"),
    ],
)
def test_bad_input_gets_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    assert main([*argv, "-q"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


def test_the_declaration_is_checked_on_the_run(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "verify", "trace.pt", "--relations", "-f", "json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)["relations"]
    assert found["checked"] == 7 * (10 + 5)
    assert found["skipped"] == 0
    assert found["worst"] < 1e-5


def test_a_run_that_is_not_what_it_says_fails_the_check(place: Path) -> None:
    """The trace says another step size than the one that was used."""
    trace, truth = trace_file.load("trace.pt"), trace_file.load_truth("trace.truth.pt")
    with pytest.raises(
        LeakauditError, match=r"round 1: the relation w\[0,1\] = .* has a relative residual of"
    ):
        declared.check(replace(trace, params={**trace.params, "alpha": 0.06}), truth)


def test_a_bound_from_a_scenario_is_the_closed_form(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """DP-Norm, K = 1, ring: a = gamma / (gamma + 1); the model moves by mu (a + ... + a^r) in round r."""
    lines = [
        'victim = "dpnorm"',
        "nodes = 6",
        'graph = "ring"',
        "rounds = 12",
        'data = "gaussians"',
        'model = "logistic"',
        "samples = 2",
    ]
    Path("s.toml").write_text(
        "\n".join([*lines, "[set]", "sigma = 0.1", "mu = 0.05", "inner = 1", "alpha = 0.2"])
    )
    assert main(["bound", "s.toml", "--as", "eavesdropper", "--node", "0", "-f", "json", "-q"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    gamma = 1 + 0.2 / (0.05 * 2)
    a = gamma / (gamma + 1)
    assert found["mu"] is None, (
        "hidden noise of other nodes steers the models: there is no epsilon for records"
    )
    assert found["node_mu"] == pytest.approx(
        math.hypot(*(0.05 * sum(a**q for q in range(1, r + 1)) / 0.1 for r in range(1, 13))),
        rel=1e-7,
    )
    assert found["level"].startswith("node")
    assert main(["bound", "trace.pt", "--node", "0", "-q"]) == 0
    assert "inf" in capsys.readouterr().out


def test_an_estimate_that_noise_hides_is_not_called_determined() -> None:
    """It was counted among the determined gradients, as lost in noise."""
    weights = ((0, 0, "1"),)
    clear = ExplainedRow("g[0,0]", weights, "w[0,1]", True, std=0.5, amplification=1.0, size=1.0)
    hidden = replace(clear, std=2.0)
    rows = {
        (clear, hidden): "1 gradient is determined (1 up to the protocol's noise); "
        "noise hides 1 estimate",
        (hidden,): "none is determined; noise hides 1 estimate",
        (clear, clear): "2 gradients are determined (2 up to the protocol's noise)",
    }
    for shown, says in rows.items():
        summary = Explanation(0, "eavesdropper", 5, shown).summary
        assert summary == f"node 0: of 5 gradients, {says}"


MASKS = """
name = "masks"
start = "w[i] = w0"
round = \"\"\"
z[i,j] = noise(sigma)
y[i] = grad(w[i]) + sum(j in neighbours: z[i,j] + z[j,i])
m[i -> neighbours] = y[i]
w[i] = w[i] - 0.1 * y[i]
\"\"\"
[constants]
sigma = 1.0
"""


@pytest.mark.parametrize(
    ("who", "held"), [("node:1", True), ("node:2", False), ("outsider", False)]
)
def test_masks_that_a_curious_node_holds_are_not_called_unknown(
    who: str, held: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Node 1 knows the mask of its pair, which no message shows; node 2 hears neither of them."""
    (tmp_path / "masks.toml").write_text(MASKS)
    task = la.TaskSpec("logistic", shape=(4,), classes=2)
    start = torch.zeros(la.Task.build(task).layout.size)
    with la.Recorder(
        tmp_path / "masks.pt",
        protocol=str(tmp_path / "masks.toml"),
        task=task,
        graph=la.Graph(4, ((0, 1), (2, 3))),
        rounds=2,
        public={"w0": start},
    ) as recorder:
        for t in (1, 2):
            for i, near in enumerate(recorder.graph.neighbours):
                recorder.send(t, i, near, "m", torch.randn(len(start)))
    adversary = "eavesdropper" if who == "outsider" else who
    main(["explain", str(tmp_path / "masks.pt"), "--node", "0", "--as", adversary, "-q"])
    said = " ".join(capsys.readouterr().out.split())
    note = "the adversary's nodes also know the noise z, which they share with others"
    assert (note in said) is held
