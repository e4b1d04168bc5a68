"""Orders: which job is tried first; one a file."""
