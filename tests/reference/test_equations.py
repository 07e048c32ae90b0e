"""Equations that are fitted to traces without a label: right for every node, or not known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import leakaudit as la
from leakaudit.capture.equations.propose import _Proposal, propose
from leakaudit.capture.fitting import min_rank
from leakaudit.cli import main
from leakaudit.core import registry
from leakaudit.core.trace import Trace, Truth
from leakaudit.judging.lint.checks import Lint, lint
from leakaudit.protocols.equations.file import read
from leakaudit.tasks.task import Task

slow = pytest.mark.slow
NAME = "own:mine"
SHAPE = (1, 6, 6)
SPEC = la.TaskSpec("mlp", {"hidden": "16"}, shape=SHAPE, classes=3, levels=255)
RING = la.Graph(4, ((0, 1), (0, 3), (1, 2), (2, 3)))


def unlabelled(trace: Trace) -> Trace:
    return replace(trace, protocol=NAME, params={})


def proposed(trace: Trace) -> _Proposal:
    return propose(unlabelled(trace), Task.build(trace.task), NAME)


def holds(trace: Trace, truth: Truth, text: str) -> bool:
    """Whether a lint with the true records tests every equation and contradicts none."""
    one = unlabelled(trace)
    one = replace(one, provenance={**one.provenance, registry.TEXT: text})
    wrong = [pitfall for pitfall in lint(one, truth) if pitfall.number == 21]
    open_ = [line for line in Lint(one, truth).unexamined if "equation" in line]
    return not wrong and not open_


def recorded(victim: str, *, graph: str = "ring", **constants: Any) -> tuple[Trace, Truth]:
    other = {key: constants.pop(key) for key in ("samples", "dtype") if key in constants}
    return la.record(
        la.Scenario(
            victim=victim,
            nodes=4,
            graph=graph,
            rounds=10,
            data="faces",
            model="mlp",
            set={"hidden": 16, **constants},
            **other,
        )
    )


NAMED: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "mixing, then a step": ("dpsgd", {}, ("grad(w[i,t-1])", "alpha = 0.1", '"1/3"')),
    "a step, then mixing": ("dpsgd", {"order": "adapt"}, ("grad(mixed_w[i])", "alpha = 0.1")),
    "momentum": ("dpsgd", {"momentum": 0.9}, ("beta = 0.9", "velocity_w[i]", "alpha = 0.1")),
    "gradient tracking": ("tracking", {}, ("gradient_y[i] = grad(w[i])", "c = 0.1")),
    "EXTRA": ("extra", {}, ("gradient_w[i,t-1]", "alpha = 0.1", '"4/3"')),
    "a server of gradients": ("fedsgd", {"graph": "star"}, ("rate = 0.1", "grad(w[server -> i])")),
    "a server of models": ("fedavg", {"graph": "star"}, ("alpha = 0.1", "grad(w[server -> i])")),
}


@slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMED)
def test_the_equations_of_a_bundled_protocol_are_found(name: str, dtype: str) -> None:
    """With momentum, they may also be not known; they are never wrong."""
    victim, constants, words = NAMED[name]
    trace, truth = recorded(victim, dtype=dtype, **constants)
    found = proposed(trace)
    if found.text is None and name == "momentum":
        assert any("not known" in line for line in found.said)
        return
    assert found.text is not None, found.said
    for word in words:
        assert word in found.text
    assert holds(trace, truth, found.text)


Gradient = Callable[..., Tensor]
Rule = Callable[[list[list[Tensor]], int, int, Gradient], Tensor]


def invented(
    path: Path,
    rule: Rule,
    dtype: torch.dtype = torch.float32,
    records: int = 1,
    rounds: int = 8,
    hidden: int = 16,
) -> tuple[Trace, Truth]:
    """Record a protocol of nobody's on a ring of four nodes."""
    spec = replace(SPEC, args={"hidden": str(hidden)})
    task = Task.build(spec, dtype=dtype)
    rng = torch.Generator().manual_seed(3)
    x = torch.randint(256, (4, records, *SHAPE), generator=rng) / 255
    y = torch.randint(3, (4, records), generator=rng)
    w = [[task.init(rng)] * 4]
    with la.Recorder(
        path, protocol=NAME, task=spec, graph=RING, rounds=rounds, public={"w0": w[0][0]},
        options=la.RecorderOptions(dtype=dtype),
    ) as recorder:  # fmt: skip
        for t in range(1, rounds + 1):
            new = []
            for i in range(4):

                def gradient(theta: Tensor, i: int = i) -> Tensor:
                    return task.gradient(theta, x[i].to(dtype), y[i])

                new.append(rule(w, t, i, gradient))
                recorder.send(round=t, src=i, dst=RING.neighbours[i], kind="w", value=new[i])
            w.append(new)
        for i in range(4):
            recorder.truth(node=i, x=x[i], y=y[i])
    return la.load(str(path)), la.load_truth(str(path.with_suffix(".truth.pt")))


def one_way(w: list[list[Tensor]], t: int, i: int, g: Gradient) -> Tensor:
    return 0.7 * w[-1][i] + 0.3 * w[-1][(i + 1) % 4] - 0.05 * g(w[-1][i])


def stale(w: list[list[Tensor]], t: int, i: int, g: Gradient) -> Tensor:
    """A node has the model of its neighbour as it was a round before."""
    return 0.7 * w[-1][i] + 0.3 * w[max(0, t - 2)][(i + 1) % 4] - 0.05 * g(w[-1][i])


def shrinking(w: list[list[Tensor]], t: int, i: int, g: Gradient) -> Tensor:
    """Weight decay, and neighbours that count differently."""
    mixed = 0.5 * w[-1][i] + 0.2 * w[-1][(i + 1) % 4] + 0.3 * w[-1][(i - 1) % 4]
    return mixed - 0.05 * (g(w[-1][i]) + 0.02 * w[-1][i])


@pytest.mark.parametrize(
    ("rule", "row", "dtype"),
    [
        (one_way, '["7/10", "3/10", "0", "0"]', torch.float32),
        # In single precision, .499 is not singled out.
        pytest.param(shrinking, '["499/1000", "1/5", "0", "3/10"]', torch.float64, marks=slow),
    ],
)
def test_the_equations_of_an_invented_protocol_are_found(
    tmp_path: Path, rule: Rule, row: str, dtype: torch.dtype
) -> None:
    trace, truth = invented(tmp_path / "own.pt", rule, dtype)
    found = proposed(trace)
    assert found.text is not None, found.said
    assert row in found.text
    assert holds(trace, truth, found.text)


@slow
def test_a_stale_neighbour_is_found_or_not_known(tmp_path: Path) -> None:
    trace, truth = invented(tmp_path / "own.pt", stale)
    found = proposed(trace)
    assert found.text is None or holds(trace, truth, found.text)


def step(w: list[list[Tensor]], t: int, i: int, g: Gradient) -> Tensor:
    return w[-1][i] - 0.05 * g(w[-1][i])


def noisy(w: list[list[Tensor]], t: int, i: int, g: Gradient) -> Tensor:
    rng = torch.Generator().manual_seed(100 * t + i)
    moved = one_way(w, t, i, g)
    return moved + 1e-3 * torch.randn(len(moved), generator=rng).to(moved)


def adaptive(w: list[list[Tensor]], t: int, i: int, g: Gradient) -> Tensor:
    mixed = one_way(w, t, i, torch.zeros_like)
    gradient = g(w[-1][i])
    return mixed - 0.01 * gradient / (gradient.abs().sqrt() + 1e-3)


def compressed(w: list[list[Tensor]], t: int, i: int, g: Gradient) -> Tensor:
    return (one_way(w, t, i, g) * 500).round() / 500


def changing(w: list[list[Tensor]], t: int, i: int, g: Gradient) -> Tensor:
    return one_way(w, t, i, lambda theta: g(theta) / t)


def mean_of_all(w: list[list[Tensor]], t: int, i: int, g: Gradient) -> Tensor:
    """The messages look as if every node held the records of all nodes."""
    gradients = [g(w[-1][i], j) for j in range(4)]
    return w[-1][i] - 0.05 * torch.stack(gradients).mean(0)


@pytest.mark.parametrize(
    ("rule", "records"),
    [
        (noisy, 1),
        (adaptive, 1),
        pytest.param(compressed, 1, marks=slow),
        pytest.param(changing, 1, marks=slow),
        pytest.param(one_way, 20, marks=slow),
        (mean_of_all, 1),
    ],
)
def test_what_the_messages_do_not_determine_is_not_known(
    tmp_path: Path, rule: Rule, records: int
) -> None:
    trace, _ = invented(tmp_path / "own.pt", rule, records=records)
    found = proposed(trace)
    assert found.text is None
    assert any("not known" in line for line in found.said)


@slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_equations_of_batches_are_found(tmp_path: Path, dtype: torch.dtype) -> None:
    trace, truth = invented(tmp_path / "own.pt", one_way, dtype, records=3)
    found = proposed(trace)
    assert found.text is not None, found.said
    assert "recomputed gradients of 3 records" in found.said[0]
    assert '["7/10", "3/10", "0", "0"]' in found.text
    assert holds(trace, truth, found.text)


def test_batches_as_wide_as_the_layer_are_not_known(tmp_path: Path) -> None:
    trace, _ = invented(tmp_path / "own.pt", step, records=4, hidden=4)
    found = proposed(trace)
    assert found.text is None
    assert "w: not known" in found.said[0]


def without(trace: Trace, lost: set[tuple[int, int]]) -> Trace:
    """Return a trace without some messages: pairs of sender and round."""
    (table,) = trace.messages
    pairs = zip(table.src.tolist(), table.round.tolist(), strict=True)
    kept = torch.tensor([pair not in lost for pair in pairs])
    columns = ("round", "src", "dst", "kind", "row", "secure")
    rest = replace(table, **{name: getattr(table, name)[kept] for name in columns})
    return replace(trace, messages=(rest,))


def test_equations_are_found_although_messages_are_lost(tmp_path: Path) -> None:
    """Three of 32: the first message of a node, and two later ones."""
    trace, truth = invented(tmp_path / "own.pt", one_way)
    found = proposed(without(trace, {(1, 1), (2, 4), (0, 6)}))
    assert found.text is not None, found.said
    assert "w[i] = w0" in found.text
    assert holds(trace, truth, found.text)


def test_a_node_that_sends_nothing_has_no_equation(tmp_path: Path) -> None:
    trace, _ = invented(tmp_path / "own.pt", one_way)
    found = proposed(without(trace, {(3, t) for t in range(9)}))
    assert found.text is None
    assert found.said == ("w: not known: no messages of nodes 3",)


def test_a_command_writes_equations_that_the_lint_confirms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(registry.PLUGINS, "")
    monkeypatch.chdir(tmp_path)
    invented(tmp_path / "own.pt", one_way)
    assert main(["trace", "equations", "own.pt", "-o", "mine.toml"]) == 0
    said = capsys.readouterr().out
    assert "node 1, rounds 2 to 8: w[t] = 7/10 w of node 1[t-1] + 3/10 w of node 2[t-1]" in said
    assert read((tmp_path / "mine.toml").read_text()).name == NAME
    lint_it = "trace lint own.pt --truth own.truth.pt --strict --plugin mine.toml"
    assert main(lint_it.split()) == 0
    invented(tmp_path / "noisy.pt", noisy)
    assert main(["trace", "equations", "noisy.pt", "-o", "no.toml"]) == 3
    refused = capsys.readouterr().err.splitlines()
    assert refused[-1].startswith("leakaudit trace equations: w: not known")
    assert not (tmp_path / "no.toml").exists()


# --- the mathematics ------------------------------------------------------------------


def test_coefficients_come_back_from_blocks_of_small_rank() -> None:
    rng = np.random.default_rng(0)
    terms = rng.standard_normal((4, 3, 12, 20))
    c = np.array([0.25, 0.6, -0.1])
    small = rng.standard_normal((4, 12, 2)) @ rng.standard_normal((4, 2, 20))
    target = small + np.einsum("k,tkhp->thp", c, terms)
    blocks = min_rank.Blocks(target, terms, float(np.finfo(np.float32).eps))
    found = min_rank.fit(blocks, 2, [np.array([0.3, 0.5, 0.0])])
    assert found is not None
    assert np.abs(found[0] - c).max() < 1e-9
    assert min_rank.fit(blocks, 1, [c]) is None


def test_an_ambiguous_coefficient_has_no_value() -> None:
    """If a term itself has the rank, any multiple of it may be subtracted."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 1, 20))
    small, free = (rng.standard_normal((4, 12, 1)) @ x for _ in range(2))
    free = free + 1e-9 * rng.standard_normal(free.shape)
    blocks = min_rank.Blocks(small + 0.5 * free, free[:, None], 1e-7)
    found = min_rank.fit(blocks, 1, [np.array([0.5])])
    assert found is None or min_rank.simplest(0.5, float(found[1][0])) is None


@pytest.mark.parametrize(
    ("value", "width", "exact"),
    [
        (0.3333334, 1e-6, Fraction(1, 3)),
        (0.0999999, 1e-6, Fraction(1, 10)),
        (0.2997, 1e-8, Fraction(2997, 10000)),
        (1e-9, 1e-6, Fraction(0)),
        (0.3333, 0.05, None),
        (0.7182818284, 1e-7, None),
    ],
)
def test_a_number_is_named_only_if_the_measurement_singles_it_out(
    value: float, width: float, exact: Fraction | None
) -> None:
    assert min_rank.simplest(value, width) == exact
