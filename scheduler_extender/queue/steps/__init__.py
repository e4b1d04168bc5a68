"""What follows for one gang: the phases of its GPUJob, decisions as pure functions, their effects.

Imports no other room of the queue.
"""
