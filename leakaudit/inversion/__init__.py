"""From gradients to records: exact solutions, searches, labels."""
