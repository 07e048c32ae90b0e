"""The record of a run: how it is built, stored, compared and redacted."""
