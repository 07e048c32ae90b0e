"""Temporary folders of strangers' code are removed, whatever is in them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from leakaudit._util.isolation import scratch


def test_links_in_a_scratch_folder_are_not_followed(tmp_path: Path) -> None:
    """The standard library changed the permissions of what a link in a read-only folder names."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    with scratch.folder() as place:
        inner = place / "tmp" / "a"
        inner.mkdir(parents=True)
        (inner / "link").symlink_to(secret)
        (place / "tmp" / "folder").symlink_to(tmp_path)
        inner.chmod(0o500)
        (place / "tmp").chmod(0)
    assert not place.exists()
    assert secret.read_text() == "secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_scratch_folder_may_be_deeper_than_python_recurses(tmp_path: Path) -> None:
    with scratch.folder() as place:
        here = os.open(place, scratch.FOLDER)
        for _ in range(3000):
            os.mkdir("1", dir_fd=here)
            inner = os.open("1", scratch.FOLDER, dir_fd=here)
            os.close(here)
            here = inner
        os.close(here)
    assert not place.exists()


def test_a_scratch_folder_is_private_and_removed_after_an_error() -> None:
    made = []

    def fail() -> None:
        with scratch.folder() as place:
            made.append(place)
            assert stat.S_IMODE(place.stat().st_mode) == scratch.OWNER
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not made[0].exists()
