"""The webhook's certificate is replaced while the API server calls two replicas."""

from __future__ import annotations

import base64
import itertools
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from cryptography import x509
from helm_cluster import ChartCluster

from controlplane import ControlPlane, wait_until
from tandem.contracts import names
from tandem.local.processes import free_port

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("helm"),
]
WEBHOOK = ("mutatingwebhookconfiguration", "tandem")
SERVICE = f"tandem-webhook.{names.NAMESPACE}.svc"
ADMISSIONS = 500


def authorities(plane: ControlPlane) -> bytes:
    """Return what the API server trusts at the webhooks: the same at all of them."""
    found = {hook["clientConfig"].get("caBundle") for hook in plane.get(*WEBHOOK)["webhooks"]}
    return base64.b64decode(found.pop()) if len(found) == 1 else b""


def call_at(plane: ControlPlane, adopted: str, others: str) -> None:
    """Have the API server call the webhook of adopted namespaces at one address, others at one."""
    webhooks = plane.get(*WEBHOOK)["webhooks"]
    patch = [
        {
            "op": "replace",
            "path": f"/webhooks/{index}/clientConfig/url",
            "value": f"{adopted}/mutate-adopted"
            if hook["name"].startswith("adopted")
            else f"{others}/mutate",
        }
        for index, hook in enumerate(webhooks)
    ]
    url = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tandem"
    kind = {"content-type": "application/json-patch+json"}
    plane.http.patch(url, json=patch, headers=kind).raise_for_status()


@pytest.fixture
def replicas(cluster: ChartCluster) -> Iterator[list[int]]:
    """The public ports of two replicas; adopted namespaces are the second's."""
    plane, installation = cluster.plane, cluster.installation
    first = int(installation.public_url.rpartition(":")[2])
    verbs, second = free_port(), free_port()
    given = installation.settings("scheduler", "extender")
    process = installation.start_extender(
        {
            "verbs": {"port": verbs},
            "public": {**given["public"], "host": "127.0.0.1", "port": second},
            "probes": {"host": "127.0.0.1", "port": free_port()},
            "leader": {"hostname": "second"},
        },
        name="extender-second",
    )

    def ready() -> bool:
        try:
            url = f"https://127.0.0.1:{second}/readyz"
            return httpx.get(url, trust_env=False, verify=False).is_success
        except httpx.TransportError:
            return False

    wait_until(ready, "the second replica is ready", timeout_s=60)
    call_at(plane, f"https://localhost:{second}", installation.public_url)
    yield [first, second]
    call_at(plane, installation.public_url, installation.public_url)
    process.terminate()


def served(port: int, trusted: bytes) -> bytes:
    """Make a new connection as the API server would; return the certificate that is shown."""
    client = ssl.create_default_context(cadata=trusted.decode())
    with (
        socket.create_connection(("127.0.0.1", port), 30) as plain,
        client.wrap_socket(plain, server_hostname=SERVICE) as connection,
    ):
        shown = connection.getpeercert(binary_form=True)
    assert shown
    return shown


def pod(name: str) -> dict[str, Any]:
    limits = {"limits": {names.RESOURCE: 1}}
    container = {"name": "c", "image": "train:1", "resources": limits}
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}


def test_no_admission_fails_while_the_certificate_is_replaced(
    cluster: ChartCluster, replicas: list[int]
) -> None:
    plane = cluster.plane
    plain, adopted = cluster.team(), cluster.team()
    plane.kubectl("label", "namespace", adopted, f"{names.ADOPT_LABEL}=true")
    before = [served(port, authorities(plane)) for port in replicas]
    over = threading.Event()
    numbers = itertools.count()
    refused: list[str] = []
    handshakes = 0

    def admit() -> int:
        admitted = 0
        while not (over.is_set() and admitted >= ADMISSIONS // 4):
            number = next(numbers)
            url = f"/api/v1/namespaces/{(plain, adopted)[number % 2]}/pods?dryRun=All"
            answer = plane.http.post(url, json=pod(f"p-{number}"))
            gates = answer.json().get("spec", {}).get("schedulingGates")
            if answer.status_code != 201 or gates != [{"name": names.SCHEDULING_GATE}]:
                refused.append(answer.text)
            admitted += 1
            over.wait(0.1)
        return admitted

    def step() -> tuple[int, set[bytes]]:
        """Return how many authorities are trusted, and what the replicas show new callers."""
        nonlocal handshakes
        trusted = authorities(plane)
        if not trusted:  # between one webhook and the next of the same patch: never
            pytest.fail("the webhooks do not agree on whom to trust")
        handshakes += len(replicas)
        shown = {served(port, trusted) for port in replicas}
        return len(x509.load_pem_x509_certificates(trusted)), shown

    with ThreadPoolExecutor(4) as threads:
        tasks = [threads.submit(admit) for _ in range(4)]
        try:
            plane.kubectl("delete", "secret", "tandem-webhook", "-n", names.NAMESPACE)
            wait_until(lambda: step()[0] == 2, "the new authority is trusted", timeout_s=60)
            wait_until(lambda: not step()[1] & set(before), "all serve the new one", timeout_s=60)
            wait_until(lambda: step()[0] == 1, "the old authority is dropped", timeout_s=60)
        finally:
            over.set()
        admitted = sum(task.result() for task in tasks)
    assert refused == []
    assert admitted >= ADMISSIONS
    count, shown = step()
    assert (count, len(shown)) == (1, 1), "all replicas agree"
    print(f"{admitted} admissions, {handshakes} new connections, none refused")
    for team in (plain, adopted):
        plane.kubectl("delete", "namespace", team)
