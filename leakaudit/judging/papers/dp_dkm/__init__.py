"""DP-dKM: its claims, and the plans of its figures, tables and theorems."""
