"""What numbers mean without any data: relations between vectors, and bounds."""
