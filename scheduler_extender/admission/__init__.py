"""Admission: what the webhook sets on pods, what it refuses, and its certificate."""
