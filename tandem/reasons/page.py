"""docs/reasons.md, made of the closed set: `python -m tandem.reasons.page --write`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tandem.reasons.causes import Cause, Reason
from tandem.reasons.words import KINDS, WORDS, sentence

PAGE = Path(__file__).parents[2] / "docs" / "reasons.md"

_HEAD = """# Reasons

Written by `python -m tandem.reasons.page --write`. Each reason for which a job waits, or is where
it is, with a text as users read it. `status.causes` of a GPUJob has the reasons with their
parameters, `status.message` their sentences, `status.foundAt` when they were found out. The reason
of the condition `Scheduled` is the one that counts: the first that says more than what the job asks
for. The status page and the metric `tandem_queue_waiting_reasons` count jobs by the group of that
reason. No program reads the sentences.

| parameter | meaning |
|---|---|
| `gpu` | one GPU as node/index, for readers who may know it |
| `gpus`, `nodes` | of how many it is true; of a quota, the GPUs that the job asks for |
| `value`, `bound` | what is needed or there, and what is allowed; the text has the unit |
| `resource`, `amount` | a resource of a node and a quantity, or what the job needs in words |
| `job` | the jobs that it is about, as its owner may know them |
| `namespace` | the namespace of a quota |
| `detail` | the words of others, or the whole text of a reason without other parameters |
"""

#: One cause of each reason, with figures that its text has to have.
EXAMPLES: Mapping[Reason, Cause] = MappingProxyType(
    {
        cause.reason: cause
        for cause in (
            Cause(Reason.NOT_OFFERED, gpus=2),
            Cause(Reason.CLOSED, gpus=1, value=3, bound=2),
            Cause(Reason.PLACES_TAKEN, gpus=5, value=2, bound=2),
            Cause(Reason.NOT_SHARED, gpus=3),
            Cause(Reason.NEEDS_WHOLE_GPU, gpus=4, value=1),
            Cause(Reason.QUARANTINED, gpus=1),
            Cause(Reason.NOT_MEASURED, gpus=8),
            Cause(Reason.MEMORY, gpus=1, value=17.4, bound=15.6),
            Cause(Reason.MEMORY_UNKNOWN, gpus=1),
            Cause(Reason.MEMORY_PEAKS, gpu="node-a/0", value=18.5, bound=16),
            Cause(Reason.MEMORY_COLLISION, gpus=2, value=0.16, bound=0.1),
            Cause(Reason.UTILISATION, gpus=1, value=131, bound=100),
            Cause(Reason.SLOWDOWN, gpus=2, value=0.41, bound=0.35),
            Cause(Reason.BAD_NEIGHBOURS, gpus=1),
            Cause(Reason.UNEQUAL_WORKERS, gpus=4, value=0.3, bound=0.1),
            Cause(Reason.NODE_SHORT, nodes=3, resource="memory", amount="500Gi"),
            Cause(Reason.NODE_TOO_SMALL, nodes=1, resource="rdma/hca", amount="2"),
            Cause(Reason.NODE_HAS_FEWER, nodes=2, resource="cpu"),
            Cause(Reason.NODE_UNSUITABLE, nodes=4),
            Cause(Reason.ROLES, detail="worker: 2 pods with 4 GPUs each; 1 pod with 1 GPU each"),
            Cause(Reason.NEEDS_GPUS, amount="2 GPUs on one node", value=1, bound=8),
            Cause(Reason.PLACE_FREE),
            Cause(Reason.WAITING_IS_BETTER),
            Cause(Reason.BEHIND, job="team-a/train"),
            Cause(Reason.NOT_LOOKED_AT),
            Cause(Reason.MAKING_ROOM, job="team-a/train and a job of another namespace"),
            Cause(Reason.OVERTAKEN, resource="cpu"),
            Cause(Reason.NOT_PREEMPTED, detail="disruption budget web allows 0 disruptions"),
            Cause(Reason.QUOTA, namespace="team-a", gpus=2, value=7, bound=8),
            Cause(Reason.QUOTA_ENDLESS, namespace="team-a", gpus=1, value=2, bound=2),
            Cause(Reason.QUOTA_TIME, namespace="team-a", value=3600, bound=3000),
            Cause(Reason.QUOTA_SHARE, namespace="team-a", gpus=1, value=4, bound=4),
            Cause(Reason.HELD),
            Cause(Reason.BLOCKED, detail="pod a-0 has scheduling gates besides tandem.gpu/queue:"
                  " example.com/data; it is planned once they are removed"),
            Cause(Reason.PODS_MISSING, detail="2 of 4 pods exist; Job a has not made the others"),
            Cause(Reason.PODS_ENDED, detail="all 4 pods have ended, 1 of them failed; Job train has"
                  " neither ended nor made others"),
            Cause(Reason.STARTING, detail="4 of its 4 pods are on nodes, and 3 of them run; it"
                  " waits for the others to start: train-3 (ContainerCreating)"),
            Cause(Reason.NEVER_STARTED, detail="it failed to start 2 times, and is placed again in"
                  " 60 s at the earliest"),
            Cause(Reason.PLAN_EXPIRED, detail="its pods were not bound in time"),
            Cause(Reason.PODS_GONE, detail="none of its pods is left"),
            Cause(Reason.WAITING, detail="it waits"),
            Cause(Reason.QUEUED, detail="all its pods exist; it waits for its turn"),
            Cause(Reason.NEW_PODS, detail="the workload has pods again"),
            Cause(Reason.PLANNED, detail="2 pods planned on node-a/0 node-a/1"),
            Cause(Reason.RUNNING, detail="2 pods running"),
            Cause(Reason.PREEMPTING, detail="gives up its GPUs: team-a/train needs them"),
            Cause(Reason.PREEMPTION_OVERDUE, detail="was told to give up its GPUs more than 300 s"
                  " ago, and 1 pod still holds them; 1 is being deleted"),
            Cause(Reason.PREEMPTED, detail="gave up its GPUs (team-a/train needs them). It waits"
                  " for others; the GPU time that it has had still counts for its place in the"
                  " queue"),
            Cause(Reason.COMPLETED, detail="the workload completed"),
            Cause(Reason.FAILED, detail="the workload failed"),
        )
    }
)  # fmt: skip


def page() -> str:
    """Return the page."""
    rows = [
        f"| `{reason.value}` | {KINDS[WORDS[reason].kind]} | {_names(EXAMPLES[reason])} |"
        f" {sentence(EXAMPLES[reason])} |"
        for reason in Reason
    ]
    head = "| reason | group | parameters | for example |\n|---|---|---|---|\n"
    return _HEAD + "\n" + head + "\n".join(rows) + "\n"


def _names(cause: Cause) -> str:
    names = (name for name in Cause.__slots__ if name != "reason")
    return ", ".join(f"`{name}`" for name in names if getattr(cause, name) is not None) or "-"


def main() -> int:
    """Compare the page with the reasons, or write it."""
    parser = argparse.ArgumentParser(prog="python -m tandem.reasons.page", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/reasons.md")
    if parser.parse_args().write:
        PAGE.write_text(page())
    elif not PAGE.exists() or PAGE.read_text() != page():
        print(f"Out of date: {PAGE}; run with --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
