"""TOML files that people write: their values, or one line that says what is wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakaudit.errors import LeakauditError


def read(path: Path, what: object = "") -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: The file.
        what: How a message names it; its path if empty.

    Returns:
        Its values.

    Raises:
        LeakauditError: It cannot be read, or is not TOML.
    """
    name = what or path
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise LeakauditError(f"{name}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise LeakauditError(
            f"{name}: expected a TOML file of UTF-8 text, got other bytes at {error.start}"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise LeakauditError(f"{name}: no valid TOML: {error}") from None


def table(values: Mapping[str, Any], *keys: str, what: object) -> Mapping[str, Any]:
    """Return the table at nested keys.

    Args:
        values: Of a file.
        keys: From the outermost to the innermost.
        what: How a message names the file.

    Returns:
        The table; empty if there is none.

    Raises:
        LeakauditError: Something else than a table stands at one of the keys.
    """
    for depth, key in enumerate(keys, 1):
        values = values.get(key, {})
        if not isinstance(values, dict):
            place = ".".join(keys[:depth])
            raise LeakauditError(f"{what}: expected a table [{place}], got {values!r:.60}")
    return values
