"""A tracker that is unknown, absent or too old ends in one line that says what to do."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from records import RECORDS, record

import leakaudit as la
from leakaudit.reporting import trackers
from leakaudit.reporting.results import model
from leakaudit.reporting.trackers import content


def of_version(monkeypatch: pytest.MonkeyPatch, found: str | None) -> None:
    def version(package: str) -> str:
        if found is None:
            raise PackageNotFoundError(package)
        return found

    monkeypatch.setattr(trackers, "version", version)


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(la.LeakauditError, match="there is no tracker 'mlfow'; did you mean 'ml"):
        la.log_to("mlfow", model.of(record()))


@pytest.mark.parametrize("tracker", trackers.OLDEST)
def test_an_absent_package_is_named(tracker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of_version(monkeypatch, None)
    said = f"{tracker} is not installed; install it with: pip install 'leakaudit[{tracker}]'"
    with pytest.raises(la.LeakauditError, match=re.escape(said)):
        la.log_to(tracker, model.of(record()))


@pytest.mark.parametrize("tracker", trackers.OLDEST)
def test_an_old_package_is_named(tracker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of_version(monkeypatch, "0.9.10")
    said = f"{tracker}: expected version {trackers.OLDEST[tracker]} or newer, got 0.9.10"
    with pytest.raises(la.LeakauditError, match=re.escape(said)):
        la.log_to(tracker, model.of(record()))


def test_the_extras_ask_for_the_versions_that_are_checked(project: Path) -> None:
    extras = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    for tracker, oldest in trackers.OLDEST.items():
        assert extras["optional-dependencies"][tracker] == [f"{tracker}>={oldest}"]


def test_what_is_no_result_is_refused() -> None:
    with pytest.raises(la.LeakauditError, match=r"run: expected a folder of results.* got int"):
        la.log_to("tensorboard", 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", RECORDS)
def test_every_kind_of_record_has_finite_metrics_with_plain_names(name: str) -> None:
    found = content.metrics(model.of(RECORDS[name]))
    for metric, value in found.items():
        assert re.fullmatch(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*", metric)
        assert ".." not in metric.split("/")
        assert abs(value) < float("inf")
