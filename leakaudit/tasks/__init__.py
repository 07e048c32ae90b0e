"""Training tasks: models, losses, data, and gradients in closed form."""
