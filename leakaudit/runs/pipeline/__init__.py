"""One attack run, resumable, and its scores again."""
