"""The constants behind vectors: models, records, steps and optimisers. Knows no logs."""
