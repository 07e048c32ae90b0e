"""Scores of reconstructions: the only room that opens a truth."""
