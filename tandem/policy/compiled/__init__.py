"""The kernel of the policies in C, and how it is loaded; the package works without it."""
