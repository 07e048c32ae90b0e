"""Alternative sources of traces: tapped programs, and processes that really exchange messages."""
