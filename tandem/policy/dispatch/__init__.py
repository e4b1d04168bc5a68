"""Dispatches: how one round places the ordered jobs; one a file."""
