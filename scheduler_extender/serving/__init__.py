"""The ports of the extender: verbs, webhook, read-only API, metrics, status page."""
