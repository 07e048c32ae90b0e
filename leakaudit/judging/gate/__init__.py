"""The gate of a CI run: budgets on what attacks recover, a baseline, and controls in every run."""
