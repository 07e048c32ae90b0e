"""Sentences of the project, chosen at random, to be read aloud.

    python tests/sentences.py --seed 1 --count 60

Every page, docstring, comment and message has the same chance per sentence. A list of words such as
`tests/vocabulary.py` finds habits that are known already; reading finds the others.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from vocabulary import PROJECT, pages, prose

SOURCES = ("leakaudit", "attacks", "victims", "reports")
WORDS = 6  # fewer are a label, not a sentence
END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")


def of_page(path: Path) -> Iterator[str]:
    """Yield the sentences of a Markdown page."""
    paragraph: list[str] = []
    for _, line in prose(path.read_text(encoding="utf-8")):
        if not line.strip() or line.lstrip().startswith(("#", "|", "- ", "* ")):
            yield from split(" ".join(paragraph))
            paragraph = []
        if line.strip() and not line.startswith(("#", "|")):
            paragraph.append(line.strip())
    yield from split(" ".join(paragraph))


def of_source(path: Path) -> Iterator[str]:
    """Yield the sentences in the docstrings and the messages of a Python file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield from split(_formatted(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for paragraph in re.split(r"\n\s*\n", node.value):
                yield from split(paragraph)


def _formatted(text: ast.JoinedStr) -> str:
    """Return an f-string with … in the place of its values."""
    parts = [part.value if isinstance(part, ast.Constant) else "…" for part in text.values]
    return "".join(map(str, parts))


def split(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph."""
    for sentence in END.split(" ".join(paragraph.split())):
        if len(sentence.split()) >= WORDS:
            yield sentence


def every() -> list[tuple[str, str]]:
    """Return all sentences with the files that hold them."""
    found = [(page, sentence) for page in pages() for sentence in of_page(page)]
    for folder in SOURCES:
        for path in sorted((PROJECT / folder).rglob("*.py")):
            found += [(path, sentence) for sentence in of_source(path)]
    return [(path.relative_to(PROJECT).as_posix(), sentence) for path, sentence in found]


def main() -> None:
    """Print some sentences."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    asked = parser.parse_args()
    for path, sentence in random.Random(asked.seed).sample(every(), asked.count):
        sys.stdout.write(f"{path}\n{textwrap.indent(textwrap.fill(sentence, 96), '    ')}\n")


if __name__ == "__main__":
    main()
