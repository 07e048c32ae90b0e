"""A victim as real processes over loopback, by torch.distributed's gloo (docs/engines.md)."""
