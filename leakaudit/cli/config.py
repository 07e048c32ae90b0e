"""`leakaudit config show`: effective settings and where they come from."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from leakaudit.cli import shared
from leakaudit.settings import SETTINGS, resolve


def add(verbs: Any) -> None:
    """Describe the verb."""
    sub = verbs.add_parser("config", help="show effective settings and their sources")
    sub.add_argument("action", choices=("show",))
    sub.add_argument("-f", "--format", choices=("text", "json"), default="text", help="default text")
    shared(sub, *(n for n in SETTINGS if n != "progress"))
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one line a setting."""
    found = resolve(vars(args))
    if args.format == "json":
        sys.stdout.write(json.dumps({n: {"value": v, "source": s} for n, (v, s) in found.items()}, indent=2) + "\n")
        return 0
    for name, (value, source) in found.items():
        sys.stdout.write(f"{name:14} {value!s:16} {source:16} {SETTINGS[name].help}\n")
    return 0
