"""leakaudit: what can someone who hears your decentralised training learn about the training data?

The names below are loaded when they are first used, so that `import leakaudit` stays light (no torch).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leakaudit.adversary import Adversary
    from leakaudit.api import attack, leaks, load, load_truth, score
    from leakaudit.errors import LeakauditError
    from leakaudit.leak import GradientLeak
    from leakaudit.reconstruction import Reconstruction
    from leakaudit.tasks.task import Task
    from leakaudit.trace import Graph, TaskSpec, Trace, Truth
    from leakaudit.traces.recorder import Recorder

__version__ = "0.1.0"

_HOME = {
    "Adversary": "adversary",
    "GradientLeak": "leak",
    "Graph": "trace",
    "LeakauditError": "errors",
    "Reconstruction": "reconstruction",
    "Recorder": "traces.recorder",
    "Task": "tasks.task",
    "TaskSpec": "trace",
    "Trace": "trace",
    "Truth": "trace",
    "attack": "api",
    "leaks": "api",
    "load": "api",
    "load_truth": "api",
    "score": "api",
}

__all__ = [
    "Adversary",
    "GradientLeak",
    "Graph",
    "LeakauditError",
    "Reconstruction",
    "Recorder",
    "Task",
    "TaskSpec",
    "Trace",
    "Truth",
    "__version__",
    "attack",
    "leaks",
    "load",
    "load_truth",
    "score",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'leakaudit' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"leakaudit.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted({*globals(), *__all__})
