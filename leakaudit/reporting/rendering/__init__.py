"""What reports share: text, images, charts and pages."""
