"""Processes and folders in which code of strangers runs."""
