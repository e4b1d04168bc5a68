"""What is done to pods and GPUNodes: gates, claims, evictions, terminations, preemption.

Imports `steps`.
"""
