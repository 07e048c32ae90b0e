"""Charts, panels and pictures of results."""
