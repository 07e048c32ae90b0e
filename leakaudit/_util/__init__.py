"""Helpers for all other packages: files, configuration, assignment, statistics."""
