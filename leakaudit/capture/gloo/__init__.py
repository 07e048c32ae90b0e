"""Victims as real processes over loopback, with torch.distributed and gloo (docs/engines.md)."""
