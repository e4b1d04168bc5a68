"""Reads the cluster for the checks: each collection once, and of each object what a check needs."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any

from urllib3.exceptions import HTTPError

from tandem.contracts import names
from tandem.contracts.inventory import change_in_words, changes, parse_inventory
from tandem.contracts.quantity import parse_quantity
from tandem.kube.api import ClusterApi
from tandem.kube.client import KubeClient, Object
from tandem.kube.errors import Forbidden, Gone, NotFound, unreachable
from tandem.kube.resource import GPU_NODES, NODES, PODS, RUNTIME_CLASSES, Resource
from tandem.kube.tunnel import Answer

DAEMON_SETS = Resource("apps", "v1", "DaemonSet", "daemonsets")
DEPLOYMENTS = Resource("apps", "v1", "Deployment", "deployments")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
POLICY_BINDINGS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingAdmissionPolicyBinding",
    "validatingadmissionpolicybindings",
    False,
)
PRIORITY_CLASSES = Resource(
    "scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False
)
SELF_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", False
)

_LISTED_AGAIN = 3
_FEATURE = re.compile(r'^kubernetes_feature_enabled\{name="([^"]+)"[^}]*\} ([01])', re.MULTILINE)


class Server:
    """The version and features of an API server."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    @property
    def address(self) -> str:
        """Return its URL."""
        return self._client.credentials.host

    def version(self) -> str:
        """Return its version, such as v1.37.1."""
        return str(self._client.request("GET", "/version").get("gitVersion", ""))

    def clock_s(self) -> float:
        """Return its time in seconds since the epoch, rounded down: the `Date` of an answer."""
        headers, _ = self._read("/version")
        try:
            return parsedate_to_datetime(headers.get("date", "")).timestamp()
        except (TypeError, ValueError) as error:
            raise unreachable("its answers have no date", maybe_done=True) from error

    def features(self) -> Mapping[str, bool]:
        """Return the feature gates of its metrics; one that is always on may be absent."""
        _, content = self._read("/metrics")
        text = content.decode("utf-8", "replace")
        return {name: value == "1" for name, value in _FEATURE.findall(text)}

    def _read(self, path: str) -> tuple[Mapping[str, str], bytes]:
        """Return the headers and the body of an answer."""
        response = self._client.open("GET", path)
        try:
            return response.headers, response.read()
        except HTTPError as error:
            raise unreachable(f"GET {path}: {error}", maybe_done=True) from error
        finally:
            response.release_conn()

    def try_pod(self, namespace: str) -> Object:
        """Return what admission makes of a pod that asks for a GPU; nothing is created."""
        container = {"name": "asks", "image": "asks", "resources": {"limits": {names.RESOURCE: 1}}}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": "tandem-doctor-"},
            "spec": {"containers": [container]},
        }
        path = PODS.path(namespace)
        return self._client.request("POST", path, {"dryRun": "All"}, pod)

    def resources(self, group_version: str) -> set[str]:
        """Return the plurals that it serves under `group_version`; NotFound where it is none."""
        answer = self._client.request("GET", f"/apis/{group_version}")
        return {str(each["name"]) for each in answer.get("resources") or ()}


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A Node, as the checks need it. `handlers`: None where kubelet does not report them."""

    name: str
    labels: dict[str, str]
    ready: bool
    taints: tuple[str, ...]
    handed_out: dict[str, int]
    handlers: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Report:
    """A GPUNode, as the checks need it.

    `written_s` is the API server's time of the latest report, `observed_s` the agent's own.
    `gpus`: UUID, model, and why no new work goes there ('' where it does).
    `unlisted`: UUID, model, and how much memory is in use there by no process that is listed.
    `conditions`: messages of those that are False, by type. `changed`: which GPUs are not those
    that the node is known to have, in words. `by_claims`: who allocates the ResourceClaims by which
    the node hands its GPUs over, `queue` or `kube-scheduler`; '' where it does not.
    """

    node: str
    agent_version: str
    observed_s: float
    written_s: float | None
    gpus: tuple[tuple[str, str, str], ...]
    conditions: dict[str, str]
    changed: str = ""
    unlisted: tuple[tuple[str, str, str], ...] = ()
    by_claims: str = ""


@dataclass
class Cluster:
    """One cluster as of now; `namespace` is Tandem's, `own` that of the caller's context.

    `ask` gets a path of the extender through the API server, as `Tunnel.get` does; None: it is not
    asked.
    """

    objects: ClusterApi
    server: Server
    namespace: str = names.NAMESPACE
    agents: str = names.AGENT_NAMESPACE
    own: str = "default"
    ask: Callable[[str, dict[str, str]], Answer] | None = None
    clock: Callable[[], float] = time.time
    _listed: dict[tuple[Resource, str | None], list[Any]] = field(default_factory=dict)

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
        """Return an object; None where there is none."""
        try:
            return self.objects.get(resource, name, namespace)
        except NotFound:
            return None

    def every(
        self,
        resource: Resource,
        namespace: str | None = None,
        trim: Callable[[Object], Any] = lambda item: item,
    ) -> list[Any]:
        """Return a collection, each object as `trim` leaves it; read once."""
        key = (resource, namespace)
        if key not in self._listed:
            self._listed[key] = self._read(resource, namespace, trim)
        return self._listed[key]

    def _read(
        self, resource: Resource, namespace: str | None, trim: Callable[[Object], Any]
    ) -> list[Any]:
        for attempt in range(_LISTED_AGAIN):
            try:
                pages = self.objects.pages(resource, namespace)
                return [trim(item) for page in pages for item in page.items]
            except Gone:  # the collection changed between two pages for longer than etcd keeps
                if attempt == _LISTED_AGAIN - 1:
                    raise
        return []

    def may(self, verb: str, resource: str, group: str = names.GROUP, **more: str) -> bool:
        """Say whether the caller may do that; `more`: namespace, name, subresource."""
        attributes = {"verb": verb, "resource": resource, "group": group, **more}
        return self._allowed(SELF_ACCESS_REVIEWS, {"resourceAttributes": attributes})

    def _allowed(self, resource: Resource, spec: Object) -> bool:
        answer = self.objects.create(resource, {"metadata": {}, "spec": spec})
        return bool((answer.get("status") or {}).get("allowed"))

    @cached_property
    def server_s(self) -> float:
        """The API server's time, asked once and advanced by our own clock."""
        return self.server.clock_s()

    @cached_property
    def shadow(self) -> bool:
        """Check whether another scheduler places all pods and Tandem records them (`mode: shadow`).

        False where that may not be read.
        """
        try:
            recorder, ours = (
                self.get(DEPLOYMENTS, name, self.namespace)
                for name in ("tandem-shadow", "tandem-scheduler")
            )
        except Forbidden:
            return False
        return recorder is not None and ours is None

    @property
    def nodes(self) -> list[NodeFacts]:
        """All nodes."""
        return self.every(NODES, trim=_node)

    @property
    def reports(self) -> list[Report]:
        """The reports of all agents."""
        return self.every(GPU_NODES, trim=_report)

    @cached_property
    def daemon_set(self) -> Object | None:
        """The agents' DaemonSet; None where there is none, or it may not be read."""
        try:
            return self.get(DAEMON_SETS, "tandem-agent", self.agents)
        except Forbidden:
            return None

    @property
    def agent_template(self) -> Object:
        """The specification of the agents' pods; {} where it is not known."""
        spec = (self.daemon_set or {}).get("spec") or {}
        found: Object = (spec.get("template") or {}).get("spec") or {}
        return found

    @property
    def gpu_nodes(self) -> list[NodeFacts]:
        """The nodes on which agents are to run, and those that have reported."""
        selector = self.agent_template.get("nodeSelector")
        reported = {report.node for report in self.reports}
        return [
            node
            for node in self.nodes
            if node.name in reported
            or (selector is not None and selector.items() <= node.labels.items())
        ]

    @cached_property
    def runtime_class(self) -> Object | None:
        """The runtime class that the agents name; None where there is none."""
        return self.get(RUNTIME_CLASSES, self.agent_template.get("runtimeClassName") or "nvidia")


def seconds(stamp: str | None) -> float | None:
    """Return a time of Kubernetes in seconds since the epoch; None where it is none."""
    try:
        return datetime.fromisoformat((stamp or "").replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def written_s(item: Object, subresource: str = "") -> float | None:
    """Return when the API server last took a write, by its own clock (whole seconds)."""
    times = [
        seconds(entry.get("time"))
        for entry in item["metadata"].get("managedFields") or ()
        if entry.get("subresource", "") == subresource
    ]
    return max((each for each in times if each is not None), default=None)


def _whole(quantity: str) -> int:
    """Return a number of devices, such as `1k`; 0 where it cannot be read."""
    try:
        return int(parse_quantity(quantity))
    except ValueError:
        return 0


def _node(item: Object) -> NodeFacts:
    status, spec = item.get("status") or {}, item.get("spec") or {}
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    handlers = status.get("runtimeHandlers")
    handed_out = {
        key: number
        for key, value in (status.get("capacity") or {}).items()
        if names.is_gpu(key) and (number := _whole(value))
    }
    return NodeFacts(
        item["metadata"]["name"],
        item["metadata"].get("labels") or {},
        conditions.get("Ready") == "True",
        tuple(str(taint.get("key")) for taint in spec.get("taints") or ()),
        handed_out,
        tuple(each.get("name") or "" for each in handlers) if handlers else None,
    )


def _report(item: Object) -> Report:
    status = item.get("status") or {}
    return Report(
        item["metadata"]["name"],
        status.get("agentVersion") or "",
        seconds(status.get("observedAt")) or 0.0,
        written_s(item, "status"),
        tuple(
            (gpu.get("uuid", ""), gpu.get("model", ""), _unusable(gpu))
            for gpu in status.get("gpus") or ()
        ),
        {
            each["type"]: each.get("message") or each.get("reason") or ""
            for each in status.get("conditions") or ()
            if each.get("status") == "False"
        },
        _changed(item),
        tuple(
            (
                gpu.get("uuid", ""),
                gpu.get("model", ""),
                f"{held / 2**30:.1f} of {gpu.get('memoryBytes', 0) / 2**30:.1f} GiB",
            )
            for gpu in status.get("gpus") or ()
            if (held := gpu.get("memoryUnlistedBytes") or 0)
        ),
        _by_claims(status.get("gpus") or ()),
    )


def _by_claims(gpus: Iterable[Object]) -> str:
    given = [gpu for gpu in gpus if gpu.get("draShares")]
    if not given:
        return ""
    return "queue" if any(gpu.get("shares") for gpu in given) else "kube-scheduler"


def _changed(item: Object) -> str:
    known = (item["metadata"].get("annotations") or {}).get(names.INVENTORY)
    reported = {
        gpu.get("uuid", ""): (gpu.get("model", ""), gpu.get("memoryBytes", 0))
        for gpu in (item.get("status") or {}).get("gpus") or ()
    }
    return change_in_words(changes(parse_inventory(known), reported)) if known else ""


def _unusable(gpu: Object) -> str:
    if gpu.get("health", "Healthy") != "Healthy":
        return f"quarantined: {gpu.get('healthReason') or 'no reason given'}"
    if gpu.get("shares") == 0 and not gpu.get("draShares"):
        return f"not offered: {gpu.get('sharesReason') or 'no reason given'}"
    return ""


def not_after_s(words: str) -> float:
    """Return the end of a certificate as `ssl` writes it (`Jun  1 12:00:00 2027 GMT`)."""
    return float(calendar.timegm(time.strptime(words, "%b %d %H:%M:%S %Y GMT")))
