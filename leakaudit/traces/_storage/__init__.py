"""Conversion between traces and bytes.

Strict reading of archives, streamed writing, shards, digests.

The public interface is the modules of `leakaudit.traces`; all other code uses them.
"""
