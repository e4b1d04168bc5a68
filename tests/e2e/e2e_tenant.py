"""The attacker: its credentials, what it can reach, and objects as it writes them."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

Object = dict[str, Any]

#: A pod has an address of its own; this one is neither the API server's nor a service's.
ADDRESS = "127.0.0.2"
GPU = "tandem.gpu/gpu"
SCHEDULER = "tandem-scheduler"
#: All annotations of an object may have this many bytes; the epoch stamp needs some of them.
ANNOTATIONS_MAX_BYTES = 256 * 1024
KEPT = 20  # objects that one attack leaves in the cluster at a time
BASES = {"jobs": "/apis/batch/v1", "poddisruptionbudgets": "/apis/policy/v1"}


def pod(name: str, gpus: int = 1, **spec: Any) -> Object:
    limits = {"limits": {GPU: gpus}} if gpus else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "c", "image": "i:1", "resources": limits}],
            **spec,
        },
    }


def job(name: str, pods: int = 1, gpus: int = 1, **annotations: str) -> Object:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completions": pods,
            "parallelism": pods,
            "completionMode": "Indexed" if pods > 1 else "NonIndexed",
            "template": {
                "metadata": {"annotations": {f"tandem.gpu/{k}": v for k, v in annotations.items()}},
                "spec": pod("", gpus)["spec"],
            },
        },
    }


def review(of: Object) -> Object:
    """Return what the API server sends to the webhook at the creation of an object."""
    request = {
        "uid": "00000000-0000-0000-0000-000000000000",
        "operation": "CREATE",
        "namespace": "mallory",
        "object": of,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


@dataclass
class Tenant:
    """The attacker's credentials, the addresses that it can reach, and what it has left behind."""

    api: str
    ca: str
    token: str
    namespace: str
    public: str
    predictor: str
    agent: str
    seed: int
    #: Of the agent of a node that was taken over, and of what plays the kubelet for our own pods:
    #: what a container says at its end, a kubelet writes.
    node_token: str = ""
    kubelet_token: str = ""
    steps: Counter[str] = field(default_factory=Counter)
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    kept: dict[str, str] = field(default_factory=dict)  # by attack, from step to step
    sockets: dict[str, list[socket.socket]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        headers = {"authorization": f"Bearer {self.token}"}
        context = ssl.create_default_context(cafile=self.ca)
        self.http = httpx.Client(
            base_url=self.api, verify=context, headers=headers, timeout=30, trust_env=False
        )
        # The certificate of the public port is Tandem's own; the attacker does not check it.
        transport = httpx.HTTPTransport(verify=False, local_address=ADDRESS)
        self.open = httpx.Client(transport=transport, timeout=15, trust_env=False)
        self._left: dict[str, deque[str]] = {}
        self._count = 0
        self._lock = threading.Lock()

    def name(self, attack: str) -> str:
        with self._lock:
            self._count += 1
            return f"{attack}-{self._count}"

    @staticmethod
    def now() -> str:
        """Return the time as an object has it."""
        return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def answered(self, attack: str, status: int) -> int:
        with self._lock:
            self.answers[attack, status] += 1
        return status

    def create(self, attack: str, kind: str, body: Object, kept: int = KEPT) -> bool:
        """Create an object of `kind`, its plural; delete the oldest above `kept`."""
        path = f"{BASES.get(kind, '/api/v1')}/namespaces/{self.namespace}/{kind}"
        status = self.answered(attack, self.http.post(path, json=body).status_code)
        if status != 201:
            return False
        left = self._left.setdefault(attack, deque())
        left.append(f"{path}/{body['metadata']['name']}")
        while len(left) > kept:
            self.http.delete(left.popleft(), params={"propagationPolicy": "Background"})
        return True

    def patch(self, attack: str, name: str, change: Object | list[Object]) -> int:
        kind = "json-patch" if isinstance(change, list) else "merge-patch"
        answer = self.http.patch(
            f"/api/v1/namespaces/{self.namespace}/pods/{name}",
            content=json.dumps(change),
            headers={"content-type": f"application/{kind}+json"},
        )
        return self.answered(attack, answer.status_code)

    def ask(
        self, attack: str, method: str, path: str, token: str = "", **options: Any
    ) -> httpx.Response:
        """Send a request to the API server, by another token where one is given."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        headers |= options.pop("headers", {})
        answer = self.http.request(method, path, headers=headers, **options)
        self.answered(attack, answer.status_code)
        return answer

    def send(self, attack: str, method: str, url: str, **options: Any) -> None:
        """Send a request to one of Tandem's own ports."""
        try:
            self.answered(attack, self.open.request(method, url, **options).status_code)
        except httpx.HTTPError:
            self.answered(attack, 0)  # the connection was closed


@dataclass(frozen=True)
class Attack:
    """A step, and the pause after it in seconds."""

    step: Callable[[Tenant], None]
    pause_s: float
