"""How much two jobs on one GPU slow one another down: by formula, by model, by measured pairs.

Imports `predictor.load`, and what all rooms share.
"""
