"""Measures what training jobs use of the GPU that is there: `python -m predictor.collect`.

Runs from the source tree with nothing but Python and PyTorch (torchvision, timm and transformers
add models where they are installed): no module here imports another library at the top. The process
that plans and records imports no PyTorch at all; each configuration runs in a process of its own.
Imports `predictor.graph` alone of the rooms.
"""

#: The version of the lines that are written; see `records`.
FORMAT = "tandem-profiles/1"
