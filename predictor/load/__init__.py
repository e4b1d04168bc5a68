"""What one job uses alone: formulas and their errors, what was observed, and the trained model.

Imports `predictor.graph`, and what all rooms share: `artifacts`, `errors`, `trees`.
"""
