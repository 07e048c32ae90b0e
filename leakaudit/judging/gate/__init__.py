"""The gate of a CI run: budgets, a baseline, and controls in every run."""
