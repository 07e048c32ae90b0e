"""requirements.lock holds the versions of constraints.txt, each with its hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

VARIES = {"torch", "torchvision"}  # the files of a version differ between CPU and CUDA builds


def pins(text: str) -> dict[str, str]:
    """Return the version of each pinned package, by normalised name."""
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def test_versions_are_those_of_the_constraints(project: Path) -> None:
    constrained = pins((project / "constraints.txt").read_text())
    locked = pins((project / "requirements.lock").read_text())
    assert len(locked) > 50
    assert locked.items() <= constrained.items()
    assert not VARIES & locked.keys()


def test_every_package_has_hashes(project: Path) -> None:
    lines = (project / "requirements.lock").read_text().splitlines()
    for k, line in enumerate(lines):
        if "==" in line:
            assert lines[k + 1].strip().startswith("--hash=sha256:"), line


def test_what_users_install_is_locked(project: Path) -> None:
    declared = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    extras = declared["optional-dependencies"]
    wanted = {*declared["dependencies"], *extras["dev"], *extras["sweep"], *extras["pld"]}
    names = {re.split(r"[\[<>=]", one)[0].replace("_", "-") for one in wanted}
    locked = pins((project / "requirements.lock").read_text())
    assert names - VARIES - {"leakaudit"} <= locked.keys()
