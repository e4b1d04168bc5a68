"""The node agent: what each GPU and each pod really does, through NVML."""
