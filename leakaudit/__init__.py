"""leakaudit: measure what an observer of decentralised training learns about the training data.

The names below are loaded when they are first used, so `import leakaudit` stays light (no torch).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leakaudit import attacks as attacks  # noqa: TID251 - so that type checkers see la.attacks
    from leakaudit._util.executor import Executor
    from leakaudit.adversary import Adversary
    from leakaudit.api import (
        attack,
        audit,
        bound,
        check,
        claims,
        log_to,
        record,
        report,
        sweep,
        table,
        to_pandas,
    )
    from leakaudit.errors import AttackError, LeakauditError
    from leakaudit.extraction.explanation import explain
    from leakaudit.extraction.hearing import leaks
    from leakaudit.leak import GradientLeak, Leaks
    from leakaudit.protocols.scenario import Scenario
    from leakaudit.reconstruction import Attack, Certificate, Reconstruction
    from leakaudit.scoring.scoring import Score, score
    from leakaudit.tasks.task import Task
    from leakaudit.trace import Graph, TaskSpec, Trace, Truth
    from leakaudit.traces.recorder import Recorder
    from leakaudit.traces.trace_file import load, load_truth
    from leakaudit.verdict import Verdict
    from leakaudit.victim import Victim

__version__ = "0.1.0"

_HOME = {
    "Adversary": "adversary",
    "Attack": "reconstruction",
    "AttackError": "errors",
    "Certificate": "reconstruction",
    "Executor": "_util.executor",
    "GradientLeak": "leak",
    "Graph": "trace",
    "LeakauditError": "errors",
    "Leaks": "leak",
    "Reconstruction": "reconstruction",
    "Recorder": "traces.recorder",
    "Scenario": "protocols.scenario",
    "Score": "scoring.scoring",
    "Task": "tasks.task",
    "TaskSpec": "trace",
    "Trace": "trace",
    "Truth": "trace",
    "Verdict": "verdict",
    "Victim": "victim",
    "attack": "api",
    "audit": "api",
    "bound": "api",
    "check": "api",
    "claims": "api",
    "explain": "extraction.explanation",
    "leaks": "extraction.hearing",
    "load": "traces.trace_file",
    "load_truth": "traces.trace_file",
    "log_to": "api",
    "record": "api",
    "report": "api",
    "score": "scoring.scoring",
    "sweep": "api",
    "table": "api",
    "to_pandas": "api",
}

__all__ = [
    "Adversary",
    "Attack",
    "AttackError",
    "Certificate",
    "Executor",
    "GradientLeak",
    "Graph",
    "LeakauditError",
    "Leaks",
    "Reconstruction",
    "Recorder",
    "Scenario",
    "Score",
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
    "leaks",
    "load",
    "load_truth",
    "log_to",
    "record",
    "report",
    "score",
    "sweep",
    "table",
    "to_pandas",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562), or the package of attacks."""
    if name == "attacks":
        return importlib.import_module("leakaudit.attacks")
    if name not in _HOME:
        raise AttributeError(f"module 'leakaudit' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"leakaudit.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted({*globals(), *__all__})
