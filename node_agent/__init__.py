"""The node agent: what each GPU and each pod really does, through NVML."""

import os

# The fits are small: threads of numpy's linear algebra would spin longer than they work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
