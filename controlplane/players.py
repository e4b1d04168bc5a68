"""Stand-ins for the controllers of workloads whose own controllers do not run here."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, ClassVar

import httpx

from controlplane.plane import ControlPlane

Object = dict[str, Any]
_LOOKS_EVERY_S = 0.2
_MERGE = {"Content-Type": "application/merge-patch+json"}


class Player(ABC):
    """Looks at all workloads of a kind in turn, as a controller does that misses no event.

    `label` names the workload of a pod, where its kind has one.
    """

    label: ClassVar[str] = ""

    def __init__(self, plane: ControlPlane, group_version: str, plural: str) -> None:
        self._plane = plane
        self._api, self._plural = f"/apis/{group_version}", plural
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin; the API server has to know the kind."""
        self._thread.start()

    def stop(self) -> None:
        """End, once the workload that is looked at has been."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @abstractmethod
    def is_over(self, workload: Object) -> bool:
        """Say whether nothing is to be done for a workload any more."""

    @abstractmethod
    def reconcile(self, workload: Object, pods: dict[str, Object]) -> None:
        """Do what is to be done next for a workload that exists, given its pods by name."""

    def _run(self) -> None:
        while not self._stop.wait(_LOOKS_EVERY_S):
            with suppress(httpx.TransportError):  # it looks again
                answer = self._plane.http.get(f"{self._api}/{self._plural}")
                for workload in answer.json()["items"] if answer.is_success else ():
                    gone = "deletionTimestamp" in workload["metadata"]
                    if not (gone or self.is_over(workload)):
                        self.reconcile(workload, self._pods_of(workload))

    def _pods_of(self, workload: Object) -> dict[str, Object]:
        name = workload["metadata"]["name"]
        params = {"labelSelector": f"{self.label}={name}"} if self.label else {}
        found = self._plane.http.get(_pods(workload), params=params).json().get("items", ())
        uid = workload["metadata"]["uid"]
        return {
            pod["metadata"]["name"]: pod
            for pod in found
            if uid in (owner["uid"] for owner in pod["metadata"].get("ownerReferences", ()))
        }

    def create(self, workload: Object, pod: Object) -> None:
        """Make a pod that belongs to a workload; one that exists, or is refused, is made later."""
        metadata = workload["metadata"]
        owner = {
            "apiVersion": workload["apiVersion"],
            "kind": workload["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
        }
        owned = {**pod["metadata"], "ownerReferences": [owner]}
        body = {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": owned}
        self._plane.http.post(_pods(workload), json=body)

    def delete(self, workload: Object, pods: dict[str, Object]) -> None:
        """Delete those of the pods that are not on their way out."""
        for name, pod in pods.items():
            if "deletionTimestamp" not in pod["metadata"]:
                self._plane.http.delete(f"{_pods(workload)}/{name}")

    def write_status(self, workload: Object, status: Object) -> None:
        """Merge into the workload's status."""
        metadata = workload["metadata"]
        path = f"{self._api}/namespaces/{metadata['namespace']}/{self._plural}/{metadata['name']}"
        self._plane.http.patch(f"{path}/status", json={"status": status}, headers=_MERGE)


def _pods(workload: Object) -> str:
    return f"/api/v1/namespaces/{workload['metadata']['namespace']}/pods"


def phase(pod: Object) -> str:
    """Return a pod's phase, '' while it has none."""
    return str(pod.get("status", {}).get("phase", ""))
