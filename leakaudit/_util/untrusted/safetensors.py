"""The package that reads .safetensors files, which is optional and imported only on request."""

from __future__ import annotations

from typing import Any

from leakaudit.core.errors import LeakauditError


def package() -> Any:
    """Return the package ``safetensors``, with its part for torch."""
    try:
        import safetensors.torch
    except ImportError:
        raise LeakauditError(
            ".safetensors requires another package: install leakaudit[safetensors]"
        ) from None
    return safetensors
