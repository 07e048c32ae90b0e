"""The audit: one alpha for everything that is claimed, over a grid of epsilons.

Exact views, reconstruction and canaries are compared with the claims.
"""
