"""A protocol that a text file describes by its equations; reading one executes no code."""
