"""A tracker that is unknown, absent or too old ends in one line that says what to do."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from records import record

import leakaudit as la
from leakaudit import trackers
