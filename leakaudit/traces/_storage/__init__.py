"""How a trace becomes bytes and comes back.

Strict reading of archives, streamed writing, shards, digests.

The doors are the modules of `leakaudit.traces`; whoever reads or writes a trace goes through them.
"""
