"""Guess the description of a log, and compare a description with what the messages prove."""
