"""Labels from gradients."""
