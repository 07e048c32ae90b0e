"""Sweeps: attack x victim x epsilon x any setting x seed, one file per cell."""
