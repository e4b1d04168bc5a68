"""Scores: how well a GPU suits a job; one a file."""
