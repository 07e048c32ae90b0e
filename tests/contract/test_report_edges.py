"""Formats of reports that other tests only see from afar."""

from __future__ import annotations

import math

from leakaudit.reports import json, latex, text


def test_an_infinite_number_is_the_word_inf_in_json() -> None:
    assert [json._finite(cell) for cell in (math.inf, 1.5, None, "a")] == ["inf", 1.5, None, "a"]


def test_decibels_have_a_digit_in_latex() -> None:
    assert latex._value(23.456, "dB") == "23.5"
    assert latex._value(-3.14, "dB") == "$-3.1$"


def test_brackets_in_latex_are_explained() -> None:
    for key in ("rate", "share"):
        row: dict[str, str | int | float | bool | None] = {
            key: 0.5,
            f"{key}_low": 0.2,
            f"{key}_high": 0.8,
        }
        assert latex._definitions([row], [latex._Column(key, key, "share")]) == [latex.RATES]
        assert latex._definitions([{key: 0.5}], [latex._Column(key, key, "share")]) == []


def test_certificates_have_colours_of_their_own_in_a_terminal() -> None:
    assert text._STYLES == {"exact": "bold red", "approximate": "yellow", "failed": "dim"}
