"""View bounds, and their comparison with the privacy that the protocol claims."""
