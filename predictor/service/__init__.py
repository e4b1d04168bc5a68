"""The predictor over HTTP, with its store, its sandbox for graphs, and its commands.

Imports `predictor.graph`, `predictor.load` and `predictor.interference`.
"""
