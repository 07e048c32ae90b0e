"""What a victim is made of, runs by and declares: scenarios, graphs, shared steps, equations."""
