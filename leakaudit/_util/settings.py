"""Options shared by all commands, and the sources of their values.

In decreasing priority: a flag, LEAKAUDIT_*, leakaudit.toml, pyproject.toml, the default.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from leakaudit._util import config, files
from leakaudit.core.errors import LeakauditError, suggest

TABLES = ("gate", "check", "budget", "accept")  # read by `leakaudit.judging.gate.config`
UNITS = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
YES = ("true", "1", "yes")
NO = ("false", "0", "no", "")


def size(text: str | int) -> int:
    """Read a number of bytes, such as 4000000000, "4e9", "500MB" or "4GB"."""
    lower = str(text).strip().lower()
    unit = lower[-2:]
    if unit in UNITS:
        return int(float(lower[:-2]) * UNITS[unit])
    return int(float(lower))


def seconds(text: str | float) -> float:
    """Read a length of time: a finite number that is not negative."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError
    return value


def boolean(text: str | bool) -> bool:
    """Read true or false."""
    word = str(text).lower()
    if word in YES:
        return True
    if word in NO:
        return False
    raise KeyError(word)


def choice(*options: str) -> Callable[[str], str]:
    """Return a function that accepts only certain words."""

    def read(text: str) -> str:
        if text not in options:
            raise ValueError
        return text

    read.__name__ = "one of " + ", ".join(options)
    return read


@dataclass(frozen=True)
class Setting:
    """One option."""

    default: Any  # its value if no source sets it
    read: Callable[[Any], Any]  # converts text to a value; raises ValueError or KeyError
    help: str
    kind: Any = None  # the type in a TOML file; the type of the default if None


SETTINGS: dict[str, Setting] = {
    "seed": Setting(0, int, "seed of all random choices, a whole number"),
    "device": Setting("cpu", str, "torch device: cpu, cuda or cuda:1"),
    "threads": Setting(1, int, "number of CPU threads for torch"),
    "progress": Setting(
        "auto",
        choice("auto", "rich", "plain", "none"),
        "progress on stderr: auto, rich, plain or none",
        Literal["auto", "rich", "plain", "none"],
    ),
    "output": Setting("leakaudit-out", str, "folder for results"),
    "data_root": Setting("data", str, "folder with data sets"),
    "download": Setting(False, boolean, "allow missing data sets to be downloaded"),
    "lpips_weights": Setting(
        "auto", str, "weights for LPIPS: a file, auto (cached weights) or off"
    ),
    "max_bytes": Setting(
        4_000_000_000, size, "maximum size of a recording in bytes, e.g. 4GB", int | float | str
    ),
    "max_seconds": Setting(
        0.0, seconds, "time limit for all attacks together in seconds, 0 for none"
    ),
}


def resolve(
    flags: Mapping[str, Any], folder: Path | None = None, environ: Mapping[str, str] | None = None
) -> dict[str, tuple[Any, str]]:
    """Return (value, source) of every setting.

    The source is "flag", "environment", a file or "default".
    """
    folder = folder or Path.cwd()
    environ = os.environ if environ is None else environ
    variables = {name: environ.get(f"LEAKAUDIT_{name.upper()}") for name in SETTINGS}
    project = config.read_if_any(folder / "pyproject.toml").table("tool", "leakaudit")
    layers = [
        ("pyproject.toml", _given(project, folder)),
        ("leakaudit.toml", _given(config.read_if_any(folder / "leakaudit.toml"), folder)),
        ("environment", _read(variables, "environment")),
        ("flag", _read({name: flags.get(name) for name in SETTINGS}, "flag")),
    ]
    found: dict[str, tuple[Any, str]] = {}
    for name, setting in SETTINGS.items():
        found[name] = (setting.default, "default")
    for source, values in layers:
        for name, value in values.items():
            found[name] = (value, source)
    output, source = found["output"]
    if source == "default" and not inside(Path(), output):
        raise LeakauditError(
            f"{output} is a link to a place outside of this folder, which nothing is written to by "
            "default; remove the link, or pass --output"
        )
    return found


def _given(table: config.ConfigTable, folder: Path) -> dict[str, Any]:
    """Return the settings of a file, which may be that of a project that the user only looks at."""
    settings = {}
    for key, value in table.values.items():
        name = key.replace("-", "_")
        if name in SETTINGS:
            settings[name] = _typed(name, value, table, key)
            _require_harmless(name, settings[name], folder, table.name, table.line(key))
        elif key not in TABLES:
            near = suggest(key, [*SETTINGS, *TABLES])
            raise table.error(f"unknown key {key!r}{near}", key)
    return settings


def _typed(name: str, value: Any, table: config.ConfigTable, key: str) -> Any:
    """Return a value of a TOML file: text is read as on the command line, others by their type."""
    setting = SETTINGS[name]
    try:
        if not isinstance(value, str):
            value = config.typed(value, setting.kind or type(setting.default))
        return setting.read(value)
    except (ValueError, KeyError, TypeError):
        raise _refused(name, value, table.name, table.line(key)) from None


def _require_harmless(name: str, value: Any, folder: Path, source: str, line: str) -> None:
    if name == "download" and value:
        raise LeakauditError(
            f"download from {source}: a file cannot allow downloads{line}; "
            "pass --download, or set LEAKAUDIT_DOWNLOAD=1"
        )
    if name == "output" and not inside(folder, str(value)):
        raise LeakauditError(
            f"output from {source}: expected a folder in that of the file, got {value!r}{line}; "
            "for another place, pass --output"
        )


def inside(folder: Path, name: str) -> bool:
    """Return whether a path leads to a place below a folder, links included."""
    return files.resolved(folder / name).is_relative_to(files.resolved(folder))


def _read(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    found = {}
    for name, value in values.items():
        if value is None:
            continue
        try:
            found[name] = SETTINGS[name].read(value)
        except (ValueError, KeyError, TypeError):
            raise _refused(name, value, source) from None
    return found


def _refused(name: str, value: Any, source: str, line: str = "") -> LeakauditError:
    problem = f"invalid value {value!r} ({SETTINGS[name].help}){line}"
    return LeakauditError(f"{name} from {source}: {problem}")
