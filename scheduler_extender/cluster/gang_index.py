"""All gangs, by the name of their GPUJob, by their pods and by what makes their workloads.

`Gangs` is a part of `ClusterState`. The state decides which version of an object counts
(`objects.py`: staleness, order of events, deleted uids) and hands over what it has accepted, in
that order; nothing else changes a gang.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from itertools import islice

from scheduler_extender.cluster.gangs import NO_ENTRIES, Gang
from scheduler_extender.cluster.parsing import share_key, share_owner
from scheduler_extender.cluster.records import GpuJobRecord, Key, PodRecord, Record
from tandem.contracts.resources import WorkloadRef

#: Pods of one gang that are looked through when its GPUJob comes after them: most have one.
_SHARING = 8
#: Pods that succeed within this time of the first belong to the same end; later ones to the next.
_ENDS_AGAIN_S = 60.0


class Gangs:
    """All gangs. `observe` and `forget` return the keys of the gangs that have changed.

    A pod belongs to the gang of its record: the one that the annotation of its GPUJob names, else
    the first that its labels, annotations and owner led to. It leaves that gang only where the
    annotation, once it is written, names another.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._gangs: dict[Key, Gang] = {}
        self._clock = clock
        self._gang_of_pod: dict[str, Key] = {}
        self._with_loads: list[Key] = []  # gangs that have come to have several loads
        # GPUJobs by the uid of what has made their workloads and rests in their place.
        self._by_maker: dict[str, set[Key]] = {}
        #: Called with a gang whose GPUJob is gone, right before the gang loses it.
        self.on_gone: Callable[[Gang], None] = lambda _: None

    @property
    def by_key(self) -> Mapping[Key, Gang]:
        """All gangs that have a GPUJob or a pod."""
        return self._gangs

    def gang_of(self, uid: str) -> Gang | None:
        """Return the gang of a pod."""
        key = self._gang_of_pod.get(uid)
        return self._gangs.get(key) if key else None

    def has_loads(self, key: Key) -> bool:
        """Say whether the pods of a gang declare, or have declared, several loads."""
        gang = self._gangs.get(key)
        return gang is not None and gang.has_loads

    def take_with_loads(self) -> list[Key]:
        """Return the gangs whose pods declare several loads since the last call."""
        if not self._with_loads:
            return []
        found, self._with_loads = self._with_loads, []
        return found

    def runs_on(self, uid: str, node: str, gpu: str) -> bool:
        """Say whether a pod is bound to a node and was given a GPU there.

        What an agent reports counts for such pods alone: its node's credentials may be stolen.
        """
        gang = self.gang_of(uid)
        pod = gang.pods.get(uid) if gang is not None else None
        return pod is not None and pod.node_name == node and gpu in pod.devices

    def of_maker(self, maker: WorkloadRef | None, but: Key) -> list[Gang]:
        """Return the gangs whose workloads `maker` has made, in the namespace of `but`, without it.

        A RayJob makes a RayCluster of another name after each time that it has rested.
        """
        keys = self._by_maker.get(maker.uid, ()) if maker is not None else ()
        return [self._gangs[key] for key in keys if key[0] == but[0] and key != but]

    def pods_of(self, key: Key) -> Set[str]:
        """Return the uids of the pods of a gang, empty where there is none."""
        gang = self._gangs.get(key)
        return gang.pods.keys() if gang is not None else frozenset()

    def observe(self, record: Record) -> list[Key]:
        """Take in an object that the state has accepted; pods without GPUs of ours are left out."""
        if isinstance(record, GpuJobRecord):
            gang = self._gang(record.key)
            if gang.record is not None and gang.record.uid != record.uid:
                self.on_gone(gang)
                gang.gone = {}
            elif gang.record is not None and gang.gone:
                # The writer of the record has counted them to their end: this may be a standby.
                listed = {part.uid for part in record.status.pod_service}
                for part in gang.record.status.pod_service:
                    if part.uid not in listed:
                        gang.gone.pop(part.uid, None)
            if gang.record is not None:
                self._forget_maker(gang.record)
            if record.spec.suspends is not None:
                self._by_maker.setdefault(record.spec.suspends.uid, set()).add(record.key)
            gang.record = record
            for pod in islice(gang.pods.values(), _SHARING):
                share_owner(pod, record)
            return [record.key]
        return self._pod_changed(record) if isinstance(record, PodRecord) else []

    def forget(self, record: Record) -> list[Key]:
        """Forget an object that no longer exists."""
        if isinstance(record, PodRecord):
            return self._leave(record.uid)
        if isinstance(record, GpuJobRecord):
            gang = self._gangs.get(record.key)
            if gang is not None and gang.record is not None and gang.record.uid == record.uid:
                self.on_gone(gang)
                self._forget_maker(gang.record)
                gang.record = None
                gang.gone = {}
                self._drop_if_empty(gang)
                return [record.key]
        return []

    def _forget_maker(self, record: GpuJobRecord) -> None:
        if record.spec.suspends is None:
            return
        keys = self._by_maker[record.spec.suspends.uid]
        keys.discard(record.key)
        if not keys:
            del self._by_maker[record.spec.suspends.uid]

    def _pod_changed(self, record: PodRecord) -> list[Key]:
        pod, left = record.pod, list[Key]()
        if self._gang_of_pod.get(record.uid, record.gpujob) != record.gpujob or not record.ours:
            left = self._leave(record.uid)  # its annotation names another GPUJob
        if not record.ours:
            return left
        gang = self._gang(record.gpujob)
        known = gang.pods.get(record.uid)
        if known is not None and pod.phase == "Succeeded" != known.phase:
            now = self._clock()
            if now > gang.ends_since_s + _ENDS_AGAIN_S:
                gang.ends_since_s = now
        share_key(record, gang.key)
        if gang.record is not None:
            share_owner(pod, gang.record)
        self._gang_of_pod[record.uid] = gang.key
        had_loads = gang.has_loads
        gang.put(pod)
        if gang.has_loads and not had_loads:
            self._with_loads.append(record.gpujob)
        return [*left, record.gpujob]

    def _leave(self, uid: str) -> list[Key]:
        key = self._gang_of_pod.pop(uid, None)
        if key is None:
            return []
        gang = self._gangs[key]
        gang.remove(uid, self._clock())
        self._drop_if_empty(gang)
        return [key]

    def _gang(self, key: Key) -> Gang:
        return self._gangs.setdefault(key, Gang(key))

    def _drop_if_empty(self, gang: Gang) -> None:
        if gang.record is None and not gang.pods:
            del self._gangs[gang.key]

    def check(self) -> None:
        """Raise AssertionError unless each pod is in the gang that the index names. For tests."""
        listed = {uid: key for key, gang in self._gangs.items() for uid in gang.pods}
        assert listed == self._gang_of_pod
        assert {key for keys in self._by_maker.values() for key in keys} == {
            key
            for key, gang in self._gangs.items()
            if gang.record is not None and gang.record.spec.suspends is not None
        }
        assert all(gang.record is not None or gang.pods for gang in self._gangs.values())
        assert not NO_ENTRIES
