"""Repair after placement, by what is measured."""
