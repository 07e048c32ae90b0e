"""The audit: exact views, reconstruction and canaries against what is claimed, over a grid of epsilons, with one alpha."""
