"""A program that trains GPT-2, tapped as it is: its sentences follow from one gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tapping import leakaudit, tapped, torchrun

import leakaudit as la

pytest.importorskip("transformers", reason="is in the environment of `make programs`")
pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).resolve().parent / "language.py"


@pytest.mark.parametrize("options", [(), ("--untied",)])
def test_the_sentences_of_all_ranks_come_back(options: tuple[str, ...], tmp_path: Path) -> None:
    """The tap finds model, loss and length; only the number of sentences is told."""
    run = tapped(
        tmp_path,
        *torchrun(PROGRAM, *options),
        options=("--model-from", "program"),
        operators=True,
    )
    assert run.code == 0, run.said
    assert "each token is taken for the label of the one before it" in run.said
    model = run.description["model"]
    assert (model["shape"], model["classes"], model["loss"]) == ([19], 256, "next_token")
    description = tmp_path / "trace.toml"
    description.write_text(description.read_text().replace("# samples = 1", "samples = 2"))
    leakaudit(tmp_path, "tap", "merge", "trace.tap", "--describe", "trace.toml", "-o", "trace.pt")
    for one in la.attack(la.leaks(run.trace), generator=torch.Generator().manual_seed(0)):
        assert one.attack == "sequences"
        assert one.certificate.name == "EXACT", one.note
        assert one.y is not None
        whole = torch.cat([one.x.long(), one.y.long()[:, None]], dim=1)
        assert sorted(whole.tolist()) == sorted(run.kept(one.node)["x"].tolist())
