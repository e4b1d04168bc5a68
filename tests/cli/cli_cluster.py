"""A whole installation in memory, healthy until a test breaks it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tandem.cli.doctor.cluster import (
    DAEMON_SETS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    POLICY_BINDINGS,
    PRIORITY_CLASSES,
    SELF_ACCESS_REVIEWS,
    Cluster,
)
from tandem.cli.doctor.services import POLICIES
from tandem.contracts import names
from tandem.kube.access import ACCESS_REVIEWS
from tandem.kube.errors import Forbidden, NotFound, from_status
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import (
    GPU_NODES,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    RUNTIME_CLASSES,
    SECRETS,
    Resource,
)
from tandem.kube.tunnel import Answer

NOW_S = 1_800_000_000.0
NODE_NAMES = ("gpu-0", "gpu-1")
SYSTEM, AGENTS = names.NAMESPACE, names.AGENT_NAMESPACE

Object = dict[str, Any]


def stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def gpu(uuid: str, index: int = 0, **more: object) -> Object:
    """Return a GPU as an agent reports it."""
    return {"uuid": uuid, "index": index, "model": "V100", "memoryBytes": 16 << 30, **more}


def condition(kind: str, status: str, message: str = "") -> Object:
    """Return a condition as an agent reports it."""
    since = stamp(NOW_S - 900)
    return {"type": kind, "status": status, "message": message, "lastTransitionTime": since}


class Api(MemoryCluster):
    """The API server in memory with reviews; `denied` has what callers or accounts may not do."""

    def __init__(self) -> None:
        self.now_s = NOW_S
        super().__init__(clock=lambda: self.now_s)
        self.denied: set[tuple[str, str, str]] = set()  # (user or "", verb, resource)
        self.unreadable: set[Resource] = set()

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        self._may_read(resource)
        return super().get(resource, name, namespace)

    def pages(self, resource: Resource, namespace: str | None = None, **more: Any):
        self._may_read(resource)
        return super().pages(resource, namespace, **more)

    def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        if resource not in (SELF_ACCESS_REVIEWS, ACCESS_REVIEWS):
            return super().create(resource, body, namespace)
        self._may_read(resource)
        spec = body["spec"]
        wanted = spec["resourceAttributes"]
        key = (spec.get("user", "").rpartition(":")[2], wanted["verb"], wanted["resource"])
        return {"status": {"allowed": key not in self.denied}}

    def _may_read(self, resource: Resource) -> None:
        if resource in self.unreadable:
            raise Forbidden(403, f"{resource.plural} is forbidden: User ada cannot read it")


class Server:
    """What the API server says of itself."""

    def __init__(self) -> None:
        self.git_version = "v1.37.1"
        self.now_s = NOW_S
        self.gates = {"PodSchedulingReadiness": True, "SidecarContainers": True}
        self.served = {"gpujobs", "gpunodes", "modelprofiles"}
        self.refusal = ""  # what the API server says to a pod that asks for a GPU
        self.reviewed = True  # by the webhook

    address = "https://10.0.0.1:6443"

    def version(self) -> str:
        return self.git_version

    def clock_s(self) -> float:
        return self.now_s

    def features(self) -> Mapping[str, bool]:
        return self.gates

    def try_pod(self, namespace: str) -> Object:
        assert namespace == "team-a"
        if self.refusal:
            raise from_status({"message": self.refusal}, 500)
        gates = [{"name": names.SCHEDULING_GATE}] if self.reviewed else []
        return {"spec": {"schedulingGates": gates}}

    def resources(self, group_version: str) -> set[str]:
        if not self.served:
            raise NotFound(404, "404 page not found")
        return self.served


@cache
def authority(valid_days: float = 365) -> tuple[bytes, bytes]:
    """Return an authority and a certificate signed by it, both PEM."""
    now = datetime.fromtimestamp(NOW_S, UTC)
    key, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {valid_days}")])

    def signed(subject: x509.Name, of: ec.EllipticCurvePrivateKey, is_ca: bool) -> bytes:
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(of.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=400))
            .not_valid_after(now + timedelta(days=365 if is_ca else valid_days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)

    leaf = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tandem-webhook")])
    return signed(issuer, key, True), signed(leaf, own, False)


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Site:
    """One installation: `api` and `server` may be broken, `cluster()` is what the doctor sees."""

    def __init__(self) -> None:
        self.api, self.server = Api(), Server()
        self.clock_s = NOW_S + 0.4
        self.answers: dict[str, Answer | Exception] = {}  # of the extender, by path
        self.ca, self.certificate = authority()
        for index, name in enumerate(NODE_NAMES):
            self.add_node(name, index)
        self._add_services()

    def cluster(self) -> Cluster:
        return Cluster(
            self.api, self.server, clock=lambda: self.clock_s, own="team-a", ask=self.ask
        )

    def ask(self, path: str, query: Mapping[str, str]) -> Answer:
        """Answer as the extender does, through the API server."""
        assert query == {"namespace": "team-a"}
        found = self.answers.get(path, Answer(200, b"{}"))
        if isinstance(found, Exception):
            raise found
        return found

    def add_node(self, name: str, index: int = 0) -> None:
        self.api.create(
            NODES,
            {
                "metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true"}},
                "spec": {"taints": [{"key": names.GPU_TAINT, "effect": "NoSchedule"}]},
                "status": {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "capacity": {"cpu": "32", "memory": "256Gi"},
                    "runtimeHandlers": [{"name": ""}, {"name": "runc"}, {"name": "nvidia"}],
                },
            },
        )
        self.api.create(
            GPU_NODES,
            {
                "metadata": {
                    "name": name,
                    "managedFields": [{"subresource": "status", "time": stamp(NOW_S - 20)}],
                },
                "status": {
                    "agentVersion": "0.1.0",
                    "observedAt": stamp(NOW_S - 21),
                    "gpus": [gpu(f"GPU-{index}-{one}", one, health="Healthy") for one in range(2)],
                    "conditions": [condition("VariableHonoured", "True")],
                },
            },
        )

    def change(
        self, resource: Resource, name: str, body: Object, namespace: str | None = None
    ) -> None:
        """Merge `body` into an object."""
        self.api.patch(resource, name, body, namespace)

    def _add_services(self) -> None:
        api = self.api
        api.create(
            NAMESPACES,
            {
                "metadata": {
                    "name": AGENTS,
                    "labels": {"pod-security.kubernetes.io/enforce": "privileged"},
                }
            },
        )
        api.create(
            DAEMON_SETS,
            {
                "metadata": {"name": "tandem-agent"},
                "spec": {
                    "template": {
                        "spec": {
                            "nodeSelector": {"nvidia.com/gpu.present": "true"},
                            "runtimeClassName": "nvidia",
                        }
                    }
                },
                "status": {"desiredNumberScheduled": 2, "numberReady": 2},
            },
            AGENTS,
        )
        for name, containers, replicas in (
            ("tandem-scheduler", [{"name": "kube-scheduler"}], 2),
            ("tandem-predictor", [{"name": "predictor"}], 1),
        ):
            api.create(
                DEPLOYMENTS,
                {
                    "metadata": {"name": name},
                    "spec": {
                        "replicas": replicas,
                        "template": {"spec": {"containers": containers}},
                    },
                    "status": {"availableReplicas": replicas},
                },
                SYSTEM,
            )
        api.create(RUNTIME_CLASSES, {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
        api.create(PRIORITY_CLASSES, {"metadata": {"name": names.PRIORITY_CLASS}})
        for policy in POLICIES:
            api.create(POLICY_BINDINGS, {"metadata": {"name": policy}})
        client = {"service": {"name": "tandem-webhook"}, "caBundle": text(self.ca)}
        hooks = [{"name": f"w{index}.tandem.gpu", "clientConfig": client} for index in range(4)]
        api.create(MUTATING_WEBHOOKS, {"metadata": {"name": "tandem"}, "webhooks": hooks})
        api.create(
            SECRETS,
            {"metadata": {"name": "tandem-webhook"}, "data": {"tls.crt": text(self.certificate)}},
            SYSTEM,
        )
        api.create(
            ENDPOINT_SLICES,
            {
                "metadata": {
                    "name": "tandem-webhook-1",
                    "labels": {"kubernetes.io/service-name": "tandem-webhook"},
                },
                "endpoints": [{"addresses": ["10.0.0.5"], "conditions": {"ready": True}}],
            },
            SYSTEM,
        )
        self.lease(NOW_S - 2)

    def lease(self, renewed_s: float, holder: str = "tandem-scheduler-1_a-b") -> None:
        """Let kube-scheduler have renewed its Lease at that time."""
        body: Object = {
            "metadata": {"name": names.LEASE_NAME, "managedFields": [{"time": stamp(renewed_s)}]},
            "spec": {
                "holderIdentity": holder,
                "renewTime": stamp(renewed_s),
                "leaseDurationSeconds": 15,
            },
        }
        try:
            self.api.patch(LEASES, names.LEASE_NAME, body, SYSTEM)
        except NotFound:
            self.api.create(LEASES, body, SYSTEM)

    def scheduler_pod(self, *states: Object) -> None:
        """Create a pod of the scheduler with these states of containers."""
        self.api.create(
            PODS,
            {
                "metadata": {
                    "name": "tandem-scheduler-x",
                    "labels": {"app.kubernetes.io/component": "scheduler"},
                },
                "spec": {"nodeName": "gpu-1"},
                "status": {"containerStatuses": [*states]},
            },
            SYSTEM,
        )

    def agent_pod(self, waiting: str) -> None:
        """Let an agent's container wait for that reason."""
        self.api.create(
            PODS,
            {
                "metadata": {
                    "name": "tandem-agent-x",
                    "labels": {"app.kubernetes.io/component": "agent"},
                },
                "spec": {"nodeName": "gpu-1"},
                "status": {
                    "containerStatuses": [
                        {"name": "agent", "state": {"waiting": {"reason": waiting}}}
                    ]
                },
            },
            AGENTS,
        )
