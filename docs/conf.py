"""Sphinx: Markdown pages, furo theme. `make docs` builds with warnings as errors."""

import leakaudit

project = "leakaudit"
author = copyright = "The leakaudit authors"
release = leakaudit.__version__
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"leakaudit {release}"
myst_heading_anchors = 3
