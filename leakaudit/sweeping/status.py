"""How a cell of a sweep ended."""

from __future__ import annotations

DONE = "done"  # it has a result
FAILED = "failed"  # it raised
DIED = "died"  # its process ended
