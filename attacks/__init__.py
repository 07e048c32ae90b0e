"""The attacks. Each file implements one method and registers it under the name of the file.

The classes are loaded on first use: ``leakaudit.attacks.DLG(steps=500)``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if not __name__.startswith("leakaudit."):
    raise ImportError(
        "attacks/ is the package leakaudit.attacks: write 'import leakaudit.attacks'; under "
        "another name it would be loaded twice"
    )

if TYPE_CHECKING:
    from leakaudit.attacks.analytic import Analytic
    from leakaudit.attacks.completion import Completion
    from leakaudit.attacks.cone import Cone
    from leakaudit.attacks.differential import Differential
    from leakaudit.attacks.dlg import DLG
    from leakaudit.attacks.exact import Exact
    from leakaudit.attacks.gradinversion import GradInversion
    from leakaudit.attacks.idlg import IDLG
    from leakaudit.attacks.inverting import Inverting
    from leakaudit.attacks.labels import Labels
    from leakaudit.attacks.patches import Patches
    from leakaudit.attacks.rgap import RGAP
    from leakaudit.attacks.sequences import Sequences
    from leakaudit.attacks.tokens import Tokens

__all__ = [
    "DLG",
    "IDLG",
    "RGAP",
    "Analytic",
    "Completion",
    "Cone",
    "Differential",
    "Exact",
    "GradInversion",
    "Inverting",
    "Labels",
    "Patches",
    "Sequences",
    "Tokens",
    "TwoStep",
]


def __getattr__(name: str) -> Any:
    """Load a class from the file of its name (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'leakaudit.attacks' has no attribute {name!r}")
    module = importlib.import_module(f"leakaudit.attacks.{name.lower()}")
    return getattr(module, name)
