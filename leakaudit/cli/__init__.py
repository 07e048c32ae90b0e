"""The command line: one file per command; nothing heavy is imported before a command runs."""

from leakaudit.cli._main import VERBS, main, parser

__all__ = ["VERBS", "main", "parser"]
