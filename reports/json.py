"""The record itself, for use by programs."""

from __future__ import annotations

import json
from collections.abc import Mapping

from leakaudit.registry import renderer
from leakaudit.trace import Json


@renderer("json")
def render(results: Mapping[str, Json]) -> str:
    """Return a record as indented JSON in ASCII.

    Args:
        results: A record.

    Returns:
        JSON with every value unchanged.
    """
    return json.dumps(results, indent=2, allow_nan=False) + "\n"
