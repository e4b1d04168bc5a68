"""Why a job waits, as one of a few kinds: GPUJobs give the reason in words with figures.

The words are those of the constraints' sentences and of the queue controller. A test compares the
table with the sentences of all constraints, so that a new constraint gets a kind of its own.
"""

from __future__ import annotations

import re

#: Kind, what a person reads, and the words by which the message of a GPUJob shows it.
KINDS: tuple[tuple[str, str, str], ...] = (
    ("held", "An administrator holds it", r"an administrator holds it"),
    ("blocked", "Its pods cannot be planned yet",
     r"scheduling gates besides|needs room for its|ask for the same number"),
    ("quota", "Quota of its namespace", r"may have \d+ at most|may not borrow"),
    ("making_room", "Other jobs are giving up GPUs for it", r"give up (?:its|their) GPUs|given up"),
    ("behind", "Behind other jobs in the queue", r"waits behind|waits for its turn"),
    ("not_worth", "Sharing now would cost more than waiting", r"expected to be worth more"),
    ("memory", "Not enough GPU memory", r"needs [\d.]+ GiB of memory|peaks need [\d.]+ GiB"),
    ("memory_collision", "Memory peaks would collide", r"memory peaks would collide"),
    ("utilisation", "GPUs would be overloaded", r"utilisation would be"),
    ("interference", "A job would be slowed down too much", r"slowed down|slowdowns of one job"),
    ("occupied", "All suitable GPUs are taken",
     r"does not share|needs a whole GPU|takes nobody else|shares taken"),
    ("not_offered", "GPUs are not offered", r"not offered"),
    ("unhealthy", "GPUs are quarantined", r"quarantined"),
    ("stale", "Agents do not report", r"not reported recently"),
    ("nodes", "No node can run its pods",
     r"cannot run (?:all )?its pods|do not suit|that is free; it is tried again"),
    ("missing", "Some of its pods do not exist", r"pods exist|nor made others"),
    ("never_started", "Its containers did not start", r"have not started within|failed to start"),
    ("starting", "Its pods are about to start",
     r"not bound in time|its pods are new|others to start"),
)  # fmt: skip
WORDS = {kind: words for kind, words, _ in KINDS} | {
    "preempted": "It gave up its GPUs for another job",
    "other": "Another reason",
}
_PATTERNS = [(kind, re.compile(pattern)) for kind, _, pattern in KINDS]
_BY_REASON = {
    "Held": "held",
    "Blocked": "blocked",
    "Preempted": "preempted",
    "NeverStarted": "never_started",
}


def kind_of(reason: str, message: str) -> str:
    """Return the kind of a reason and its message."""
    if reason in _BY_REASON and not _is_explained(reason, message):
        return _BY_REASON[reason]
    found = [(match.start(), kind) for kind, each in _PATTERNS if (match := each.search(message))]
    return min(found)[1] if found else _BY_REASON.get(reason, "other")


def _is_explained(reason: str, message: str) -> bool:
    return reason == "Preempted" and any(each.search(message) for _, each in _PATTERNS)
