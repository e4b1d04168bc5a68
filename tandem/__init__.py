"""Tandem: training jobs share GPUs on Kubernetes where it is predicted and measured to be safe."""
