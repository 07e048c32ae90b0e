"""Sweeps: attack x victim x epsilon x any setting x seed.

Each cell is a pure function of its configuration, and is kept in a file of its own.
"""
