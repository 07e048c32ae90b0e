"""Judgements of what is claimed: lint, audit, gate, published claims, self-check."""
