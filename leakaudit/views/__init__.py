"""What a view determines, what it is allowed, and whether a recording is what it says."""
