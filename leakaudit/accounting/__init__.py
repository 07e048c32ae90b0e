"""The exact privacy of a view beside the one that the protocol claims."""
