"""Curves against their definitions on a run whose states are known, and the line chart's axes."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor

import leakaudit as la
from leakaudit.protocols import recording, training_curves
from leakaudit.protocols.scenario import Scenario
from leakaudit.rendering import line_plot
from leakaudit.trace import Truth

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
        la.LeakauditError, match=r"^a\.truth\.pt holds no curves; record with --curves$"
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
    assert line_plot.logarithmic(values) is log


def test_axes_put_round_numbers_where_they_belong() -> None:
    linear = line_plot.Axis.of([0.0, 2000.0])
    assert [(round(at, 9), text) for at, text in linear.ticks()] == [
        (k / 4, f"{500 * k}") for k in range(5)
    ]
    log = line_plot.Axis.of([1e-12, 1.0], log=True)
    assert [text for _, text in log.ticks()] == ["1e-10", "1e-5", "1e0"]
    assert [at for at, _ in log.ticks()] == pytest.approx([2 / 12, 7 / 12, 1.0])
    assert log.place(1e-6) == pytest.approx(0.5)
    alone = line_plot.Axis.of([0.3])
    assert alone.place(0.3) == pytest.approx(0.5)
    assert line_plot.Axis.of([1e-4], log=True).place(1e-4) == pytest.approx(0.5)


def _at(page: Image.Image, colour: str) -> set[tuple[int, int]]:
    """Pixels that are nearly of a colour."""
    pixels = np.asarray(page).astype(int)
    near = np.abs(pixels - np.array(ImageColor.getrgb(colour))).sum(2) < 40
    return {(int(x), int(y)) for y, x in np.argwhere(near)}


def test_a_line_goes_where_its_values_are() -> None:
    """A straight line, an exponential on its logarithmic panel, and a run that ends early."""
    t = torch.arange(101, dtype=torch.float64)
    runs = {
        "a": {"loss": 100 + t, "consensus": 10.0 ** (-t / 10)},
        "b": {"loss": 200 - t[:51], "consensus": 10.0 ** (-t / 20)},
    }
    page = line_plot.chart(runs)
    head = line_plot.MARGIN + line_plot.LINE
    for panel, slope in ((0, -1.0), (1, 1.0)):
        left, top = (
            panel * (line_plot.LEFT + line_plot.WIDE + line_plot.RIGHT) + line_plot.LEFT,
            head + line_plot.TOP,
        )
        inside = [
            (x - left, y - top)
            for x, y in _at(page, line_plot.COLOURS[0])
            if left + 5 < x < left + line_plot.WIDE - 5 and y > top
        ]
        assert len(inside) > 40
        middle = line_plot.HIGH * (0.5 + slope * (np.array(inside)[:, 0] / line_plot.WIDE - 0.5))
        assert np.abs(np.array(inside)[:, 1] - middle).max() < 4
    second = [
        x - line_plot.LEFT
        for x, y in _at(page, line_plot.COLOURS[1])
        if y > head + line_plot.TOP and x < line_plot.LEFT + line_plot.WIDE
    ]
    assert max(second) == pytest.approx(line_plot.WIDE / 2, abs=3)


def test_gaps_and_single_points_are_drawn() -> None:
    nan = math.nan
    broken = {
        "loss": torch.tensor([nan, 1.0, 2.0, nan, 3.0]),
        "norm_w": torch.tensor([nan, nan]),
        "mse": torch.tensor([1.0, 0.0, 1e-9]),
    }
    page = line_plot.chart({"one": broken})
    assert page.size[0] > 2 * line_plot.WIDE
    assert _at(page, line_plot.COLOURS[0])
    with pytest.raises(la.LeakauditError, match="at most 8 runs"):
        line_plot.chart({str(k): broken for k in range(9)})
