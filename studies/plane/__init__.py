"""The same workload on a real control plane and in the simulator: docs/evidence/plane.md."""
