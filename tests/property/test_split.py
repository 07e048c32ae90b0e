"""Splits: no record twice, the promised classes, reproducible, and errors that count."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.tasks.data import Dataset, split


def dataset(y: Tensor) -> Dataset:
    x = torch.arange(float(len(y))).unsqueeze(1)
    return Dataset(
        x, y, "made-up", 1 if y.is_floating_point() else int(y.max()) + 1, 0, (), (0.0,), (1.0,)
    )


def labels(draw: st.DrawFn, least: int) -> Tensor:
    return torch.tensor(draw(st.lists(st.integers(0, 5), min_size=least, max_size=least + 40)))


@st.composite
def dealt(draw: st.DrawFn) -> tuple[Dataset, int, int, int]:
    nodes, samples = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    return dataset(labels(draw, nodes * samples)), nodes, samples, draw(st.integers(0, 2**31))


@given(
    dealt(),
    st.sampled_from(["iid", "dirichlet:0.1", "dirichlet:1", "dirichlet:1000", "dirichlet:1e-3"]),
)
@settings(derandomize=True, deadline=None)
def test_every_row_goes_to_one_node(case: tuple[Dataset, int, int, int], how: str) -> None:
    data, nodes, samples, seed = case
    before = torch.random.get_rng_state()
    rows = split(data, nodes, samples, how, Generator().manual_seed(seed))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert rows.shape == (nodes, samples)
    assert rows.dtype == torch.int64
    assert len(rows.unique()) == nodes * samples
    assert 0 <= int(rows.min()) <= int(rows.max()) < len(data)
    assert torch.equal(rows, split(data, nodes, samples, how, Generator().manual_seed(seed)))


@given(dealt(), st.integers(1, 6))
@settings(derandomize=True, deadline=None)
def test_classes_gives_every_node_exactly_that_many(
    case: tuple[Dataset, int, int, int], wanted: int
) -> None:
    data, nodes, samples, seed = case
    try:
        rows = split(data, nodes, samples, f"classes:{wanted}", Generator().manual_seed(seed))
    except LeakauditError as error:
        assert "expected 1 to" in str(error) or "do not fit" in str(error)  # noqa: PT017
        return
    assert len(rows.unique()) == nodes * samples
    for node in rows:
        counts = data.y[node].bincount()
        assert int((counts > 0).sum()) == wanted
        assert int(counts.max()) - int(counts[counts > 0].min()) <= 1


@given(st.integers(2, 6), st.integers(1, 5), st.integers(1, 4), st.integers(0, 1000))
@settings(derandomize=True, deadline=None)
def test_classes_uses_the_last_record_where_it_must(
    classes: int, wanted: int, copies: int, seed: int
) -> None:
    wanted = min(wanted, classes)
    # `classes` nodes, each with `copies` records of `wanted` classes, out of exactly wanted * copies records a class
    data = dataset(torch.arange(classes).repeat(wanted * copies))
    rows = split(data, classes, wanted * copies, f"classes:{wanted}", Generator().manual_seed(seed))
    assert torch.equal(rows.flatten().sort().values, torch.arange(len(data)))


def test_iid_is_uniform() -> None:
    data = dataset(torch.zeros(10, dtype=torch.int64))
    g = Generator().manual_seed(0)
    firsts = torch.tensor([int(split(data, 2, 2, "iid", g)[1, 1]) for _ in range(2000)]).bincount(
        minlength=10
    )
    assert (
        float(((firsts - 200.0) ** 2 / 200).sum()) < 27.9
    )  # chi-square, 9 degrees of freedom, p = .001


def test_dirichlet_concentration_decides_how_alike_the_nodes_are() -> None:
    data = dataset(torch.arange(10).repeat(200))

    def kinds(a: str) -> float:
        rows = split(data, 10, 50, f"dirichlet:{a}", Generator().manual_seed(0))
        return sum(len(data.y[node].unique()) for node in rows) / 10

    assert kinds("0.01") < 3
    assert 4 < kinds("0.5") < 9
    assert kinds("1000") > 9.5


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("iid", "7 nodes x 3 samples need 21 records, but made-up has 20"),
        ("idd", "expected iid, classes:C, dirichlet:A or owners, got 'idd'"),
        ("classes", "expected iid"),
        ("classes:-1", "expected iid"),
        ("dirichlet:nan", "expected iid"),
        ("dirichlet:0", "concentration above 0"),
        ("classes:0", "expected 1 to 2 classes"),
        ("classes:3", "expected 1 to 2 classes for 3 samples"),
        ("classes:1", "5 nodes x 3 samples do not fit, the classes hold 10 to 10"),
    ],
)
def test_splits_that_are_refused(how: str, says: str) -> None:
    data, nodes = dataset(torch.tensor([0, 1]).repeat(10)), 7 if how == "iid" else 5
    samples = 4 if how == "classes:1" else 3
    with pytest.raises(LeakauditError, match=says.replace("x 3", f"x {samples}")):
        split(data, nodes, samples, how, Generator().manual_seed(0))


def test_real_targets_have_no_classes() -> None:
    data = dataset(torch.rand(10, generator=Generator().manual_seed(0)))
    assert split(data, 2, 5, "iid", Generator().manual_seed(0)).shape == (2, 5)
    with pytest.raises(LeakauditError, match="real targets; use iid"):
        split(data, 2, 5, "dirichlet:1", Generator().manual_seed(0))
