"""Models as torch.export programs (.pt2), read and run without executing code of the file."""
