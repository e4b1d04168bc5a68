"""Scenarios of the papers' rules, and mutants of these: docs/evidence/results/scenarios.md."""
