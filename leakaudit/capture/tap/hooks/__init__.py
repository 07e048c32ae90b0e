"""What runs inside a tapped program that uses torch.distributed."""
