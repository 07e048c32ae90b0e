"""The commit of an audited program: read from git, shown in reports, absent where there is none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from msgspec import UNSET
from records import RECORDS

from leakaudit._util.revision import is_commit, revision
from leakaudit.reporting.findings import redaction
from leakaudit.reporting.findings.wording import provenance
from leakaudit.reporting.results import model


def git(folder: Path, *words: str) -> str:
    names = dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "a")
    mails = dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "a@example.org")
    done = subprocess.run(
        ["git", *words],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **names, **mails},
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text("one\n")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def test_the_commit_and_whether_files_changed(repository: Path) -> None:
    state = revision(repository)
    assert state is not None
    assert (state.commit, state.changed) == (git(repository, "rev-parse", "HEAD"), False)
    (repository / "notes.txt").write_text("not tracked\n")
    assert revision(repository) == state
    (repository / "train.py").write_text("two\n")
    state = revision(repository)
    assert state is not None
    assert state.changed


def test_no_repository_no_commit_and_no_folder_have_none(tmp_path: Path) -> None:
    assert revision(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert revision(tmp_path) is None
    assert revision(tmp_path / "absent") is None


def test_a_repository_cannot_execute_a_command(repository: Path) -> None:
    git(repository, "config", "core.fsmonitor", "touch ran; false")
    assert revision(repository) is not None
    assert not (repository / "ran").exists()


@pytest.mark.parametrize("text", ["", "abc", "g" * 40, "a" * 41, 5, None, "a" * 40 + "\n"])
def test_only_full_names_are_commits(text: object) -> None:
    assert not is_commit(text)
    assert is_commit("a" * 40)


def test_reports_show_it_and_redaction_removes_it() -> None:
    of = RECORDS["attack"]
    program = {"commit": "a" * 40, "changed": True}
    of = {**of, "provenance": {**of["provenance"], "program": program}}
    shown = dict(provenance(model.of_run(of)))
    assert shown["program"] == f"git commit {'a' * 40}, with changes that are not committed"
    assert model.of_run(redaction.redact(of)).provenance.program is UNSET
