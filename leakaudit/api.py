"""The functions that notebooks and other programs use."""

from __future__ import annotations

from leakaudit.extraction.hearing import MOST, deduce, leaks, targets
from leakaudit.inversion.attacking import attack, attack_one, attack_together, in_order
from leakaudit.scoring.scoring import score
from leakaudit.traces.trace_file import load, load_truth

__all__ = [
    "MOST",
    "attack",
    "attack_one",
    "attack_together",
    "deduce",
    "in_order",
    "leaks",
    "load",
    "load_truth",
    "score",
    "targets",
]
