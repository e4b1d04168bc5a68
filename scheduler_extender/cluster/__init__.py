"""The state of the cluster: pods, gangs, nodes, GPUs, the ledger, and the writer."""
