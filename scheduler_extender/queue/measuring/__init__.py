"""Acts on measurements: moves, preempts and remembers, as the adjuster of the profile says.

Imports `steps`, `pods`, `order`, and what the rooms share.
"""
