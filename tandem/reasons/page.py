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
| `gpu` | one GPU as node/index, or the job's own GPUs, for readers who may know them |
| `gpus`, `nodes` | of how many it is true; of a quota, the GPUs that the job asks for |
| `value`, `bound` | what is needed or there, and what is allowed; the text has the unit |
| `resource`, `amount` | a resource of a node and a quantity, or what the job needs in words |
| `job` | the jobs that it is about, as its owner may know them |
| `namespace` | the namespace of a quota |
| `role` | one of the job's roles |
| `pod`, `node` | one of the job's pods, and where it is |
| `pods`, `failed`, `leaving` | how many pods; how many of them failed, or are being deleted |
| `seconds` | for how long |
| `workload` | what made the pods: kind and name |
| `detail` | the words of an API server, a kubelet, a controller or the user |
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
            Cause(Reason.SLICE, gpus=7),
            Cause(Reason.QUARANTINED, gpus=1),
            Cause(Reason.NOT_MEASURED, gpus=8),
            Cause(Reason.MEMORY, gpus=1, value=17.4, bound=15.6),
            Cause(Reason.MEMORY_ALONE, gpus=1, value=17.4, bound=15.6),
            Cause(Reason.MEMORY_UNKNOWN, gpus=1),
            Cause(Reason.MEMORY_PEAKS, gpu="node-a/0", value=18.5, bound=16),
            Cause(Reason.MEMORY_COLLISION, gpus=2, value=0.16, bound=0.1),
            Cause(Reason.UTILISATION, gpus=1, value=131, bound=100),
            Cause(Reason.SLOWDOWN, gpus=2, value=0.41, bound=0.35),
            Cause(Reason.BAD_NEIGHBOURS, gpus=1),
            Cause(Reason.OWN_PODS, gpus=1),
            Cause(Reason.UNEQUAL_WORKERS, gpus=4, value=0.3, bound=0.1),
            Cause(Reason.NODE_SHORT, nodes=3, resource="memory", amount="500Gi"),
            Cause(Reason.NODE_TOO_SMALL, nodes=1, resource="rdma/hca", amount="2"),
            Cause(Reason.NODE_HAS_FEWER, nodes=2, resource="cpu"),
            Cause(Reason.NODE_UNSUITABLE, nodes=4),
            Cause(Reason.CLAIM_MISSING, nodes=2),
            Cause(Reason.ROLES, gpus=9),
            Cause(Reason.NEEDS_GPUS, amount="2 GPUs on one node", value=1, bound=8,
                  role="worker"),
            Cause(Reason.NODES_TOO_SMALL, value=3, bound=2),
            Cause(Reason.CLUSTER_TOO_SMALL, value=16, bound=12),
            Cause(Reason.DOMAINS_FULL, resource="topology.kubernetes.io/zone", value=16, bound=12),
            Cause(Reason.DOMAINS_TOO_SMALL, resource="topology.kubernetes.io/zone", value=32,
                  bound=24),
            Cause(Reason.PLACE_FREE),
            Cause(Reason.WAITING_IS_BETTER),
            Cause(Reason.BEHIND, job="team-a/train"),
            Cause(Reason.NOT_LOOKED_AT),
            Cause(Reason.MAKING_ROOM, job="team-a/train and a job of another namespace"),
            Cause(Reason.OVERTAKEN, resource="cpu"),
            Cause(Reason.NOT_PREEMPTED, resource="keep", job="team-a/train", pods=2, bound=0),
            Cause(Reason.QUOTA, namespace="team-a", gpus=2, value=7, bound=8),
            Cause(Reason.QUOTA_ENDLESS, namespace="team-a", gpus=1, value=2, bound=2),
            Cause(Reason.QUOTA_TIME, namespace="team-a", value=3600, bound=3000),
            Cause(Reason.QUOTA_SHARE, namespace="team-a", gpus=1, value=4, bound=4),
            Cause(Reason.QUOTA_TOO_SMALL, namespace="team-a", gpus=9, bound=8),
            Cause(Reason.HELD),
            Cause(Reason.BLOCKED),
            Cause(Reason.OTHER_GATES, pod="train-a", detail="example.com/data"),
            Cause(Reason.ANNOTATIONS_TOO_LARGE, pod="train-a", value=250000, bound=200000),
            Cause(Reason.TOO_MANY_ROLES, value=33, bound=32),
            Cause(Reason.GROUP_MISSING, workload="PodGroup ring"),
            Cause(Reason.PODS_MISSING, value=2, bound=5, leaving=1, failed=2),
            Cause(Reason.NOT_MADE, workload="Job train"),
            Cause(Reason.CANNOT_MAKE, workload="Job train", detail="exceeded quota: gpus"),
            Cause(Reason.ONE_BY_ONE, workload="StatefulSet train"),
            Cause(Reason.WORKLOAD_SUSPENDED, workload="Job train"),
            Cause(Reason.GANG_INCOMPLETE, job="ring"),
            Cause(Reason.NO_CONTROLLER, pod="train"),
            Cause(Reason.PODS_ENDED, workload="Job train", pods=4, failed=1),
            Cause(Reason.STARTING, value=2, bound=4, pods=3, pod="train-a",
                  detail="ContainerCreating"),
            Cause(Reason.NEVER_STARTED, pod="train-a", node="node-a", seconds=600,
                  detail="ImagePullBackOff", pods=3),
            Cause(Reason.RESTS, seconds=60, failed=2),
            Cause(Reason.PLAN_EXPIRED),
            Cause(Reason.PODS_GONE),
            Cause(Reason.WAITING),
            Cause(Reason.QUEUED, detail="no model is named; the job gets whole GPUs"),
            Cause(Reason.NEW_PODS),
            Cause(Reason.PLANNED, pods=2, gpu="node-a/0 node-a/1"),
            Cause(Reason.RUNNING, pods=2),
            Cause(Reason.PREEMPTING),
            Cause(Reason.PREEMPTION_OVERDUE, pods=2, leaving=1, seconds=300),
            Cause(Reason.PREEMPTED),
            Cause(Reason.NEEDED, job="team-a/train"),
            Cause(Reason.SLOWED_DOWN, gpu="node-a/0", job="team-a/train", value=0.4,
                  detail="measured"),
            Cause(Reason.SLOWS_DOWN, gpu="node-a/0", job="team-a/train", value=0.4,
                  detail="reported by its pods"),
            Cause(Reason.FASTER_ELSEWHERE),
            Cause(Reason.PART_WITHOUT_PLACE, seconds=60),
            Cause(Reason.NOT_SUSPENDED, workload="Job train", detail="forbidden"),
            Cause(Reason.NOT_RESUMED, workload="Job train"),
            Cause(Reason.COMPLETED, workload="Job train"),
            Cause(Reason.FAILED, workload="Job train"),
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
