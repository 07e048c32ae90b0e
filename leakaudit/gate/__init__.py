"""The gate of a CI run: budgets on what attacks recover, no growth, and controls in every run."""
