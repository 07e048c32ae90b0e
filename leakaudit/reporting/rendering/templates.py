"""The Jinja environment of all pages, and the hashes by which their policies allow a script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def environment(folder: Path, finalize: Callable[[object], object] | None = None) -> Environment:
    """Return an environment for the templates of a folder, which escape every text."""
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
        keep_trailing_newline=True,
    )


def source_of(text: str) -> str:
    """Return the source of a content security policy that allows exactly this text."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
