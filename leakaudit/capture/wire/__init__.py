"""Read messages in the wire format (docs/wire.md), and log them as a tap would have."""
