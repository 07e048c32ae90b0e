"""A program that trains GPT-2, tapped as it is: its sentences follow from one gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tapping import Run, leakaudit, tapped, torchrun

import leakaudit as la

pytest.importorskip("transformers", reason="is in the environment of `make programs`")
pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).resolve().parent / "language.py"


@pytest.mark.parametrize("options", [(), ("--untied",)])
def test_the_sentences_of_all_ranks_come_back(options: tuple[str, ...], tmp_path: Path) -> None:
    """The tap finds model, loss and length; the number of sentences is told for the certificate."""
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
    attacked(run, "APPROXIMATE")
    description = tmp_path / "trace.toml"
    text = description.read_text()
    assert "# samples = …" in text
    description.write_text(text.replace("# samples = …", "samples = 2  #"))
    leakaudit(tmp_path, "tap", "merge", "trace.tap", "--describe", "trace.toml", "-o", "trace.pt")
    attacked(run, "EXACT")


def attacked(run: Run, certificate: str) -> None:
    """Attack all ranks, and compare with what the program kept."""
    for one in la.attack(la.leaks(run.trace), generator=torch.Generator().manual_seed(0)):
        assert one.attack == "sequences"
        assert one.certificate.name == certificate, one.note
        assert one.y is not None
        whole = torch.cat([one.x.long(), one.y.long()[:, None]], dim=1)
        assert sorted(whole.tolist()) == sorted(run.kept(one.node)["x"].tolist())
