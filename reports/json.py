"""The record itself, for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping

from leakaudit.registry import renderer
from leakaudit.trace import Json


@renderer("json")
def render(results: Mapping[str, Json]) -> str:
    """Write a record as indented JSON in ASCII.

    Args:
        results: A record.

    Returns:
        Every value as it was written.
    """
    return json.dumps(results, indent=2, allow_nan=False) + "\n"
