"""From gradients to training data."""
