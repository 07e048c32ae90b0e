"""The documentation uses the words of its glossary: `tests/vocabulary.py` has the list of tells."""

from __future__ import annotations

from pathlib import Path

import pytest
import vocabulary


@pytest.mark.parametrize("page", vocabulary.pages(), ids=lambda page: page.stem)
def test_a_page_has_no_tells(page: Path) -> None:
    assert list(vocabulary.tells(page)) == []


def test_a_tell_is_found_in_prose_and_not_in_code(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("An eavesdropper hears it.\n\n```sh\nwho hears\n```\n\nThe field `wire`.\n")
    (found,) = vocabulary.tells(page)
    assert found == f"{page}:1: 'hears'; write observes, observed"


def test_a_tell_is_found_in_a_comment_and_a_text_of_python(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("wire = 1  # one wire\nsaid = 'nobody hears'\n")
    assert [line.split(": ")[1][:7] for line in vocabulary.tells(module)] == [
        "'wire';",
        "'hears'",
    ]
