"""How strong every attack is, on a fixed table of victims and seeds: an attack that becomes weaker fails here.

`strength.toml` holds one row a victim and attack: the scenario, the attack's settings, and for every seed the median PSNR in dB (the
signal-to-error ratio for tables), how many records came back bit for bit, and the share of the labels.
``python tests/golden/test_strength.py`` prints the rows as they measure now.
"""

from __future__ import annotations

import math
import statistics
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator

from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.inversion import attacking
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.scoring import scoring
from leakaudit.views.extraction import hearing

TABLE = Path(__file__).parent / "strength.toml"
ROWS: list[dict[str, Any]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["row"]
BEST = 100.0  # dB; above it rounding alone decides
LEAST = 1e-12  # relative error; on some processors the result is bit for bit


def cells() -> list[Any]:
    return [
        pytest.param(
            row,
            k,
            id=f"{row['attack']}-{row['scenario']['victim']}-{row['scenario']['model']}-{seed}",
            marks=[pytest.mark.slow] * slow,
        )
        for row in ROWS
        for slow in [row.get("slow", False)]
        for k, seed in enumerate(row["seeds"])
    ]


def strength(row: dict[str, Any], seed: int) -> tuple[float, int, float]:
    """Median PSNR in dB of the records of the node attacked, the number bit for bit, and the share of the labels found."""
    recorder = recording.record(recording.plan(Scenario(**row["scenario"], seed=seed)), None)
    adversary = Adversary(corrupt=frozenset(row.get("corrupt", [])))
    estimator = attacking.estimator(row["attack"], row.get("set", {}))
    leaks = hearing.leaks(recorder.trace, adversary, [row["node"]], row.get("gradients"), estimator)
    (found,) = attacking.attack(
        leaks, row["attack"], generator=Generator().manual_seed(seed), **row.get("set", {})
    )
    (score,) = scoring.score(found, recorder.truth_record)
    near = score.psnr or [
        -20 * math.log10(max(e, LEAST)) for e in score.relative_error or () if e is not None
    ]
    median = statistics.median(float(v or 0) for v in near) if near else 0.0
    labels = score.labels_found
    if score.tokens_found is not None:
        assert score.tokens_wrong == 0
        assert score.tokens_found == row["tokens"]
    return (
        min(BEST, median),
        sum(map(bool, score.exact or ())),
        math.nan if labels is None else labels,
    )


@pytest.mark.parametrize(("row", "k"), cells())
def test_no_attack_is_weaker_than_it_was(row: dict[str, Any], k: int) -> None:
    psnr, exact, labels = strength(row, row["seeds"][k])
    assert psnr >= row["psnr"][k] - row["tolerance"]
    assert exact >= row["exact"][k]
    if "labels" in row:
        assert labels >= row["labels"][k]


def test_every_attack_and_every_victim_has_a_row() -> None:
    assert {row["attack"] for row in ROWS} == set(registry.names("attacks"))
    assert {row["scenario"]["victim"] for row in ROWS} == set(registry.names("victims")) - {
        "single"
    }, "single sends nothing"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for row in ROWS:
        found = [strength(row, seed) for seed in row["seeds"]]
        psnr, exact, labels = ([round(v, 3) for v in column] for column in zip(*found, strict=True))
        sys.stdout.write(
            f"{row['attack']} {row['scenario']['victim']}: psnr = {psnr}  exact = {exact}  labels = {labels}\n"
        )
        sys.stdout.flush()
