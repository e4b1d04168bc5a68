"""What namespaces may have of the GPUs."""
