"""All gangs in the order of the profile: queues and ranks, the jobs that wait, quotas, reasons.

Imports `steps`.
"""
