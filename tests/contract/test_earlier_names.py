"""What programs wrote for an earlier version says in one line how it is written today."""

from __future__ import annotations

import inspect

import pytest

import leakaudit as la
from leakaudit._util import earlier_names

EARLIER = [(name, word) for name, moved in earlier_names.KEYWORDS.items() for word in moved]


@pytest.mark.parametrize(("name", "word"), EARLIER)
def test_an_earlier_keyword_names_the_one_of_today(name: str, word: str) -> None:
    function = getattr(la, name)
    assert word not in inspect.signature(function).parameters
    with pytest.raises(TypeError) as caught:
        function(**{word: None})
    assert str(caught.value) == (
        f"{name} has no argument {word}; write {earlier_names.KEYWORDS[name][word]}"
    )


def test_an_unknown_keyword_is_still_unknown() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'column'"):
        la.Recorder(None, column=(0, 3))  # type: ignore[call-arg]
