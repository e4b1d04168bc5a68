"""The services for people and programs: ports, readers, the read-only API, metrics."""
