"""The audit: tests of all claims over a grid of epsilons, with one alpha for all of them."""
