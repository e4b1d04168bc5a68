"""How good a GPU is for a job: one score a file."""
