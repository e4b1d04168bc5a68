"""Processes of this machine: start and stop them, wait for a condition, keep scratch folders."""
