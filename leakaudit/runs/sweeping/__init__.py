"""Sweeps: attack x victim x epsilon x any setting x seed.

Each cell is a pure function of its configuration, and is stored in its own file.
"""
