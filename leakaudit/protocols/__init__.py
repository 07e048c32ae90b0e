"""What victims are built from and run by: scenarios, graphs, shared steps of protocol families."""
