"""What one round does with the ordered jobs: one way a file."""
