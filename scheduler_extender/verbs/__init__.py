"""kube-scheduler's questions: filter, prioritize, preempt and bind."""
