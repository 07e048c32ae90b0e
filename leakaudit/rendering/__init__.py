"""What reports share: text, pictures, charts and pages."""
