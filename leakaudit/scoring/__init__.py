"""Scoring of reconstructions against the truth: the only package that opens a truth file."""
