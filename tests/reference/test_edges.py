"""Limits, units and small formulas that other tests only see from afar: each fails if its line is
wrong.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from records import cell_result, column, in_a_cell

from leakaudit._util import plural, seeds, settings
from leakaudit.attacks import GradInversion
from leakaudit.capture.wire import payloads
from leakaudit.capture.wire.lines import MessageLine
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.evidence import Evidence, Origin, weakest
from leakaudit.core.payload import StoredColumns
from leakaudit.core.verdict import APART, Holds
from leakaudit.inversion.search import priors
from leakaudit.reporting.results.cell_files import CellResult
from leakaudit.reporting.results.model import Scores, SweptCell, fitted
from leakaudit.runs.pipeline import attack_run
from leakaudit.runs.sweeping import merge, store


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


def scores_of(**changes: Any) -> Scores:
    plain = {
        "exact": column(False),
        "chance": None,
        "labels_found": None,
        "not_recovered": 0,
        "matched": [0],
    }
    return fitted({**plain, **changes}, Scores)


@pytest.mark.parametrize(("psnr", "recovered"), [(20.0, 1), (19.99, 0)])
def test_a_record_at_the_threshold_of_a_sweep_is_recovered(psnr: float, recovered: int) -> None:
    found = merge.columns(cell_result(in_a_cell(scores_of(psnr=column(psnr)))), 20.0)
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


def test_records_of_refused_nodes_count_in_a_curve() -> None:
    found = scores_of(psnr=column(30.0), labels_found=1.0)
    refused = scores_of(psnr={**column(None), "missed": [7.0]}, matched=[None], not_recovered=1)
    columns = merge.columns(cell_result(in_a_cell(found), records=2, refused={1: refused}), 20.0)
    assert cast(Any, columns).psnr == (30.0, 7.0)
    cell = SweptCell(
        key="0" * 64,
        attack="analytic",
        adversary="eavesdropper",
        at={},
        seed=0,
        status="done",
        says="",
        constants={},
        records=2,
        reasons={},
        columns=columns,
    )
    (point,) = merge.points([cell])
    assert (point.attacked, point.refused, point.labels_found) == (2, 1, 0.5)


def test_the_digest_of_a_result_is_that_of_its_cell() -> None:
    config = cast(Any, {})
    result = CellResult(
        config=config,
        status="failed",
        says="why",
        constants={},
        records=0,
        findings=(),
        refused=(),
        reasons={},
    )
    assert store._digest("a", result) != store._digest("b", result)


@pytest.mark.parametrize(("rounds", "left_out"), [(4, False), (5, True)])
def test_rounds_after_the_attacked_ones_are_named(rounds: int, left_out: bool) -> None:
    leak = SimpleNamespace(rounds=torch.tensor([2, 3]))
    made = SimpleNamespace(attack="exact", tried=("cone", "exact"))
    found = SimpleNamespace(late=[], pairs=[(leak, made)])
    options = SimpleNamespace(adversary=Adversary(corrupt=frozenset({1})))
    trace = SimpleNamespace(rounds=rounds)
    said = attack_run._not_tried(*cast(tuple[Any, Any, Any], (found, options, trace)))
    assert ("rounds after 3" in said) is left_out
    assert said[0].startswith("attacks analytic, completion, differential, ")


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([4], "4"),
        ([0, 1], "0, 1"),
        ([0, 1, 2], "0 to 2"),
        ([0, 1, 3], "0, 1, 3"),
        ([0, 2, 3, 9], "0, 2, 3, 9"),
        ([0, 2, 3, 5, 9], "0, 2 and 3 others"),
    ],
)
def test_only_consecutive_nodes_are_a_range(nodes: list[int], words: str) -> None:
    assert plural.listed(nodes) == words


def test_a_result_rests_on_its_weakest_input() -> None:
    inputs = [Evidence("clip", origin) for origin in Origin]
    found = weakest(reversed(inputs[1:]))
    assert found is not None
    assert found.origin is Origin.UNKNOWN
    assert weakest([]) is None
