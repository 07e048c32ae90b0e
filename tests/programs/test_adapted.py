"""A program that fine-tunes adapters: from its messages to its records."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tapping import leakaudit, tapped, torchrun

import leakaudit as la

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).resolve().parent / "adapted.py"


def test_shuffled_batches_behind_an_adapter_are_certified(tmp_path: Path) -> None:
    seen = tapped(tmp_path, *torchrun(PROGRAM), options=("--model-from", "program"))
    assert seen.code == 0, seen.said
    assert "a low-rank adapter receives the input" in seen.said
    text = (tmp_path / "trace.toml").read_text()
    loss = 'loss = "cross_entropy"'
    (tmp_path / "mine.toml").write_text(text.replace(loss, f"{loss}\nlevels = 255\n# "))
    leakaudit(tmp_path, "tap", "merge", "trace.tap", "--describe", "mine.toml", "-o", "mine.pt")
    found = la.attack(la.leaks(la.load(tmp_path / "mine.pt")), generator=torch.Generator())
    for one in found:
        held = seen.kept(one.node)["x"]
        assert one.attack == "exact"
        # All records but those of the first step, before which B is zero, occur in a later one.
        assert one.certified == 6, one.note
        for x in one.x[: one.certified]:
            assert bool((x == held).flatten(1).all(1).any())
