"""Claims of papers by other groups."""
