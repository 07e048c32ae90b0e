"""ROUGE of recovered texts, which needs the extra 'text', against values worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import TaskSpec, Truth
from leakaudit.scoring import metrics, scoring

pytest.importorskip("rouge_score", reason="needs the extra 'text'")


def tokens(text: str) -> Tensor:
    return torch.tensor([list(text.encode())])


def test_rouge_is_that_of_the_words() -> None:
    """Of 4 and 4 words, 3 are common, 1 of 3 pairs, and the longest common subsequence has 3."""
    found = metrics.rouge(tokens("the cat sat down"), tokens("the cat lay down"))
    assert float(found["rouge1"]) == pytest.approx(3 / 4)
    assert float(found["rouge2"]) == pytest.approx(1 / 3)
    assert float(found["rougel"]) == pytest.approx(3 / 4)


def test_a_score_contains_it() -> None:
    true = tokens("the cat sat down")
    spec = TaskSpec("gpt", {}, "next_token", (16,), 256)
    y = torch.tensor([0])
    truth = Truth("run", spec, true.float(), y, y, y, torch.empty(0, 16))
    (score,) = scoring.score(Reconstruction(0, "sequences", true, y, Certificate.EXACT, 0.0), truth)
    assert (score.rouge1, score.rouge2, score.rougel) == ((1.0,), (1.0,), (1.0,))
    assert scoring.definitions(spec)["rougel"] == "ROUGE-L of words, F1 (rouge-score)"
