"""How a trace becomes bytes and comes back: strict reading of archives, streamed writing, shards, digests.

The doors are `leakaudit.traces.trace_file`, `leakaudit.traces.recorder`, `leakaudit.traces.trace_info` and `leakaudit.traces.convert`; nothing else opens these rooms.
"""
