"""A recording on disk: written by a recorder, and read without executing code from it."""
