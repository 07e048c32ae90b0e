"""What a view determines, what it is allowed, and whether a recording matches its declaration."""
