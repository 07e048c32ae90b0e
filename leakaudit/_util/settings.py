"""Options that every verb shares, and where their values come from: flag > LEAKAUDIT_* > leakaudit.toml > pyproject.toml > default."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakaudit._util import toml_file
from leakaudit.errors import LeakauditError, suggest


def size(text: str | int) -> int:
    """Read bytes: 4000000000, 4e9, 500MB, 4GB."""
    units = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
    lower = str(text).strip().lower()
    factor = units.get(lower[-2:], 1.0)
    return int(float(lower[:-2] if factor != 1.0 else lower) * factor)


def boolean(text: str | bool) -> bool:
    """Read true or false."""
    return {
        "true": True,
        "1": True,
        "yes": True,
        "false": False,
        "0": False,
        "no": False,
        "": False,
    }[str(text).lower()]


def choice(*options: str) -> Callable[[str], str]:
    """Return a reader of one of some words."""

    def read(text: str) -> str:
        if text not in options:
            raise ValueError
        return text

    read.__name__ = "one of " + ", ".join(options)
    return read


TABLES = ("gate", "check", "budget", "accept")  # of `leakaudit.gate.config`, which reads them


@dataclass(frozen=True)
class Setting:
    """One option: its default, how text is read, and what it means."""

    default: Any
    read: Callable[[Any], Any]
    help: str


SETTINGS: dict[str, Setting] = {
    "seed": Setting(0, int, "seed of every random choice"),
    "device": Setting("cpu", str, "where tensors live: cpu, cuda, cuda:1"),
    "threads": Setting(1, int, "threads of the tensor library"),
    "progress": Setting(
        "auto",
        choice("auto", "rich", "plain", "none"),
        "progress on stderr: auto, rich, plain or none",
    ),
    "output": Setting("leakaudit-out", str, "folder for results"),
    "data_root": Setting("data", str, "folder of downloaded data sets"),
    "download": Setting(False, boolean, "allow data sets to be downloaded"),
    "lpips_weights": Setting(
        "auto", str, "weights for LPIPS: a file, auto (what is cached) or off"
    ),
    "max_bytes": Setting(4_000_000_000, size, "largest recording that may be written, e.g. 4GB"),
    "max_seconds": Setting(0.0, float, "time for attacks together, 0 for no limit"),
}


def resolve(
    flags: Mapping[str, Any], folder: Path | None = None, environ: Mapping[str, str] | None = None
) -> dict[str, tuple[Any, str]]:
    """Return every setting's value and its source. Raises LeakauditError for unknown keys and unreadable values."""
    folder, environ = folder or Path.cwd(), os.environ if environ is None else environ
    project = toml_file.table(
        _table(folder / "pyproject.toml"), "tool", "leakaudit", what="pyproject.toml"
    )
    layers: list[tuple[str, Mapping[str, Any]]] = [
        ("pyproject.toml", project),
        ("leakaudit.toml", _table(folder / "leakaudit.toml")),
    ]
    for source, values in layers:
        for key in values:
            if key.replace("-", "_") not in SETTINGS and key not in TABLES:
                raise LeakauditError(
                    f"{source}: unknown key {key!r}{suggest(key, [*SETTINGS, *TABLES])}"
                )
    layers.append(
        (
            "environment",
            {
                n: environ[f"LEAKAUDIT_{n.upper()}"]
                for n in SETTINGS
                if f"LEAKAUDIT_{n.upper()}" in environ
            },
        )
    )
    layers.append(("flag", {n: v for n, v in flags.items() if n in SETTINGS and v is not None}))
    found: dict[str, tuple[Any, str]] = {n: (s.default, "default") for n, s in SETTINGS.items()}
    for source, values in layers:
        for key, value in ((k, v) for k, v in values.items() if k not in TABLES):
            found[key.replace("-", "_")] = (_read(key.replace("-", "_"), value, source), source)
    return found


def _table(path: Path) -> dict[str, Any]:
    return toml_file.read(path, path.name) if path.is_file() else {}


def _read(name: str, value: Any, source: str) -> Any:
    setting = SETTINGS[name]
    try:
        return setting.read(value)
    except (ValueError, KeyError, TypeError):
        raise LeakauditError(
            f"{name} from {source}: expected {setting.help}; got {value!r}"
        ) from None
