"""Kinds of objects, and their paths at the API server."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from tandem.contracts.names import GROUP, VERSION


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object as the API server serves it."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`apps/v1`, or plain `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """Return the path of the collection, of one object, or of its subresource."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace is not None and self.namespaced:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(quote(part, safe="") for part in parts)


PODS = Resource("", "v1", "Pod", "pods")
NODES = Resource("", "v1", "Node", "nodes", namespaced=False)
NAMESPACES = Resource("", "v1", "Namespace", "namespaces", namespaced=False)
SECRETS = Resource("", "v1", "Secret", "secrets")
CONFIG_MAPS = Resource("", "v1", "ConfigMap", "configmaps")
CORE_EVENTS = Resource("", "v1", "Event", "events")
EVENTS = Resource("events.k8s.io", "v1", "Event", "events")
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims")
RESOURCE_CLAIM_TEMPLATES = Resource(
    "resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates"
)
RESOURCE_SLICES = Resource(
    "resource.k8s.io", "v1", "ResourceSlice", "resourceslices", namespaced=False
)
LEASES = Resource("coordination.k8s.io", "v1", "Lease", "leases")
JOBS = Resource("batch", "v1", "Job", "jobs")
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", namespaced=False)
MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    False,
)
GPU_JOBS = Resource(GROUP, VERSION, "GPUJob", "gpujobs")
GPU_NODES = Resource(GROUP, VERSION, "GPUNode", "gpunodes", namespaced=False)
#: Levels of topology in Kueue 0.19 and, with the older version of the API, before 0.15.
KUEUE_TOPOLOGIES = tuple(
    Resource("kueue.x-k8s.io", version, "Topology", "topologies", namespaced=False)
    for version in ("v1beta2", "v1beta1")
)
MODEL_PROFILES = Resource(GROUP, VERSION, "ModelProfile", "modelprofiles")
