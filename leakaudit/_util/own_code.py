"""Code outside leakaudit, which a file can name and only the user can allow."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import TypeAlias

# The one factory that the user trusts; True for the factory that the user's own code or command
# line names, False for none.
Trust: TypeAlias = bool | str

# Functions of these packages do anything but build a user's model.
NO_FACTORIES = frozenset(sys.stdlib_module_names | {"torch"})


@contextmanager
def importable(folder: str = "") -> Iterator[None]:
    """Search a folder for modules, after the standard library and all installed packages."""
    place = os.path.abspath(folder)
    # A file may be younger than the listing of its folder that the import system keeps.
    importlib.invalidate_caches()
    sys.path.append(place)
    try:
        yield
    finally:
        # The last one: the same folder may be on the path for other reasons.
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index(place)]


def defined_in(value: object, module: str) -> bool:
    """Return whether a value is a Python function that a module or its submodules define.

    Functions of the standard library and of torch do not count.
    """
    if not isinstance(value, FunctionType) or module.partition(".")[0] in NO_FACTORIES:
        return False
    home = str(value.__module__)
    return home == module or home.startswith(f"{module}.")
