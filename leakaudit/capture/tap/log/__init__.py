"""The raw log of a tapped process: written by the process, read with suspicion afterwards."""
