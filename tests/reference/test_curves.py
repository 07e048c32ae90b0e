"""Curves against their definitions on a run whose states are known, and the line chart's axes."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image, ImageColor

import leakaudit as la
from leakaudit.core.trace import Truth
from leakaudit.protocols import recording, training_curves
from leakaudit.protocols.scenario import Scenario
from leakaudit.reporting.figures import plots, training_chart

CHOSEN = Scenario(
    "tracking",
    nodes=5,
    graph="ring",
    rounds=7,
    data="gaussians",
    samples=6,
    model="logistic",
    dtype="float64",
    states=True,
    curves=True,
)


@pytest.fixture(scope="module")
def truth() -> Truth:
    return recording.record(recording.plan(CHOSEN), None).truth_record


def test_they_are_what_their_names_say(truth: Truth) -> None:
    """Loss and accuracy by hand from the mean model, on all records; the other two from the models of all nodes."""
    run, w = training_curves.kept(truth, "run"), truth.states["w"].numpy()
    x, y = truth.x.double().flatten(1).numpy(), truth.y.numpy()
    for t in range(1, 8):
        mean = w[t].mean(0)
        weight, bias = mean[: x.shape[1]], mean[x.shape[1] :]
        assert len(bias) == 1  # one output: binary
        out = x @ weight + bias
        assert run["loss"][t] == pytest.approx(
            np.mean(np.log1p(np.exp(-out)) * y + np.log1p(np.exp(out)) * (1 - y)), abs=1e-12
        )
        assert run["accuracy"][t] == pytest.approx(np.mean((out > 0) == (y > 0.5)), abs=1e-12)
        assert run["consensus"][t] == pytest.approx(
            math.sqrt(((w[t] - mean) ** 2).sum(1).mean()), abs=1e-12
        )
        assert run["norm_w"][t] == pytest.approx(math.sqrt((w[t] ** 2).sum(1).mean()), abs=1e-12)
        assert run["seconds"][t] > 0
    assert list(run) == ["loss", "accuracy", "consensus", "norm_w", "norm_y", "seconds"]
    assert training_curves.rounds(run) == [1, 2, 3, 4, 5, 6, 7]


def test_a_regression_has_no_accuracy() -> None:
    chosen = Scenario(
        "dpsgd", nodes=3, graph="ring", rounds=2, data="gaussians", model="linear", curves=True
    )
    plan = recording.plan(chosen)
    run = training_curves.kept(recording.record(plan, None).truth_record, "run")
    assert ("accuracy" in run) == (plan.task.spec.loss != "squared")


def test_nothing_is_kept_where_nobody_asked() -> None:
    plan = recording.plan(
        Scenario(
            "dpsgd",
            nodes=3,
            graph="ring",
            rounds=2,
            data="gaussians",
            model="logistic",
            states=True,
        )
    )
    with pytest.raises(
        la.LeakauditError, match=r"^a\.truth\.pt contains no curves; record with --curves$"
    ):
        training_curves.kept(recording.record(plan, None).truth_record, "a.truth.pt")


def test_tables_hold_every_number(truth: Truth) -> None:
    one = training_curves.kept(truth, "run")
    short = {"loss": torch.tensor([math.nan, 0.5, math.inf]), "mse": torch.tensor([math.nan, 1e-9])}
    runs = {"one": one, "short, other": short}
    table = list(csv.reader(io.StringIO(training_curves.to_csv(runs))))
    assert table[0] == [
        "run",
        "round",
        "loss",
        "accuracy",
        "consensus",
        "norm_w",
        "norm_y",
        "mse",
        "seconds",
    ]
    assert [row[:2] for row in table[1:]] == [
        *(["one", str(t)] for t in range(1, 8)),
        ["short, other", "1"],
    ]
    assert [float(row[2]) for row in table[1:8]] == one["loss"][1:].tolist()
    assert table[8][2:] == ["0.5", "", "", "", "", "1e-09", ""] or float(
        table[8][7]
    ) == pytest.approx(1e-9)
    tree = json.loads(training_curves.to_json(runs))
    assert tree["one"]["norm_y"] == one["norm_y"][1:].tolist()
    assert tree["short, other"]["round"] == [1]
    long = {"loss": torch.arange(2001.0)}
    text = training_curves.to_text({"run": long}).splitlines()
    assert text[0] == "run; 12 of 2001 rounds shown"
    assert [text[2].split(), text[-1].split()] == [["0", "0"], ["2000", "2000"]]
    assert len(text) == 2 + training_curves.SHOWN


@pytest.mark.parametrize(
    ("values", "log"),
    [
        ([1e-3, 1.0], True),
        ([0.5, 1.0], False),
        ([0.0, 1e-9, 1.0], True),
        ([-1.0, 100.0], False),
        ([0.0, 0.0], False),
    ],
)
def test_a_logarithmic_panel_is_one_that_needs_it(values: list[float], log: bool) -> None:
    assert plots.logarithmic(values) is log


def _drawn(figure: Figure) -> list[list[Line2D]]:
    """The lines of each panel."""
    return [[line for line in place.lines if line.get_gid()] for place in figure.axes]


def test_a_line_goes_where_its_values_are() -> None:
    """A straight line, an exponential on its logarithmic panel, and a run that ends early."""
    t = torch.arange(101, dtype=torch.float64)
    runs = {
        "a": {"loss": 100 + t, "consensus": 10.0 ** (-t / 10)},
        "b": {"loss": 200 - t[:51], "consensus": 10.0 ** (-t / 20)},
    }
    figure = training_chart.chart(runs)
    loss, consensus = figure.axes
    assert [place.get_ylabel() for place in figure.axes] == ["loss", "consensus error"]
    assert (loss.get_yscale(), consensus.get_yscale()) == ("linear", "log")
    for place, name in ((loss, "loss"), (consensus, "consensus")):
        for line, run in zip(_drawn(figure)[place is consensus], runs.values(), strict=True):
            xs, ys = line.get_data()
            assert np.asarray(xs).tolist() == list(range(len(run[name])))
            assert np.asarray(ys).tolist() == run[name].tolist()
        low, high = place.get_ylim()
        assert low <= min(float(run[name].min()) for run in runs.values())
        assert high >= max(float(run[name].max()) for run in runs.values())
        first, last = place.get_xlim()
        assert first <= 0
        assert last >= 100
    assert consensus.get_ylim() == (1e-10, 1.0)
    labels = [(at, consensus.yaxis.get_major_formatter()(at)) for at in consensus.get_yticks()]
    powers = ("⁻¹⁰", "⁻⁸", "⁻⁶", "⁻⁴", "⁻²", "⁰")
    wanted = zip(range(-10, 1, 2), powers, strict=True)
    assert labels == [(10.0**k, f"10{power}") for k, power in wanted]


def test_the_picture_shows_the_lines(tmp_path: Path) -> None:
    """Pixels of a line's colour lie on the straight line between its ends."""
    t = torch.arange(101, dtype=torch.float64)
    plots.save(training_chart.chart({"a": {"loss": 100 + t}}), tmp_path / "a.png")
    pixels = np.asarray(Image.open(tmp_path / "a.png").convert("RGB")).astype(int)
    near = np.abs(pixels - np.array(ImageColor.getrgb(plots.COLOURS[0]))).sum(2) < 40
    below = near.copy()
    below[:80] = False  # without the sample in the legend
    ys, xs = np.nonzero(below)
    assert len(xs) > 1000
    left, right = ys[xs == xs.min()].mean(), ys[xs == xs.max()].mean()
    wanted = left + (right - left) * (xs - xs.min()) / (xs.max() - xs.min())
    assert left > right + 200
    assert np.abs(ys - wanted).max() < 12  # half a marker and half a line


def test_gaps_and_single_points_are_drawn() -> None:
    nan = math.nan
    broken = {
        "loss": torch.tensor([nan, 1.0, 2.0, nan, 3.0]),
        "norm_w": torch.tensor([nan, nan]),
        "mse": torch.tensor([1.0, 0.0, 1e-9]),
    }
    figure = training_chart.chart({"one": broken})
    loss, norm, mse, *_ = figure.axes
    (line,) = _drawn(figure)[0]
    assert np.isnan(np.asarray(line.get_ydata())).tolist() == [True, False, False, True, False]
    marked = line.get_markevery()
    assert isinstance(marked, list)
    assert 4 in marked
    assert [text.get_text() for text in norm.texts] == ["norm of w: no finite value"]
    assert not norm.axison
    assert mse.get_xlabel() == "round"
    (logarithmic,) = _drawn(figure)[2]
    zero = mse.get_yticks()[0]
    assert np.asarray(logarithmic.get_ydata())[1] == zero < 1e-9
    assert mse.get_yticklabels()[0].get_text() == "0"
    assert loss.get_xlabel() == "round"
    with pytest.raises(la.LeakauditError, match="at most 8 runs"):
        training_chart.chart({str(k): broken for k in range(9)})
