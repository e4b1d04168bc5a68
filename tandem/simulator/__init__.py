"""Replay a trace of jobs against the very policies that run in the cluster."""
