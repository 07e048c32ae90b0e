"""Static lint of a trace: checks for the pitfalls of docs/lint.md, one module each."""
