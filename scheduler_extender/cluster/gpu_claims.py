"""ResourceClaims that give GPUs of ours: what the API server says of each.

Fed by a reflector of its own, and only where an operator lets plans allocate claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import Key, Record
from tandem.contracts import claims, names
from tandem.contracts.claims import Allocation
from tandem.kube.reflector import EventType

_KEPT = 4096  # UIDs of claims that are gone, of which a late answer may still tell


@dataclass(frozen=True, slots=True)
class ClaimRecord(Record):
    """A claim: whose it is (the uid of its pod), how many GPUs it asks us for, and what it has.

    `gpus` is None where the queue does not allocate it, and `request` is the name of its request.
    `reserved` are uids of pods. `by_hand`: a user has made it, and one pod after another may have
    it.
    """

    owner: str = ""
    gpus: int | None = None
    request: str = ""
    by_hand: bool = False
    allocation: Allocation | None = None
    reserved: frozenset[str] = frozenset()
    deleting: bool = False


def parse_claim(raw: Mapping[str, Any]) -> ClaimRecord:
    """Return what is used of a claim."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    owners = (
        str(each.get("uid"))
        for each in metadata.get("ownerReferences") or ()
        if each.get("controller") and each.get("kind") == "Pod" and each.get("apiVersion") == "v1"
    )
    owner, asked = next(owners, ""), claims.asked_of(raw)
    return ClaimRecord(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        owner=owner or str((metadata.get("annotations") or {}).get(names.CLAIM_POD, "")),
        gpus=asked.gpus if asked is not None else None,
        request=asked.request if asked is not None else "",
        by_hand=not owner,
        allocation=claims.read(raw),
        reserved=frozenset(
            str(each.get("uid"))
            for each in status.get("reservedFor") or ()
            if each.get("resource") == "pods"
        ),
        deleting="deletionTimestamp" in metadata,
    )


class GpuClaims:
    """The newest version of each claim. All methods run on the event loop.

    `changed` is called with each claim that is another than before, and whether it is gone.
    """

    def __init__(self) -> None:
        self._by_key: dict[Key, ClaimRecord] = {}
        self._gone: dict[str, None] = {}
        #: Claims of others that have GPUs of ours: the ledger does not know who uses them.
        self._strangers: set[Key] = set()
        self.changed: Callable[[ClaimRecord, bool], None] = lambda *_: None

    def of(self, pod: PodInfo) -> ClaimRecord | None:
        """Return the claim that a pod names, None where there is none."""
        return self._by_key.get((pod.namespace, pod.gpu_claim))

    def allocated(self) -> Iterator[str]:
        """Yield the uids of the pods whose claims are allocated."""
        return (each.owner for each in self._by_key.values() if each.owner and each.allocation)

    def strangers(self) -> Iterator[Allocation]:
        """Yield what claims that the queue does not allocate have of our GPUs."""
        for key in self._strangers:
            found = self._by_key[key].allocation
            if found is not None:
                yield found

    def take(self, event: EventType, record: ClaimRecord) -> None:
        """Take in an event, or the answer to a write of ours; an older version changes nothing."""
        known = self._by_key.get(record.key)
        if event == EventType.DELETED:
            self._gone[record.uid] = None
            while len(self._gone) > _KEPT:
                del self._gone[next(iter(self._gone))]
            if known is not None and known.uid == record.uid:
                del self._by_key[record.key]
                self._strangers.discard(record.key)
                self.changed(known, True)
            return
        if record.uid in self._gone:
            return
        if known is not None and known.uid == record.uid and known.version >= record.version:
            return
        self._by_key[record.key] = record
        taken = record.allocation is not None and bool(record.allocation.devices)
        if taken and record.gpus is None:
            self._strangers.add(record.key)
        else:
            self._strangers.discard(record.key)
        self.changed(record, False)
