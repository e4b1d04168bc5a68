"""Measurements correct predictions and separate jobs that slow each other down."""
