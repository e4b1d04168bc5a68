"""Publishing the node's GPUs: one ResourceSlice, kept as the agent's report says.

The report is the node's GPUNode. Kubelet deletes the slices of its node when it starts, and those
of a driver that stays away for half a minute; what is deleted is published anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from node_agent.dra import DRIVER
from node_agent.dra.devices import devices, inventory
from node_agent.handover import UNKNOWN, way_of
from node_agent.places import Place
from tandem.contracts.resources import GPUNodeStatus
from tandem.kube.api import ClusterApi
from tandem.kube.errors import Conflict, KubeError, NotFound
from tandem.kube.reflector import EventType
from tandem.kube.resource import NODES, RESOURCE_SLICES

log = logging.getLogger(__name__)

Object = dict[str, Any]

#: On a slice: what it was made of. Compared in place of the devices, which the API server writes in
#: its own way, and leaves parts of out where a feature gate is off.
_DIGEST = f"{DRIVER}/digest"
_RETRY_MIN_S, _RETRY_MAX_S = 1.0, 30.0


class SlicePublisher:
    """Keeps the slice of one node; `take_report` and `take_slice` are called with every change.

    `places` returns where the GPUs are in their machine, by UUID.
    """

    def __init__(
        self, node: str, api: ClusterApi, places: Callable[[], Mapping[str, Place]]
    ) -> None:
        self.name = f"{node}-{DRIVER}"
        self._node = node
        self._api = api
        self._places = places
        self._report: GPUNodeStatus | None = None
        self._slices: dict[str, Object] = {}
        self._warned: frozenset[str] = frozenset()
        self._changed = threading.Condition()
        self._is_due = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="slices", daemon=True)

    def inventory(self) -> dict[str, str] | None:
        """Return the UUIDs of the GPUs by the names of their devices; None before a report."""
        report = self._report
        return None if report is None else inventory(report)

    def way(self, uuid: str) -> str:
        """Return how a GPU is handed over, by the last report."""
        gpus = self._report.gpus if self._report is not None else ()
        return next((way_of(gpu) for gpu in gpus if gpu.uuid == uuid), UNKNOWN)

    # --- what is watched ----------------------------------------------------------------------

    def take_report(self, event: EventType, gpu_node: Object) -> None:
        """Take the node's GPUNode; one that was deleted says nothing more than before."""
        if event is EventType.DELETED or not gpu_node.get("status"):
            return
        try:
            report = GPUNodeStatus.model_validate(gpu_node["status"])
        except ValidationError as error:  # written by another version
            log.warning("report not understood error=%r", error.errors()[0]["msg"])
            return
        with self._changed:
            self._report = report
            self._wake()

    def take_slice(self, event: EventType, item: Object) -> None:
        """Take a slice of the node, ours or another driver's."""
        name = item["metadata"]["name"]
        with self._changed:
            if event is EventType.DELETED:
                self._slices.pop(name, None)
            else:
                self._slices[name] = item
            self._wake()

    def _wake(self) -> None:
        self._is_due = True
        self._changed.notify()

    # --- writing ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop; the slice stays, since kubelet deletes it where no driver comes back."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        retry_s = _RETRY_MIN_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_due or self._stopping)
                if self._stopping:
                    return
                self._is_due = False
            try:
                self.publish()
                retry_s = _RETRY_MIN_S
            except KubeError as error:
                log.warning("slice not written name=%s error=%r", self.name, str(error))
                with self._changed:
                    self._is_due = True
                    self._changed.wait_for(lambda: self._stopping, retry_s)
                retry_s = min(2 * retry_s, _RETRY_MAX_S)

    def publish(self) -> None:
        """Write the slice where it is not what the newest report says.

        Raises:
            KubeError: it was not, or perhaps not, written.
        """
        with self._changed:
            report, known = self._report, self._slices.get(self.name)
            taken = _published(
                each for each in self._slices.values() if each["spec"]["driver"] != DRIVER
            )
        if report is None:
            return
        if not inventory(report):
            self._withdraw(known)
            return
        self._warn(taken, report)
        wanted = devices(report, self._places(), taken)
        digest = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:32]
        if known is not None and known["metadata"].get("annotations", {}).get(_DIGEST) == digest:
            return
        try:
            written = self._write(known, wanted, digest)
        except (Conflict, NotFound):
            self._refresh()
            raise
        self._check_gates(written)
        with self._changed:
            self._slices[self.name] = written

    def _refresh(self) -> None:
        """Read what another has made of the slice: the watch may bring it later."""
        try:
            found = self._api.get(RESOURCE_SLICES, self.name)
        except NotFound:
            with self._changed:
                self._slices.pop(self.name, None)
        else:
            with self._changed:
                self._slices[self.name] = found

    def _write(self, known: Object | None, wanted: list[Object], digest: str) -> Object:
        spec: Object = {
            "driver": DRIVER,
            "nodeName": self._node,
            "pool": {"name": self._node, "generation": 1, "resourceSliceCount": 1},
            "devices": wanted,
        }
        metadata: Object = {"name": self.name, "annotations": {_DIGEST: digest}}
        if known is None:
            uid = self._api.get(NODES, self._node)["metadata"]["uid"]
            metadata["ownerReferences"] = [
                {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid}
            ]
            written = self._api.create(RESOURCE_SLICES, {"metadata": metadata, "spec": spec})
        else:
            spec["pool"]["generation"] = known["spec"]["pool"]["generation"] + 1
            metadata = {**known["metadata"], **metadata}
            written = self._api.replace(RESOURCE_SLICES, {"metadata": metadata, "spec": spec})
        log.info("published devices=%d generation=%d", len(wanted), spec["pool"]["generation"])
        return written

    def _withdraw(self, known: Object | None) -> None:
        """Delete the slice of a node whose GPUs the environment hands over again."""
        if known is None:
            return
        with contextlib.suppress(NotFound):
            self._api.delete(RESOURCE_SLICES, self.name)
        with self._changed:
            self._slices.pop(self.name, None)
        log.info("withdrawn name=%s", self.name)

    def _warn(self, taken: frozenset[str], report: GPUNodeStatus) -> None:
        both = taken & {gpu.uuid for gpu in report.gpus}
        if both and both != self._warned:
            log.error("another driver publishes the same GPUs uuids=%s", ",".join(sorted(both)))
        self._warned = both

    @staticmethod
    def _check_gates(written: Object) -> None:
        for device in written["spec"].get("devices") or ():
            if not device.get("allowMultipleAllocations"):
                log.warning(
                    "the API server has no consumable capacity (feature gate"
                    " DRAConsumableCapacity): a GPU goes to one claim at a time"
                )
                return


def _published(slices: Any) -> frozenset[str]:  # noqa: ANN401 - an iterable of objects
    """Return every text that devices have as an attribute: UUIDs of GPUs are among them."""
    return frozenset(
        value["string"]
        for item in slices
        for device in item["spec"].get("devices") or ()
        for value in (device.get("attributes") or {}).values()
        if "string" in value
    )
