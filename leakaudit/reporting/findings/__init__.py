"""What happened in a run, in sentences and tables that all reports share."""
