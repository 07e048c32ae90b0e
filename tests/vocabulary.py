"""Words and phrases that our readers stumble over, and suggested replacements.

    python tests/vocabulary.py                     the documentation
    python tests/vocabulary.py leakaudit attacks
        comments and texts of the Python files in these folders

The list describes habits of this project, not rules of English: most entries are words that are
fine elsewhere. `tests/contract/test_vocabulary.py` keeps the documentation free of them.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Tell:
    """One habit.

    Attributes:
        pattern: Regular expression; case does not matter.
        instead: The suggested replacement.
    """

    pattern: str
    instead: str


TELLS = (
    Tell(r"\b(?<!`)alone(?!`)\b", "only, by itself"),
    Tell(r"(?<!there )\bis no (?!longer|more|less|larger|smaller)\w+", "is not a ..."),
    Tell(r"\b(?:one|two|three) an? (?!time)\w+", "per"),
    Tell(r"\bhostile\b", "malicious, malformed"),
    Tell(r"\blisteners?\b", "adversary, eavesdropper"),
    Tell(r"\bwho hears\b", "who observes"),
    Tell(r"\b(?:hears|heard)\b", "observes, observed"),
    Tell(r"\bwires?\b(?!\.md| format)", "channel, message"),
    Tell(r"\b(?:priced|prices|pricing)\b", "bound, evaluate"),
    Tell(r"\bpromises?\b(?! of this program)", "claim, guarantee"),
    Tell(r"\b(?:quieter|louder|loud)\b", "smaller, larger"),
    Tell(r"\bwhoever\b", "anyone who"),
    Tell(r"\bof (?:his|her) choice\b", "arbitrary"),
    Tell(r"\bat hand\b", "available"),
    Tell(r"\bwhat came out\b(?!, and why)", "the results"),
    Tell(r"\bPaper 00\d\b", "the paper's name"),
)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a Markdown page that are not code, with their numbers.

    Args:
        text: Text of the page.
    """
    fenced = False
    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, re.sub(r"`[^`]*`", "`code`", line)


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of comments and string literals of a Python file, with their numbers.

    Args:
        source: Source of the file.
    """
    spoken = [tokenize.COMMENT, tokenize.STRING]
    if sys.version_info >= (3, 12):
        spoken.append(tokenize.FSTRING_MIDDLE)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in spoken:
            for offset, line in enumerate(token.string.split("\n")):
                yield token.start[0] + offset, re.sub(r"`[^`]*`", "`code`", line)


def tells(path: Path) -> Iterator[str]:
    """Yield one line for each tell in a file: location, words, suggestion.

    Args:
        path: A Markdown page or a Python file.
    """
    lines = texts if path.suffix == ".py" else prose
    for number, line in lines(path.read_text()):
        for tell in TELLS:
            for found in re.finditer(tell.pattern, line, re.IGNORECASE):
                yield f"{path}:{number}: {found[0]!r}; write {tell.instead}"


def pages() -> list[Path]:
    """Return all Markdown pages of the project except the changelog."""
    top = [PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [*top, *sorted((PROJECT / "docs").rglob("*.md"))]


def main() -> int:
    """Print the tells of the documentation, or of the given files; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("paths", nargs="*", type=Path)
    files: list[Path] = []
    for path in parser.parse_args().paths:
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    found = [line for path in files or pages() for line in tells(path)]
    for line in found:
        sys.stdout.write(f"{line}\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
