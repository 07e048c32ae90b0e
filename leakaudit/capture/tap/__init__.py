"""Record what a torch.distributed program sends, and convert it to a trace (docs/tap.md)."""
