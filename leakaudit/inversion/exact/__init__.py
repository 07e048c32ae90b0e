"""Whole inputs and batches by linear algebra, and the proof that they are exact."""
