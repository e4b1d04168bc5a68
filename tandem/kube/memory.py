"""An API server in memory: the demo's and the fast tests' stand-in for a real one.

It keeps what Tandem relies on (resourceVersions, uid preconditions, atomic Bindings, gates, status
subresources, watch order) and nothing else: no admission but `admit`, no garbage collection. It
refuses what `schema` says: what is no JSON, wrong names and labels, objects that are too large, and
what our definitions do not allow.
tests/kube/test_kube_contract.py compares it with the real one (docs/evidence/kubernetes.md).
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from tandem.kube.client import Object, Page, PatchType
from tandem.kube.errors import AlreadyExists, Conflict, Invalid, NotFound, Replaced
from tandem.kube.reflector import EventType, OnEvent
from tandem.kube.resource import PODS, Resource
from tandem.kube.schema import check

Admit = Callable[[Object], Object]
_Key = tuple[str, str]
#: Kinds of which the object and its status are written apart.
_WITH_STATUS = (PODS,)
_METADATA_OF_STATUS = frozenset(("annotations", "labels"))


class MemoryCluster:
    """The objects and the watchers of their changes. Safe to use from many threads."""

    def __init__(self, admit: Admit | None = None, clock: Callable[[], float] = time.time) -> None:
        self._admit = admit
        self._clock = clock
        self._objects: dict[Resource, dict[_Key, Object]] = {}
        self._watchers: dict[Resource, list[OnEvent]] = {}
        self._version = 0
        self._lock = threading.RLock()

    def watch(self, resource: Resource, on_event: OnEvent) -> None:
        """Tell `on_event` of everything that is there and of every change from now on."""
        with self._lock:
            for item in self._of(resource).values():
                on_event(EventType.ADDED, copy.deepcopy(item))
            self._watchers.setdefault(resource, []).append(on_event)

    # --- what a client does -------------------------------------------------------------------

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """Read one object."""
        with self._lock:
            return copy.deepcopy(self._find(resource, name, namespace))

    def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        page_size: int = 0,
    ) -> Iterator[Page]:
        """Read a collection as one page. Selectors: fields and labels that equal a value."""
        wanted = [part.partition("=")[::2] for part in field_selector.split(",") if part]
        labels = [part for part in label_selector.split(",") if part]
        with self._lock:
            items = [
                copy.deepcopy(item)
                for (where, _), item in self._objects.get(resource, {}).items()
                if (namespace is None or where == namespace)
                and all(_field(item, path) == value for path, value in wanted)
                and all(_has_label(item, part) for part in labels)
            ]
            yield Page(items, str(self._version))

    def versions(self, resource: Resource) -> list[str]:
        """Return the versions at which objects of this kind have been stored: those it serves."""
        with self._lock:
            return [
                other.version
                for other in self._objects
                if (other.group, other.plural) == (resource.group, resource.plural)
            ]

    def list(self, resource: Resource, namespace: str | None = None) -> list[Object]:
        """Read a whole collection."""
        return [item for page in self.pages(resource, namespace) for item in page.items]

    def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        """Create an object; pods go through `admit` first."""
        with self._lock:
            item = copy.deepcopy(body)
            metadata = item.setdefault("metadata", {})
            if resource.namespaced:
                metadata["namespace"] = namespace or metadata.get("namespace") or "default"
            if "name" not in metadata:
                metadata["name"] = metadata.get("generateName", "") + uuid4().hex[:5]
            if resource == PODS and self._admit is not None:
                item = self._admit(item)
                metadata = item["metadata"]
            item |= {"apiVersion": resource.api_version, "kind": resource.kind}
            key = (metadata.get("namespace", ""), metadata["name"])
            if key in self._of(resource):
                raise AlreadyExists(409, f"{resource.plural} {key[1]!r} already exists")
            metadata["uid"] = str(uuid4())
            check(resource, item)
            metadata["creationTimestamp"] = self._now()
            return self._store(resource, item, EventType.ADDED)

    def replace(
        self,
        resource: Resource,
        body: Object,
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> Object:
        """Replace an object, or its `status` only."""
        with self._lock:
            name = body["metadata"]["name"]
            known = self._find(resource, name, namespace or body["metadata"].get("namespace"))
            _check(known, body["metadata"])
            if subresource == "status":
                item = copy.deepcopy(known) | {"status": copy.deepcopy(body.get("status") or {})}
            else:
                item = copy.deepcopy(body) | {"status": known.get("status") or body.get("status")}
                if item["status"] is None:
                    del item["status"]
                item["metadata"]["uid"] = known["metadata"]["uid"]
            return self._update(resource, known, item)

    def patch(
        self,
        resource: Resource,
        name: str,
        body: object,
        namespace: str | None = None,
        *,
        kind: PatchType = "merge",
        subresource: str = "",
    ) -> Object:
        """Apply a JSON merge patch (RFC 7396)."""
        if kind != "merge" or not isinstance(body, dict):
            raise Invalid(400, "the in-memory API server knows merge patches only")
        with self._lock:
            known = self._find(resource, name, namespace)
            wanted = body.get("metadata") or {}
            _check(known, {"resourceVersion": wanted.get("resourceVersion")})
            if wanted.get("uid", known["metadata"]["uid"]) != known["metadata"]["uid"]:
                raise _replaced(known, wanted["uid"])
            item = _merge(copy.deepcopy(known), body)
            if subresource == "status":
                merged, item = item, copy.deepcopy(known) | {"status": item.get("status")}
                if resource == PODS:  # of which a write of the status changes these as well
                    for part in _METADATA_OF_STATUS & merged["metadata"].keys():
                        item["metadata"][part] = merged["metadata"][part]
            elif resource in _WITH_STATUS and "status" in known:
                item["status"] = copy.deepcopy(known["status"])
            if "deletionTimestamp" in item["metadata"] and not item["metadata"].get("finalizers"):
                return self._remove(resource, item)
            return self._update(resource, known, item)

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        grace_period_s: int | None = None,
    ) -> Object:
        """Delete an object: at once, or when its last finalizer is removed by a patch."""
        with self._lock:
            known = self._find(resource, name, namespace)
            _check(known, {"uid": uid} if uid else {})
            if known["metadata"].get("finalizers"):
                item = copy.deepcopy(known)
                if resource == PODS and known["spec"].get("nodeName"):
                    self._shorten_grace(item, grace_period_s)
                item["metadata"].setdefault("deletionTimestamp", self._now())
                return self._update(resource, known, item)
            return self._remove(resource, known)

    def bind(
        self,
        namespace: str,
        pod: str,
        node: str,
        *,
        uid: str,
        resource_version: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Put a pod on a node, with the annotations, in one update.

        The API server does not validate the pod here: its annotations may grow beyond their limit.
        """
        with self._lock:
            known = self._find(PODS, pod, namespace)
            _check(known, {"uid": uid, "resourceVersion": resource_version})
            if known["spec"].get("nodeName"):
                raise Conflict(409, f"pod {pod} is already assigned to a node")
            if "deletionTimestamp" in known["metadata"]:
                raise Conflict(409, f"pod {pod} is being deleted, cannot be assigned to a host")
            if known["spec"].get("schedulingGates"):
                raise Conflict(409, f"pod {pod} has scheduling gates")
            item = copy.deepcopy(known)
            item["spec"]["nodeName"] = node
            item["metadata"].setdefault("annotations", {}).update(annotations or {})
            status = item["status"] = item.get("status") or {}
            status.pop("nominatedNodeName", None)
            others = [
                each for each in status.get("conditions") or () if each["type"] != "PodScheduled"
            ]
            bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self._now()}
            status["conditions"] = [*others, bound]
            self._store(PODS, item, EventType.MODIFIED)

    def evict(self, namespace: str, pod: str, *, uid: str) -> None:
        """Delete a pod, if it is still that one."""
        self.delete(PODS, pod, namespace, uid=uid)

    def close(self) -> None:
        """Do nothing: there is no connection."""

    # --- inside -------------------------------------------------------------------------------

    def _shorten_grace(self, pod: Object, grace_period_s: int | None) -> None:
        """Set by when a bound pod is to end; asked again, the time only becomes shorter."""
        metadata, now_s = pod["metadata"], self._clock()
        known = metadata.get("deletionGracePeriodSeconds")
        if known is not None:
            if grace_period_s is None or grace_period_s >= known:
                return
            deadline = datetime.fromisoformat(metadata["deletionTimestamp"])
            now_s = deadline.timestamp() - known
        elif grace_period_s is None:
            grace_period_s = pod["spec"].get("terminationGracePeriodSeconds", 30)
        metadata["deletionGracePeriodSeconds"] = grace_period_s
        metadata["deletionTimestamp"] = _time(now_s + grace_period_s)

    def _now(self) -> str:
        return _time(self._clock())

    def _of(self, resource: Resource) -> dict[_Key, Object]:
        return self._objects.setdefault(resource, {})

    def _find(self, resource: Resource, name: str, namespace: str | None) -> Object:
        where = (namespace or "default") if resource.namespaced else ""
        found = self._objects.get(resource, {}).get((where, name))
        if found is None:
            versions = self.versions(resource)
            if versions and resource.version not in versions:
                raise NotFound(404, "404 page not found")
            details = {"name": name, "group": resource.group, "kind": resource.plural}
            raise NotFound(404, f"{resource.plural} {name!r} not found", "NotFound", details)
        return found

    def _store(self, resource: Resource, item: Object, event: EventType) -> Object:
        self._version += 1
        metadata = item["metadata"]
        metadata["resourceVersion"] = str(self._version)
        self._of(resource)[metadata.get("namespace", ""), metadata["name"]] = item
        self._tell(resource, event, item)
        return copy.deepcopy(item)

    def _update(self, resource: Resource, known: Object, item: Object) -> Object:
        """Store what an object becomes; what changes nothing has no new version and no event."""
        check(resource, item, known)
        if resource == PODS:
            _check_pod(known, item)
        item["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"]
        if item == known:
            return copy.deepcopy(known)
        return self._store(resource, item, EventType.MODIFIED)

    def _remove(self, resource: Resource, item: Object) -> Object:
        metadata = item["metadata"]
        del self._of(resource)[metadata.get("namespace", ""), metadata["name"]]
        self._tell(resource, EventType.DELETED, item)
        return copy.deepcopy(item)

    def _tell(self, resource: Resource, event: EventType, item: Object) -> None:
        for on_event in self._watchers.get(resource, ()):
            on_event(event, copy.deepcopy(item))


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _check_pod(known: Object, item: Object) -> None:
    """Raise Invalid for changes of a pod that the API server never allows."""
    before = known["spec"].get("schedulingGates") or []
    after = item["spec"].get("schedulingGates") or []
    if any(gate not in before for gate in after):
        raise Invalid(422, "spec.schedulingGates: Forbidden: only deletion is allowed")
    if item["spec"].get("nodeName") != known["spec"].get("nodeName"):
        raise Invalid(422, "spec: Forbidden: pod updates may not change nodeName")


def _has_label(item: Object, part: str) -> bool:
    """Say whether an object has a label, with its value where the selector names one."""
    labels = item["metadata"].get("labels") or {}
    name, equals, value = part.partition("=")
    return name in labels and (not equals or labels[name] == value)


def _field(item: Object, path: str) -> str:
    """Return the value of a field selector's path, '' where the object does not have it."""
    value: Any = item
    for part in path.split("."):
        value = (value or {}).get(part)
    return str(value or "")


def _check(known: Object, wanted: Mapping[str, Any]) -> None:
    """Raise Conflict unless the preconditions in `wanted` hold."""
    for field in ("uid", "resourceVersion"):
        value = wanted.get(field)
        if value and value != known["metadata"][field]:
            raise Conflict(
                409, f"precondition failed: {field} is {known['metadata'][field]}, not {value}"
            )


def _replaced(known: Object, uid: str) -> Replaced:
    """Return the answer to a patch of an object with another uid: the uid cannot be changed."""
    message = f'metadata.uid: Invalid value: "{uid}": field is immutable'
    details = {"name": known["metadata"]["name"], "causes": [{"field": "metadata.uid"}]}
    return Replaced(422, message, "Invalid", details)


def _merge(target: Any, patch: Any) -> Any:  # noqa: ANN401 - JSON values
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merge(result.get(key), value)
    return result
