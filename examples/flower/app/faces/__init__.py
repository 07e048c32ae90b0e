"""Clients learn to tell faces from other pictures."""
