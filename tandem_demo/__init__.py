"""The demo: real services on simulated GPUs, without a cluster."""
