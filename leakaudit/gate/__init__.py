"""The gate of a CI run: budgets on what attacks get, and no growth over a committed baseline, with controls in every run."""
