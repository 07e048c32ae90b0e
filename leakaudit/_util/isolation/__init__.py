"""Processes and folders for untrusted code."""
