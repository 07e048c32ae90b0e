"""Tap programs that use NVFlare (docs/nvflare.md).

`leakaudit.capture.tap.nvflare.filters` holds what a job may add; it imports nvflare.
"""
