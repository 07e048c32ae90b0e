"""Limits, units and small formulas that other tests only see from afar: each fails if its line is
wrong.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from records import column, in_a_cell

from leakaudit._util import seeds, settings
from leakaudit.attacks import GradInversion
from leakaudit.capture.wire import payloads
from leakaudit.capture.wire.lines import MessageLine
from leakaudit.core.errors import LeakauditError
from leakaudit.core.payload import StoredColumns
from leakaudit.core.verdict import APART, Holds
from leakaudit.inversion.search import priors
from leakaudit.reporting.results.model import Scores, fitted
from leakaudit.runs.sweeping import merge


@pytest.mark.parametrize(("below", "holds"), [(0.5, Holds.EXACT), (2.0, Holds.AT_MOST)])
def test_a_bound_that_is_nearly_attained_is_exact(below: float, holds: Holds) -> None:
    """`below` is in units of `APART`."""
    assert Holds.of(2.0, 2.0 * (1 - below * APART)) is holds


@pytest.mark.parametrize(
    ("given", "spans"),
    [
        ([(0, 6), (2, 4)], ((0, 6),)),
        ([(4, 8), (0, 4)], ((0, 8),)),
        ([(0, 2), (3, 5)], ((0, 2), (3, 5))),
    ],
)
def test_spans_are_joined_where_they_touch(
    given: list[tuple[int, int]], spans: tuple[tuple[int, int], ...]
) -> None:
    assert StoredColumns.joined(10, given).spans == spans


@pytest.mark.parametrize(
    ("text", "size"), [("4kB", 4000), ("1.5 MB", 1_500_000), ("2gb", 2_000_000_000), ("7", 7)]
)
def test_sizes_are_decimal(text: str, size: int) -> None:
    assert settings.size(text) == size


def test_children_of_a_seed_are_those_of_no_other_numbers() -> None:
    found = {seeds.child(*some) for some in ((1, 2), (2, 1), (3, 0), (0, 3), (3, 3))}
    assert len(found) == 5


@pytest.mark.parametrize("size", [7, 8])
def test_a_raw_file_holds_what_its_line_says(size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(size))
    line = MessageLine(round=0, src=0, dst=1, file="a.bin", dtype="float32", shapes=((2,),))
    if size == 8:
        assert payloads._raw(path, line).nbytes == 8
        return
    with pytest.raises(LeakauditError, match="8 bytes from offset 0 on exceed"):
        payloads._raw(path, line)


def test_smoothness_has_the_weight_of_total_variation() -> None:
    x = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    found = GradInversion(tv=0.5, energy=2.0)._smooth(x)
    wanted = 0.5 * priors.total_variation(x) + 2.0 * x.square().mean()
    assert float(found) == pytest.approx(float(wanted))


@pytest.mark.parametrize(("psnr", "recovered"), [(20.0, 1), (19.99, 0)])
def test_a_record_at_the_threshold_of_a_sweep_is_recovered(psnr: float, recovered: int) -> None:
    scores = {
        "psnr": column(psnr),
        "exact": column(False),
        "chance": None,
        "labels_found": None,
        "not_recovered": 0,
        "matched": [0],
    }
    found = merge.columns([in_a_cell(fitted(scores, Scores))], 1, 20.0)
    assert found.recovered == recovered


@pytest.mark.parametrize("order", ["fd", "df", "d", "f"])
def test_a_cell_that_is_done_in_one_part_is_done(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"d": "done", "f": "failed"}

    def store(folder: Path) -> Any:
        return SimpleNamespace(load=lambda _: SimpleNamespace(status=words[folder.name]))

    monkeypatch.setattr(merge, "Store", store)
    found = cast(Any, merge._best([Path(name) for name in order], "key"))
    assert found.status == ("done" if "d" in order else "failed")
