"""Sweeps: attack x victim x epsilon x any setting x seed, each cell a pure function of its configuration and kept in a file of its own."""
