"""Record what a torch.distributed program sends, and make a trace of it (docs/tap.md)."""
