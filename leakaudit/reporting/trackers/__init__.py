"""Sending a record to an experiment tracker; each has one module with a function `send`."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.reporting.trackers.content import TrackerContent

# The oldest versions with which the tests of the trackers pass; the extras in pyproject.toml repeat
# them. MLflow 3.1 fails with the SQLAlchemy of constraints.txt, and those between were not tried.
OLDEST = {"tensorboard": "2.18", "mlflow": "3.10", "wandb": "0.19"}


def send(
    tracker: str,
    content: TrackerContent,
    *,
    to: str | None,
    name: str | None,
    step: int,
    settings: dict[str, object],
) -> str:
    """Send a record to a tracker."""
    if tracker not in OLDEST:
        raise LeakauditError(f"there is no tracker {tracker!r}{suggest(tracker, OLDEST)}")
    _check_version(tracker)
    module = import_module(f"leakaudit.reporting.trackers.{tracker}")
    try:
        sent: str = module.send(content, to, name or f"leakaudit {content.kind}", step, settings)
    except TypeError as error:
        if not settings:
            raise
        given = ", ".join(settings)
        raise LeakauditError(
            f"{tracker} does not accept these settings ({given}): {error}"
        ) from None
    return sent


def _check_version(package: str) -> None:
    install = f"pip install 'leakaudit[{package}]'"
    try:
        found = version(package)
    except PackageNotFoundError:
        raise LeakauditError(f"{package} is not installed; install it with: {install}") from None
    if _numbers(found) < _numbers(OLDEST[package]):
        raise LeakauditError(
            f"{package}: expected version {OLDEST[package]} or newer, got {found}; "
            f"update it with: {install} --upgrade"
        )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])
