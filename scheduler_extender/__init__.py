"""The scheduler extender: verbs, queue controller, webhook."""
