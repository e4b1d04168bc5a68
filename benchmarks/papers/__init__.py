"""Each paper's own comparison, on its own kind of work, beside its figures."""
