"""Where a job may go: one mask a file."""
