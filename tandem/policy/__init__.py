"""The policy core: pure functions of (job, snapshot, now); numpy and pydantic only."""
