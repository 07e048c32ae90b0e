"""What is trained: models, losses, data, and their gradients in closed form."""
