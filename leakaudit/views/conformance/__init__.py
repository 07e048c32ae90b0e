"""Whether a recording is what its protocol declares: messages, equations, noise, and its truth."""
