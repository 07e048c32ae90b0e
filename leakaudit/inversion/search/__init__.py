"""Inputs by gradient matching: objectives, priors and optimisers."""
