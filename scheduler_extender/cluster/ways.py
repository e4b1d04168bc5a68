"""By which way each pod has its GPUs: the environment of its container, or a ResourceClaim.

A pod has one way from its Binding to its end, whatever its node's label says in the meantime. On
one GPU there is one way at a time. docs/decisions/0092 has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from scheduler_extender.cluster.gpu_claims import GpuClaims
from scheduler_extender.cluster.ledger import Hold
from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.state import ClusterState
from tandem.contracts.claims import device_name
from tandem.contracts.nodepods import NodeHolds

#: A GPU: its node, and its UUID.
GpuAt = tuple[str, str]


class Ways:
    """Reads the ways of the pods on a node from the ledger and the claims. On the event loop alone.

    `claims` is None where plans allocate no claims. `leads` says whether no other replica places
    pods.
    """

    def __init__(
        self, state: ClusterState, claims: GpuClaims | None, leads: Callable[[], bool]
    ) -> None:
        self._state = state
        self._claims = claims
        self._leads = leads
        self._nodes: set[str] = set()  # that gave GPUs by claims when they were last looked at

    def _by_claims(self, uid: str) -> bool | None:
        """Say whether a pod has its GPUs by a claim; None where its claim is not known.

        An allocation without devices gives the node alone: the environment gives the GPUs.
        """
        record = self._state.pod(uid)
        if record is None:
            return None
        if not record.pod.gpu_claim:
            return False
        claim = self._claims.of(record.pod) if self._claims is not None else None
        if claim is None or claim.owner != uid or claim.allocation is None:
            return None
        return bool(claim.allocation.devices)

    def _held(self, node: str, gpus: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield each GPU with a list of `NodeHolds` that it belongs to."""
        names = {None: "unknown", False: "by_environment", True: "by_claims"}
        for gpu in gpus:
            for uid in self._state.ledger.holders(node, gpu):
                held = self._state.ledger.held(uid)
                if held is not None and held[0] is Hold.PLANNED:
                    yield gpu, "planned"
                else:
                    yield gpu, names[self._by_claims(uid)]

    def holds(self, node: str) -> NodeHolds | None:
        """Return who has the GPUs of a node; None where its agent has not reported."""
        record = self._state.gpu_nodes().get(("", node))
        if record is None:
            return None
        uuids = [uuid for uuid, _, _ in record.named]
        found: dict[str, set[str]] = {}
        for gpu, name in self._held(node, uuids):
            found.setdefault(name, set()).add(gpu)
        others = None
        if self._claims is not None:
            taken = {
                device
                for allocation in self._claims.strangers()
                if allocation.node == node
                for device, _ in allocation.devices
            }
            others = [uuid for uuid in uuids if device_name(uuid) in taken]
        return NodeHolds(
            leads=self._leads(),
            report_s=record.observed_at_s,
            by_others=others,
            **{name: sorted(gpus) for name, gpus in found.items()},
        )

    def changed(self, node: str) -> set[Key]:
        """Return the gangs planned onto a node whose way is another than when last asked.

        The claims of their pods are to be written anew.
        """
        record = self._state.gpu_nodes().get(("", node))
        by_claims = record is not None and record.by_claims
        if (node in self._nodes) is by_claims:
            return set()
        self._nodes ^= {node}
        gpus = record.gpus if record is not None else ()
        uids = {uid for gpu in gpus for uid in self._state.ledger.holders(node, gpu.uuid)}
        pods = map(self._state.pod, uids)
        return {pod.gpujob for pod in pods if pod is not None and not pod.pod.node_name}

    def mixed(self, node: str) -> set[GpuAt]:
        """Return the GPUs of a node whose pods have them by another way than new pods would."""
        record = self._state.gpu_nodes().get(("", node))
        if record is None:
            return set()
        other = "by_environment" if record.by_claims else "by_claims"
        held = self._held(node, (gpu.uuid for gpu in record.gpus))
        return {(node, gpu) for gpu, name in held if name == other}
