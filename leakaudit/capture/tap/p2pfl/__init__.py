"""Tap programs that use p2pfl (docs/p2pfl.md)."""
