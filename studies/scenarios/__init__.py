"""Scenarios of the papers' rules, and mutants of these rules: docs/results/scenarios.md."""
