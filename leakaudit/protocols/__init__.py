"""Components of victims and code that runs them: scenarios, graphs and shared protocol steps."""
