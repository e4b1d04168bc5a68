"""Every profile on the same jobs, in the simulator: docs/evidence/results.md."""
