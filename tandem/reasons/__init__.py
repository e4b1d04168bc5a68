"""Why a job waits, as data; and the one place that makes sentences of it."""
