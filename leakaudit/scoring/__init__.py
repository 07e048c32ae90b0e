"""Reconstructions beside the truth: the only room that opens a truth file."""
