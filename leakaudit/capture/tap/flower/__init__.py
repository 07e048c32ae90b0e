"""Tap programs that use Flower (docs/flower.md)."""

from leakaudit.capture.tap.flower.wrappers import client_mod, server_strategy

__all__ = ["client_mod", "server_strategy"]
