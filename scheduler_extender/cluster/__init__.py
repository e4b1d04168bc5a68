"""What the API server says, live: pods, gangs, GPUs, and who holds what."""
