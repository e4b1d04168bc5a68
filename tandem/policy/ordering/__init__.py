"""Who is tried first: one order a file."""
