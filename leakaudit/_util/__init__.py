"""Files, configuration and assignment: what every room needs and none owns."""
