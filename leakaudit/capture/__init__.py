"""Recordings of programs that are not ours: tapped, run as processes, or imported."""
