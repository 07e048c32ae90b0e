"""What is trained: data, models, losses, and gradients in closed form."""
