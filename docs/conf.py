"""Sphinx: Markdown pages and notebooks, furo theme. `make docs` builds with warnings as errors; tests/contract/test_docs.py runs the pages' code."""

import re
import sys
from pathlib import Path
from typing import Any

import leakaudit

sys.path.insert(0, str(Path(__file__).parent))
import _generated

project = "leakaudit"
author = copyright = "The leakaudit authors"
release = leakaudit.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes of a dataclass as one list, since autodoc lists its members
exclude_patterns = ["_build", "jupyter_execute"]  # the second: executed notebooks
html_theme = "furo"
html_title = f"leakaudit {release}"
myst_heading_anchors = 3
# Notebooks are stored without outputs and executed here, each in an empty folder.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300  # seconds for a cell; all of them together take less than a minute
nb_merge_streams = True
smartquotes = False  # --nodes is no dash
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# Types of torch and numpy, whose inventories are on the network.
nitpick_ignore_regex = [("py:.*", ".*")]
PAGES = {
    "benchmark-history": _generated.history,
    "cli": _generated.command_line,
    "coverage": _generated.coverage,
    "programs": _generated.programs,
    "victims": lambda: _generated.leaves("victims"),
    "attacks": lambda: _generated.leaves("attacks"),
}


def fill(app: Any, page: str, source: list[str]) -> None:
    """Append what is generated to a page that has nothing but its introduction."""
    if page in PAGES:
        source[0] += "\n" + PAGES[page]()


def plain(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain text: ``*shape`` is no emphasis and `name` is code."""
    for k, line in enumerate(lines):
        parts = re.split(r"(``[^`]*``|`[^`]*`)", line)
        lines[k] = "".join(code(part) for part in parts)


def code(part: str) -> str:
    """Mark a part of a line as code, or keep its special characters from being read as markup."""
    if part.startswith("`"):
        return f"``{part.strip('`')}``"
    return re.sub(r"([*|]|_(?=\W|$))", r"\\\1", part)


def setup(app: Any) -> None:
    """Connect both."""
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", plain, priority=400)  # before napoleon reads Args
