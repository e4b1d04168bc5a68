"""Mutation tests of the code that decides about safety: docs/mutants.md."""
