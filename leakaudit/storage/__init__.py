"""How a trace becomes bytes and comes back: strict reading of archives, streamed writing, shards, digests.

The doors are `leakaudit.tracefile`, `leakaudit.recorder`, `leakaudit.traceinfo` and `leakaudit.convert`; nothing else opens these rooms.
"""
