"""Mutation tests of the code that decides about safety: docs/evidence/mutants.md."""
