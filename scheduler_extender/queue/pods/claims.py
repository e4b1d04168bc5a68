"""Allocates the ResourceClaims of planned pods, before their gates open, and takes it back.

kube-scheduler takes an allocated claim as it is: the pod goes to its planned node or to none, and
kubelet has the node's driver prepare the planned GPUs. Each write has the claim's resourceVersion
as precondition, so that a write of an earlier leader loses to what was written since.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping

from scheduler_extender import faults
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.gpu_claims import ClaimRecord, GpuClaims, parse_claim
from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.ledger import Claim, Hold
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.cluster.writes import Object, Writer
from scheduler_extender.queue.steps import lifecycle
from scheduler_extender.verbs.answers import BY_CLAIMS
from tandem.contracts import claims, names
from tandem.contracts.claims import Allocation
from tandem.contracts.resources import PodPlan
from tandem.kube.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from tandem.kube.reflector import EventType
from tandem.kube.resource import RESOURCE_CLAIMS
from tandem.policy.units import BYTES_PER_GIB

log = logging.getLogger(__name__)

NOT_HERE = "its ResourceClaim is not allocated as planned (yet): trying again"
NO_CLAIMS = "it has a ResourceClaim for its GPUs, and admission.gpu_claims is off"

#: A pod, what its claim is to be allocated (None: nothing), and the plan that this follows.
_Due = tuple[PodInfo, Allocation | None, Claim | None]


class ClaimAllocator:
    """Keeps the claims of a gang's waiting pods as its plan says. Runs on the event loop.

    `known` is None where plans allocate no claims: a pod that has one nevertheless, from when they
    did, is bound nowhere.
    """

    def __init__(
        self,
        writer: Writer,
        state: ClusterState,
        known: GpuClaims | None,
        clock: Callable[[], float],
    ) -> None:
        self._writer = writer
        self._state = state
        self._known = known
        self._clock = clock
        #: GPUs whose pods have them by another way than their nodes have now: see `cluster.ways`.
        self.mixed: set[tuple[str, str]] = set()
        #: Nodes with GPUs that claims have which Tandem did not make.
        self.nodes_of_others: frozenset[str] = frozenset()
        self._writing: set[str] = set()  # uids of pods
        #: Pods on no node whose claims were allocated before this term: written anew, so that no
        #: write of an earlier leader can take effect any more.
        self._inherited: set[str] = set()
        #: Pods whose claim is another's or refused by the API server: version of the pod, and plan.
        self._refused: dict[str, tuple[str, str]] = {}
        #: Of these, by their claims, those that wait for a claim that a user makes.
        self._wanting: dict[Key, set[str]] = {}

    # --- what others ask ----------------------------------------------------------------------

    def is_given(self, pod: PodInfo) -> bool:
        """Say whether kube-scheduler finds the pod's claim as planned; True for one without."""
        if not pod.gpu_claim:
            return True
        plan = self._state.ledger.claim(pod.uid, Hold.PLANNED)
        return plan is not None and not self.mismatch(pod, plan)

    def mismatch(self, pod: PodInfo, chosen: Claim) -> str:
        """Say why the pod's claim does not give it these GPUs, or ''.

        A pod without a claim gets none of a node that hands them over by claims.
        """
        by_claims = chosen.node in self._state.nodes.by_claims
        if not pod.gpu_claim:
            return f"the node {BY_CLAIMS}" if by_claims else ""
        if self._known is None:
            return NO_CLAIMS
        record = self._known.of(pod)
        wanted = claims.planned(pod.uid, chosen.node, chosen.gpus, by_claims=by_claims)
        if record is None or not _is_of(record, pod) or record.deleting:
            return NOT_HERE
        if record.allocation != wanted or pod.uid in self._writing | self._inherited:
            return NOT_HERE
        return ""

    def gangs_of(self, record: ClaimRecord) -> set[Key]:
        """Return the gangs whose waiting pods have a claim that has changed, or wait for it."""
        uids = self._wanting.pop(record.key, set())
        for uid in uids:
            self._refused.pop(uid, None)
        found = map(self._state.pod, {record.owner} | uids)
        return {
            pod.gpujob for pod in found if pod is not None and pod.ours and not pod.pod.node_name
        }

    def begin_term(self) -> set[Key]:
        """Take over from another leader, or from ourselves before a restart.

        Return the gangs whose claims are to be written anew.
        """
        if self._known is None:
            return set()
        found = map(self._state.pod, self._known.allocated())
        pods = [pod for pod in found if pod is not None and not pod.pod.node_name]
        self._inherited = {pod.uid for pod in pods}
        return {pod.gpujob for pod in pods}

    # --- claims of others ---------------------------------------------------------------------

    def close_taken(self) -> bool:
        """Let the queue give no GPU that a claim has which Tandem did not make, nor a mixed one.

        Return whether some are to be had again.
        """
        if self._known is None:
            return False
        taken, others = set(self.mixed), set()
        for allocation in self._known.strangers():
            others.add(allocation.node)
            node = self._state.gpu_nodes().get(("", allocation.node))
            if node is not None and any(gpu.shares for gpu in node.gpus):
                devices = {device for device, _ in allocation.devices}
                taken |= {
                    (node.name, gpu.uuid)
                    for gpu in node.gpus
                    if claims.device_name(gpu.uuid) in devices
                }
        self.nodes_of_others = frozenset(others)
        return self._state.take_gpus(frozenset(taken))

    # --- what is done about a gang --------------------------------------------------------------

    def step(self, gang: Gang) -> Awaitable[None] | None:
        """Return what is to be written about the claims of a gang's waiting pods, None if nothing.

        What a crash left half done is among it: the claim says what was written.
        """
        record = gang.record
        if self._known is None or record is None or not gang.unbound:
            return None
        live = lifecycle.planned_uids(record.status, self._clock())
        places = {} if record.spec.hold else {p.uid: p for p in record.plan if p.uid in live}
        made_at = record.status.plan.made_at if record.status.plan is not None else ""
        due = [
            each
            for each in self._due(gang, places)
            if self._refused.get(each[0].uid) != (each[0].resource_version, made_at)
        ]
        return self._settle_all(due, made_at) if due else None

    def _due(self, gang: Gang, places: Mapping[str, PodPlan]) -> Iterator[_Due]:
        """Yield the waiting pods whose claims are not as their places say."""
        assert self._known is not None
        for pod in list(gang.pods.values()):
            if not pod.gpu_claim or not gang.is_waiting(pod.uid):
                continue
            record, place = self._known.of(pod), places.get(pod.uid)
            if place is None:
                # While a Binding of it is under way the pod is on its way to these GPUs.
                stays = self._state.ledger.claim(pod.uid, Hold.RESERVED) is not None
                if record is not None and record.allocation and _is_of(record, pod) and not stays:
                    yield pod, None, None
                continue
            by_claims = place.node in self._state.nodes.by_claims
            wanted = claims.planned(pod.uid, place.node, place.gpus, by_claims=by_claims)
            right = record is not None and _is_of(record, pod) and record.allocation == wanted
            if not right or pod.uid in self._inherited:
                held = self._state.ledger.held(pod.uid)
                if held is not None and held[0] is Hold.PLANNED:
                    yield pod, wanted, held[1]

    async def _settle_all(self, due: list[_Due], made_at: str) -> None:
        results = await asyncio.gather(
            *(self._settle(each, made_at) for each in due), return_exceptions=True
        )
        for each in results:
            if isinstance(each, BaseException):
                raise each

    async def _settle(self, due: _Due, made_at: str) -> None:
        """Make one claim what it is to be, from whatever it is now."""
        assert self._known is not None
        pod, wanted, plan = due
        if self._state.ledger.claim(pod.uid, Hold.RESERVED) is not None:
            return  # a Binding has begun since
        self._writing.add(pod.uid)
        try:
            record = self._known.of(pod)
            if record is None and wanted is not None:
                if not claims.is_made(pod.gpu_claim):
                    note = f"The ResourceClaim {pod.gpu_claim} is not there: make it"
                    await self._refuse(pod, made_at, note)
                    return
                record = await self._create(pod)
            if record is None:
                return
            if wanted is not None and self._is_free(record, pod):
                record = await self._take_over(record, pod)
            if not _is_of(record, pod) or record.deleting:
                await self._refuse(pod, made_at, self._why_not(record))
                return
            old = record.allocation
            if old is not None and (old != wanted or pod.uid in self._inherited):
                record = await self._clear(record)
            self._inherited.discard(pod.uid)
            if record.allocation is None and wanted is not None and plan is not None:
                await self._allocate(record, wanted, plan)
        except (Conflict, AlreadyExists, NotFound):
            await self._read(pod)
            raise
        except (Forbidden, Invalid) as error:
            await self._refuse(pod, made_at, f"The API server refuses its ResourceClaim: {error}")
        finally:
            self._writing.discard(pod.uid)

    def _is_free(self, record: ClaimRecord, pod: PodInfo) -> bool:
        """Say whether a claim that a user has made may be this pod's now.

        It is one pod's at a time: which share another pod had would not be known.
        """
        if not record.by_hand or record.gpus is None or record.owner == pod.uid:
            return False
        last = self._state.pod(record.owner)
        return not record.reserved and (last is None or last.pod.finished)

    def _why_not(self, record: ClaimRecord) -> str:
        last = self._state.pod(record.owner) if record.by_hand else None
        if last is None:
            return f"The ResourceClaim {record.name} is not the pod's own: it gets no GPUs by it"
        return (
            f"The ResourceClaim {record.name} is that of pod {last.pod.name}, and a claim is one"
            " pod's at a time: name a ResourceClaimTemplate in its place"
        )

    async def _take_over(self, record: ClaimRecord, pod: PodInfo) -> ClaimRecord:
        """Write on a user's claim whose it is, before it is allocated."""
        live = await self._writer.call(
            self._writer.api.get, RESOURCE_CLAIMS, record.name, record.namespace
        )
        known = live["metadata"]
        if (known["uid"], known["resourceVersion"]) != (record.uid, record.resource_version):
            raise Conflict(409, f"the claim {record.name} is another by now")
        metadata = {
            "uid": record.uid,
            "resourceVersion": record.resource_version,
            "annotations": {names.CLAIM_POD: pod.uid},
            "finalizers": sorted({*known.get("finalizers", ()), claims.FINALIZER}),
        }
        answer = await self._writer.call(
            self._writer.api.patch,
            RESOURCE_CLAIMS,
            record.name,
            {"metadata": metadata},
            record.namespace,
        )
        return self._take(answer)

    async def _create(self, pod: PodInfo) -> ClaimRecord:
        faults.reach("claim-create-before")
        body = claims.body(pod.gpu_claim, pod.namespace, pod.name, pod.uid, pod.gpus)
        made = await self._writer.call(
            self._writer.api.create, RESOURCE_CLAIMS, body, pod.namespace
        )
        faults.reach("claim-create-after")
        return self._take(made)

    async def _allocate(self, record: ClaimRecord, wanted: Allocation, plan: Claim) -> None:
        faults.reach("claim-allocate-before")
        now = rfc3339(self._clock())
        allocation = claims.written(wanted, self._capacity(plan), now, record.request)
        await self._patch(record, {"allocation": allocation})
        faults.reach("claim-allocate-after")

    async def _clear(self, record: ClaimRecord) -> ClaimRecord:
        """Take back an allocation, and the reservation of a kube-scheduler that did not bind.

        The pod is on no node, and is not bound while this is written: see `mismatch`.
        """
        faults.reach("claim-clear-before")
        cleared = await self._patch(record, {"allocation": None, "reservedFor": None})
        faults.reach("claim-clear-after")
        return cleared

    async def _patch(self, record: ClaimRecord, status: Object) -> ClaimRecord:
        metadata = {"uid": record.uid, "resourceVersion": record.resource_version}
        answer = await self._writer.call(
            self._writer.api.patch,
            RESOURCE_CLAIMS,
            record.name,
            {"metadata": metadata, "status": status},
            record.namespace,
            subresource="status",
        )
        return self._take(answer)

    async def _read(self, pod: PodInfo) -> None:
        """Take in what another has made of a claim: the watch may bring it later."""
        assert self._known is not None
        try:
            found = await self._writer.call(
                self._writer.api.get, RESOURCE_CLAIMS, pod.gpu_claim, pod.namespace
            )
        except NotFound:
            if (known := self._known.of(pod)) is not None:
                self._known.take(EventType.DELETED, known)
        else:
            self._take(found)

    def _take(self, raw: Object) -> ClaimRecord:
        assert self._known is not None
        record = parse_claim(raw)
        self._known.take(EventType.MODIFIED, record)
        return record

    async def _refuse(self, pod: PodInfo, made_at: str, note: str) -> None:
        self._refused[pod.uid] = (pod.resource_version, made_at)
        if not claims.is_made(pod.gpu_claim):
            self._wanting.setdefault((pod.namespace, pod.gpu_claim), set()).add(pod.uid)
        log.warning("claim refused pod=%s/%s note=%r", *pod.key, note)
        await self._writer.say(pod, "ClaimRefused", note, "Warning")

    def forget(self, pod: PodInfo) -> None:
        """Forget a pod that is gone."""
        self._refused.pop(pod.uid, None)
        self._inherited.discard(pod.uid)
        if wanting := self._wanting.get((pod.namespace, pod.gpu_claim)):
            wanting.discard(pod.uid)
            if not wanting:
                del self._wanting[pod.namespace, pod.gpu_claim]

    def _capacity(self, plan: Claim) -> dict[str, dict[str, str]]:
        """Return what the claim takes of each device, by its name: what the queue counts with."""
        node = self._state.gpu_nodes().get(("", plan.node))
        facts = {} if node is None else {gpu.uuid: gpu for gpu in node.gpus}
        found = {}
        for gpu in plan.gpus:
            fact, job = facts.get(gpu), plan.job
            shares, memory = 1, int(job.memory_peak_gib * BYTES_PER_GIB)
            if fact is not None:
                capacity = int(fact.capacity_gib * BYTES_PER_GIB)
                shares = max(1, fact.shares) if job.exclusive else 1
                memory = capacity if job.exclusive else min(memory, capacity)
            found[claims.device_name(gpu) or gpu] = {"shares": str(shares), "memory": str(memory)}
        return found


def _is_of(record: ClaimRecord, pod: PodInfo) -> bool:
    """Say whether a claim is this pod's, and asks for what it asks for."""
    return record.owner == pod.uid and record.gpus == pod.gpus
