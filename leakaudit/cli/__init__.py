"""The command line: one file a verb; nothing heavy is imported before a verb runs."""

from leakaudit.cli._main import VERBS, main, parser

__all__ = ["VERBS", "main", "parser"]
