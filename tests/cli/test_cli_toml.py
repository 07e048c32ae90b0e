"""Files that should be TOML and are not, or have a value where a table belongs: one line that says so, code 2, nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest
from invoked import refused

pytestmark = pytest.mark.usefixtures("own_folder")

BROKEN = {
    "bytes.toml": (
        b"seed = 1\n\x80\x81",
        "expected a TOML file of UTF-8 text, got other bytes at 9",
    ),
    "words.toml": (b"a = = 3", "not valid TOML: Invalid value (at line 1, column 5)"),
    "absent.toml": (None, "No such file or directory"),
}
READERS = {
    "record": ("record", "--scenario", "{}", "-o", "x.pt"),
    "audit": ("audit", "{}"),
    "sweep": ("sweep", "{}"),
    "merge": ("tap", "merge", "tapped", "--describe", "{}"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("argv", READERS.values(), ids=READERS)
def test_a_file_that_is_no_toml(
    argv: tuple[str, ...],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    text, says = BROKEN[name]
    if text is not None:
        Path(name).write_bytes(text)
    assert f"{name}: {says}" in refused(capsys, *(a.format(name) for a in argv))


@pytest.mark.parametrize(
    ("name", "text", "argv", "says"),
    [
        (
            "plan.toml",
            "audit = 3",
            ("audit", "plan.toml"),
            "leakaudit audit: plan plan.toml: expected a table [audit], got 3",
        ),
        (
            "plan.toml",
            "scenario = 3",
            ("audit", "plan.toml"),
            "scenario plan.toml: expected a table [scenario], got 3",
        ),
        (
            "plan.toml",
            "sweep = 3",
            ("sweep", "plan.toml"),
            "sweep plan.toml: expected a table [sweep]",
        ),
        (
            "pyproject.toml",
            "tool = 3",
            ("check",),
            "pyproject.toml: expected a table [tool], got 3",
        ),
        (
            "pyproject.toml",
            "[tool]\nleakaudit = []",
            ("config", "show"),
            "pyproject.toml: expected a table [tool.leakaudit], got []",
        ),
        (
            "leakaudit.toml",
            "gate = 1",
            ("check",),
            "leakaudit.toml: expected a table [gate], got 1",
        ),
    ],
)
def test_a_value_where_a_table_belongs(
    name: str,
    text: str,
    argv: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    assert says in refused(capsys, *argv)
