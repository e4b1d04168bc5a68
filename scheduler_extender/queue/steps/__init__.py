"""Steps of one gang: phases of its GPUJob, decisions as pure functions, and their effects.

Imports no other room of the queue.
"""
