"""The verbs of the extender protocol: filter, prioritize, preempt and bind."""
