"""Matching against brute force, and scoring of whole batches."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakaudit._util.assignment import assign, match, match_labels
from leakaudit.core.errors import LeakauditError
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import Graph, Layout, TaskSpec, Trace, Truth
from leakaudit.scoring.scoring import NOT_SCORED, definitions, score
from leakaudit.traces.trace_file import same_run

SPEC = TaskSpec("mlp", shape=(1, 8, 8), levels=255, data="faces")


def batch(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed)) / 255


def truth(x: Tensor, y: Tensor, spec: TaskSpec = SPEC, nodes: int = 1) -> Truth:
    owner = torch.arange(len(x)) * nodes // len(x)
    return Truth("run", spec, x, y, owner, torch.arange(len(x)), batch(6, *x.shape[1:], seed=99))


def found(x: Tensor, y: Tensor | None = None, node: int = 0) -> Reconstruction:
    return Reconstruction(node, "dlg", x, y, Certificate.APPROXIMATE, 0.1)


@given(n=st.integers(1, 5), m=st.integers(1, 5), seed=st.integers(0, 10_000))
@settings(derandomize=True, max_examples=60, deadline=None)
def test_the_sum_is_the_smallest_of_all_permutations(n: int, m: int, seed: int) -> None:
    cost = torch.rand(n, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    pairs = assign(cost)
    small, wide = (cost, m) if n <= m else (cost.T, n)
    best = min(
        sum(small[i, j].item() for i, j in enumerate(p))
        for p in permutations(range(wide), min(n, m))
    )
    assert cost[pairs.found, pairs.true].sum().item() == pytest.approx(best)
    assert len(set(pairs.found.tolist())) == len(set(pairs.true.tolist())) == min(n, m)
    assert pairs.missing == m - min(n, m)
    assert pairs.true.tolist() == sorted(pairs.true.tolist())


@given(n=st.integers(0, 6), m=st.integers(1, 6), seed=st.integers(0, 10_000))
@settings(derandomize=True, max_examples=200, deadline=None)
def test_pairs_are_those_of_scipy_with_ties_and_without(n: int, m: int, seed: int) -> None:
    cost = torch.rand(n, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if seed % 2:
        cost = (4 * cost).round()
    pairs = assign(cost)
    rows, columns = linear_sum_assignment(cost.numpy())
    order = columns.argsort()
    assert pairs.found.tolist() == rows[order].tolist()
    assert pairs.true.tolist() == columns[order].tolist()
    assert pairs.missing == m - len(columns)


def test_a_shuffled_noisy_batch_finds_its_way_back() -> None:
    y = batch(16, 3, 8, 8)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    pairs = match((y + 0.1 * batch(16, 3, 8, 8, seed=2))[order], y)
    assert order[pairs.found].tolist() == pairs.true.tolist() == list(range(16))


def test_rows_that_are_not_finite_are_never_paired() -> None:
    y = batch(3, 1, 8, 8)
    x = y.clone()
    x[1, 0, 0, 0] = math.nan
    pairs = match(x, y)
    assert pairs.found.tolist() == pairs.true.tolist() == [0, 2]
    assert pairs.missing == 1
    assert match(x * math.inf, y).missing == 3


def test_labels_are_matched_as_a_bag() -> None:
    pairs = match_labels(torch.tensor([2, 0, 2]), torch.tensor([0, 1, 2, 2]))
    equal = torch.tensor([2, 0, 2])[pairs.found] == torch.tensor([0, 1, 2, 2])[pairs.true]
    assert equal.sum().item() == 3
    assert pairs.missing == 1


def test_scores_run_over_the_true_records_whatever_the_order() -> None:
    x, y = batch(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
    one = score(found(x[[2, 0, 3, 1]], y[[2, 0, 3, 0]]), truth(x, y))[0]
    assert one.matched == (1, 3, 0, 2)
    assert one.psnr == (200.0,) * 4
    assert one.exact == one.identified == (True,) * 4
    assert one.label_correct == (True, False, True, True)
    assert one.labels_found == 0.75
    assert one.chance == pytest.approx(4 / 10)
    assert one.statistics("label_correct") == {"min": 0.0, "median": 1.0, "mean": 0.75}


def test_records_without_a_reconstruction_are_not_recovered_and_said_so() -> None:
    x, y = batch(4, 1, 8, 8), torch.arange(4)
    one = score(found(x[:2], y[:2]), truth(x, y))[0]
    assert one.psnr == (200.0, 200.0, None, None)
    assert one.exact == one.label_correct == one.identified == (True, True, False, False)
    assert one.not_recovered == 2
    assert one.note == "2 of 4 records not recovered"
    assert one.statistics("exact")["mean"] == 0.5


def test_an_empty_reconstruction_recovers_nothing() -> None:
    x = batch(2, 1, 8, 8)
    one = score(found(x[:0]), truth(x, torch.zeros(2, dtype=torch.int64)))[0]
    assert one.matched == one.psnr == (None, None)
    assert one.exact == (False, False)
    assert one.statistics("psnr") == {"min": None, "median": None, "mean": None}


def test_of_more_reconstructions_than_records_only_the_first_count() -> None:
    x = batch(2, 1, 8, 8)
    one = score(found(torch.cat([1 - x, x])), truth(x, torch.zeros(2, dtype=torch.int64)))[0]
    assert sorted(row for row in one.matched if row is not None) == [0, 1]
    assert one.surplus == 2
    assert one.note == "2 reconstructions more than the 2 records; only the first 2 count"


def test_vectors_get_no_image_metric() -> None:
    spec = TaskSpec("logistic", shape=(22,), data="ijcnn1")
    x = batch(3, 22)
    one = score(found(1.5 * x), truth(x, torch.zeros(3, dtype=torch.int64), spec))[0]
    assert one.psnr is one.ssim is one.lpips is one.exact is None
    assert one.relative_error == pytest.approx((0.5,) * 3)
    assert "psnr" not in definitions(spec)


def test_without_a_truth_nothing_is_scored_and_that_is_said() -> None:
    one = score(found(batch(2, 1, 8, 8)), None)[0]
    assert one.note == NOT_SCORED
    assert one.to_json() is None
    assert one.statistics("psnr")["median"] is None


def test_a_shuffled_truth_scores_at_chance() -> None:
    nodes = 40
    x = batch(nodes, 1, 8, 8)
    attack = [found(x[[(n + 1) % nodes]], node=n) for n in range(nodes)]
    scores = score(attack, truth(x, torch.zeros(nodes, dtype=torch.int64), nodes=nodes))
    assert sum(bool(s.identified and s.identified[0]) for s in scores) == 0
    assert max(s.statistics("psnr")["mean"] or 200.0 for s in scores) < 12


def test_a_node_or_a_shape_that_the_truth_lacks_is_refused() -> None:
    x = batch(2, 1, 8, 8)
    own = truth(x, torch.zeros(2, dtype=torch.int64))
    with pytest.raises(LeakauditError, match="no records of node 5"):
        score(found(x, node=5), own)
    with pytest.raises(LeakauditError, match="truth's shape"):
        score(found(batch(2, 1, 9, 9)), own)


def test_the_truth_of_another_recording_is_refused() -> None:
    x = batch(1, 1, 8, 8)
    own = truth(x, torch.zeros(1, dtype=torch.int64))
    trace = Trace("fedsgd", {}, SPEC, Graph(1, ()), Layout((), ()), (0, 0), 1, (), id="other")
    with pytest.raises(LeakauditError, match="expected the truth of recording 'other'"):
        same_run(trace, own)


def test_the_definition_of_ssim_names_its_window() -> None:
    assert "window 7" in definitions(SPEC)["ssim"]
    assert "window 5" in definitions(TaskSpec("mlp", shape=(1, 6, 9)))["ssim"]
    assert "not measured" in definitions(TaskSpec("mlp", shape=(1, 2, 2)))["ssim"]
    assert "no weights" in definitions(SPEC)["lpips"]
