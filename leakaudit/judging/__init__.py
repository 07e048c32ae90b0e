"""Does a protocol or a program keep its word? Lint, audit, gate, published claims, self-check."""
