"""TOML files that people write: their values, or one line that says what is wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakaudit.errors import LeakauditError


def read(path: Path, what: object = "") -> dict[str, Any]:
    """Return the values of a file; what: how a message names it, its path where not given. Raises LeakauditError."""
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
    """Return the table at nested keys, empty where there is none. Raises LeakauditError where one of them is no table."""
    for k, key in enumerate(keys):
        values = values.get(key, {})
        if not isinstance(values, dict):
            raise LeakauditError(
                f"{what}: expected a table [{'.'.join(keys[: k + 1])}], got {values!r:.60}"
            )
    return values
