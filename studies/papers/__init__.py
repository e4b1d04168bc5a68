"""Each paper's own comparison, on its own kind of work, next to its figures."""
