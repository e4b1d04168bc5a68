"""Actions on pods and GPUNodes: gates, claims, evictions, terminations, preemption.

Imports `steps`.
"""
