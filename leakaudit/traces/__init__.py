"""A recording on disk: written by a recorder, read without running code from it."""
