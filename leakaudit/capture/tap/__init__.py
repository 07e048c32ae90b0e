"""What a torch.distributed program sends, recorded while it runs and made into a trace (docs/tap.md)."""
