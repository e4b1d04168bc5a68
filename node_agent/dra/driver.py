"""Preparing claims: what kubelet asks before it starts a pod, and after the pod has ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from node_agent.dra.cdi import TOOLKIT_KIND, Specs, Toolkit, device_id
from node_agent.dra.claims import ClaimError, ClaimRef, Given, given
from node_agent.handover import DRA, DRA_QUEUE, UNKNOWN
from tandem.contracts.claims import asks_us
from tandem.kube.api import ClusterApi
from tandem.kube.errors import KubeError, NotFound
from tandem.kube.resource import RESOURCE_CLAIMS

log = logging.getLogger(__name__)

#: NVIDIA's runtime reads it, and adds the GPUs that it names.
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A device, and the CDI names by which the runtime gives it to the containers of the claim."""

    given: Given
    cdi_ids: tuple[str, ...]


class Driver:
    """Prepares the claims of one node; safe to use from many threads.

    `inventory` returns the UUIDs of the node's GPUs by the names of their devices, None before they
    are known, and `way` how a GPU is handed over by what was reported last.
    """

    def __init__(
        self,
        node: str,
        api: ClusterApi,
        specs: Specs,
        toolkit: Toolkit,
        inventory: Callable[[], Mapping[str, str] | None],
        way: Callable[[str], str] = lambda _: UNKNOWN,
    ) -> None:
        self.node = node
        self._api = api
        self._specs = specs
        self._toolkit = toolkit
        self._inventory = inventory
        self._way = way
        #: One change of the files at a time.
        self._lock = threading.Lock()

    def prepare(self, ref: ClaimRef) -> list[Prepared]:
        """Let the runtime give the claim's GPUs to containers, and return the names for it.

        The answer follows from the claim's allocation alone, which does not change while a pod may
        use it: asked again, after a kill or a restart, it is the same.

        Raises:
            ClaimError: the claim gives what cannot be given, or the API server does not answer.
        """
        try:
            claim = self._api.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
        except KubeError as error:
            raise ClaimError(f"the claim {ref.namespace}/{ref.name}: {error}") from error
        devices = given(ref, claim, self.node)
        if not devices:
            return []
        uuids = self._uuids(devices)
        self._check_way(ref, uuids, queued=asks_us(claim))
        by_toolkit = uuids.keys() <= self._toolkit.names()
        if not by_toolkit and len({device.request for device in devices}) > 1:
            # Each request would set the variable, and a container would have the last one's GPUs.
            raise ClaimError(
                "a claim with several requests for GPUs needs CDI files of NVIDIA's container"
                " toolkit (nvidia-ctk cdi generate --device-name-strategy=uuid)"
            )
        # `void`: what CDI has given is not given a second time by NVIDIA's runtime.
        visible = "void" if by_toolkit else ",".join(uuids)
        with self._lock:
            self._specs.write(ref, {VISIBLE_DEVICES: visible})
        log.info("prepared claim=%s/%s uid=%s", ref.namespace, ref.name, ref.uid)
        own = device_id(ref)
        name_of = {device: uuid for uuid, device in uuids.items()}
        return [
            Prepared(
                device,
                (own, f"{TOOLKIT_KIND}={name_of[device.device]}") if by_toolkit else (own,),
            )
            for device in devices
        ]

    def unprepare(self, ref: ClaimRef) -> None:
        """Remove what was prepared for a claim; nothing of it may be there.

        Raises:
            ClaimError: something cannot be removed.
        """
        with self._lock:
            self._specs.remove(ref.uid)
        log.info("unprepared claim=%s/%s uid=%s", ref.namespace, ref.name, ref.uid)

    def sweep(self) -> None:
        """Remove the files of claims that are gone: kubelet may have lost what it knew of them."""
        for ref in list(self._specs.claims()):
            try:
                claim = self._api.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
                kept = claim["metadata"]["uid"] == ref.uid and bool(
                    (claim.get("status") or {}).get("allocation")
                )
            except NotFound:
                kept = False
            except KubeError as error:
                log.warning("claim unknown uid=%s error=%r", ref.uid, str(error))
                continue
            if not kept:
                self.unprepare(ref)

    def _check_way(self, ref: ClaimRef, uuids: Iterable[str], *, queued: bool) -> None:
        """Refuse a claim that comes to a GPU after it went over to another way.

        kube-scheduler or an extender may write one by what it knew before. A claim that was
        prepared is that of a pod that has the GPU: asked again, it gets it again.
        """
        other = DRA if queued else DRA_QUEUE
        if self._specs.has(ref.uid):
            return
        for uuid in uuids:
            if self._way(uuid) == other:
                givers = "kube-scheduler gives" if queued else "Tandem's queue gives"
                raise ClaimError(
                    f"{givers} the GPU {uuid} now (hand-over={other}): delete the pod, so that it"
                    " gets another"
                )

    def _uuids(self, devices: list[Given]) -> dict[str, str]:
        """Return the devices' names by the UUIDs of the GPUs that they are."""
        inventory = self._inventory()
        if inventory is None:
            raise ClaimError("the node's agent has not reported its GPUs yet")
        unknown = sorted({each.device for each in devices} - inventory.keys())
        if unknown:
            raise ClaimError(f"node {self.node} has no GPU {', '.join(unknown)}")
        return {inventory[each.device]: each.device for each in devices}
