"""What the owner of a job may read about other jobs: the names in its own namespace."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_extender.cluster.records import Key


def named(jobs: Iterable[Key], reader: Key) -> str:
    """Return how `jobs` are called in a message to the owner of `reader`.

    A name can say much about a project, and a message in a GPUJob or an event is read by all who
    may view the namespace.
    """
    all_jobs = list(jobs)
    own = ["/".join(key) for key in all_jobs if key[0] == reader[0]]
    foreign = len(all_jobs) - len(own)
    if foreign == 1:
        own.append("a job of another namespace")
    elif foreign:
        own.append(f"{foreign} jobs of other namespaces")
    return " and ".join((", ".join(own[:-1]), own[-1])) if len(own) > 1 else "".join(own)
