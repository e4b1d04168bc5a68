"""When waiting jobs start, and what if one asked for something else, in processes of their own.

Imports `steps`, `order`, and what the rooms share.
"""
