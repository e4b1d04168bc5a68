"""One gang at a time: reconciles its GPUJob with its pods, from its size to its predicted load.

Imports `steps`, `pods`, `order`, and what the rooms share.
"""
