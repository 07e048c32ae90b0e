"""leakaudit: measure what an observer of decentralised training learns about the training data.

The names below are loaded when they are first used, so `import leakaudit` stays light (no torch).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from leakaudit._util import earlier_names
from leakaudit.core import display
from leakaudit.core.version import VERSION as __version__

if TYPE_CHECKING:
    from pandas import DataFrame

    from leakaudit import attacks as attacks  # noqa: TID251 - so that type checkers see la.attacks
    from leakaudit.api import (
        ReportOptions,
        attack,
        audit,
        bound,
        check,
        claims,
        from_gradient,
        log_to,
        record,
        report,
        reproduce,
        sweep,
        table,
        to_pandas,
    )
    from leakaudit.core.adversary import Adversary
    from leakaudit.core.errors import AttackError, LeakauditError
    from leakaudit.core.leak import GradientLeak, Leaks
    from leakaudit.core.reconstruction import Certificate, Reconstruction
    from leakaudit.core.trace import Graph, TaskSpec, Trace, Truth
    from leakaudit.core.verdict import Verdict
    from leakaudit.inversion.attack import Attack
    from leakaudit.protocols.scenario import Scenario
    from leakaudit.protocols.victim import Victim
    from leakaudit.reporting.results.model import Record
    from leakaudit.runs.workers.executor import Executor
    from leakaudit.scoring.scoring import Score, score
    from leakaudit.tasks.task import Task
    from leakaudit.traces.recorder import Recorder, RecorderOptions, Storage
    from leakaudit.traces.trace_file import load, load_truth
    from leakaudit.views.accounting.bounding import BoundOptions
    from leakaudit.views.extraction.explanation import explain
    from leakaudit.views.extraction.hearing import leaks

_HOME = {
    "Adversary": "core.adversary",
    "Attack": "inversion.attack",
    "AttackError": "core.errors",
    "BoundOptions": "views.accounting.bounding",
    "Certificate": "core.reconstruction",
    "Executor": "runs.workers.executor",
    "GradientLeak": "core.leak",
    "Graph": "core.trace",
    "LeakauditError": "core.errors",
    "Leaks": "core.leak",
    "Reconstruction": "core.reconstruction",
    "Recorder": "traces.recorder",
    "RecorderOptions": "traces.recorder",
    "ReportOptions": "api",
    "Scenario": "protocols.scenario",
    "Score": "scoring.scoring",
    "Storage": "traces.recorder",
    "Task": "tasks.task",
    "TaskSpec": "core.trace",
    "Trace": "core.trace",
    "Truth": "core.trace",
    "Verdict": "core.verdict",
    "Victim": "protocols.victim",
    "attack": "api",
    "audit": "api",
    "bound": "api",
    "check": "api",
    "claims": "api",
    "explain": "views.extraction.explanation",
    "from_gradient": "api",
    "leaks": "views.extraction.hearing",
    "load": "traces.trace_file",
    "load_truth": "traces.trace_file",
    "log_to": "api",
    "record": "api",
    "report": "api",
    "reproduce": "api",
    "score": "scoring.scoring",
    "sweep": "api",
    "table": "api",
    "to_pandas": "api",
}

__all__ = [
    "Adversary",
    "Attack",
    "AttackError",
    "BoundOptions",
    "Certificate",
    "Executor",
    "GradientLeak",
    "Graph",
    "LeakauditError",
    "Leaks",
    "Reconstruction",
    "Recorder",
    "RecorderOptions",
    "ReportOptions",
    "Scenario",
    "Score",
    "Storage",
    "Task",
    "TaskSpec",
    "Trace",
    "Truth",
    "Verdict",
    "Victim",
    "__version__",
    "attack",
    "audit",
    "bound",
    "check",
    "claims",
    "explain",
    "from_gradient",
    "leaks",
    "load",
    "load_truth",
    "log_to",
    "record",
    "report",
    "reproduce",
    "score",
    "sweep",
    "table",
    "to_pandas",
]


def _card(value: object) -> str:
    """Return what a notebook displays for a value."""
    from leakaudit.reporting.rendering import cards

    return cards.html(value)


def _frame(record: Record, table: str | None) -> DataFrame:
    """Return one table of a record as a data frame."""
    from leakaudit.reporting.findings import flat

    return flat.frame(flat.table(record, table))


display.card = _card
display.frame = _frame
earlier_names.install()


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562), or a module that programs name."""
    if name == "attacks" or name in earlier_names.EARLIER:
        return importlib.import_module(f"leakaudit.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'leakaudit' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"leakaudit.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted({*globals(), *__all__})
