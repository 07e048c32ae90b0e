"""Proposes the update equations of a protocol that nobody has declared."""
