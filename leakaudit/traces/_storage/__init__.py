"""Conversion between traces and bytes; other rooms use the modules of `leakaudit.traces`."""
