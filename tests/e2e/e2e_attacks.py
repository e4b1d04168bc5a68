"""One tenant with rights in one namespace who attacks the scheduler in every way at once.

Runs as a process of its own (`python e2e_attacks.py --help`), so that the attacks take no time from
the process that measures. Each attack is one function that takes one step; it is repeated at a
fixed pace in a thread of its own until the time is over. The last line of output is JSON: for
each attack the number of steps, and of answers by status.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import ssl
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from e2e_lasting_attacks import LASTING
from e2e_tenant import (
    ADDRESS,
    ANNOTATIONS_MAX_BYTES,
    SCHEDULER,
    Attack,
    Tenant,
    job,
    pod,
    review,
)


def no_room_for_a_stamp(tenant: Tenant) -> None:
    """A pod without a GPU whose annotations leave no room for the epoch."""
    one = pod(tenant.name("full"), gpus=0, schedulerName=SCHEDULER)
    one["metadata"]["annotations"] = {"note": "x" * (ANNOTATIONS_MAX_BYTES - len("note"))}
    tenant.create("no_room_for_a_stamp", "pods", one)


def full_annotations_with_gpu(tenant: Tenant) -> None:
    """The same with a GPU, and a few bytes of room, which the webhook's own additions take."""
    one = pod(tenant.name("fuller"))
    one["metadata"]["annotations"] = {"note": "x" * (ANNOTATIONS_MAX_BYTES - 40)}
    tenant.create("full_annotations_with_gpu", "pods", one)


def unknown_annotations(tenant: Tenant) -> None:
    """As many misspelt annotations as one object can hold."""
    one = pod(tenant.name("unknown"))
    count = ANNOTATIONS_MAX_BYTES // 26
    one["metadata"]["annotations"] = {f"tandem.gpu/memor{i:05}": "1" for i in range(count)}
    tenant.create("unknown_annotations", "pods", one)


def unknown_annotations_to_the_port(tenant: Tenant) -> None:
    """Half a MiB of misspelt annotations, directly to the webhook's port."""
    one = pod("x")
    one["metadata"]["annotations"] = {f"tandem.gpu/memor{i:05}": "1" for i in range(20_000)}
    tenant.send(
        "unknown_annotations_to_the_port", "POST", f"{tenant.public}/mutate", json=review(one)
    )


def malformed_containers(tenant: Tenant) -> None:
    """A list of 0.23 MiB that is no list of containers."""
    one = pod("x")
    one["spec"]["containers"] = [1] * 120_000
    tenant.send("malformed_containers", "POST", f"{tenant.public}/mutate", json=review(one))


def half_sent_bodies(tenant: Tenant) -> None:
    """Twenty bodies of 4 MiB, each without its last byte, to the public port and the predictor."""
    size = 4 * 2**20 - 1
    held = []
    for index in range(20):
        url = urlsplit(tenant.public if index % 2 else tenant.predictor)
        path = "/mutate" if index % 2 else "/v1/predict"
        try:
            raw = socket.create_connection(
                (url.hostname, url.port), timeout=5, source_address=(ADDRESS, 0)
            )
            if url.scheme == "https":
                context = ssl._create_unverified_context()
                raw = context.wrap_socket(raw, server_hostname=url.hostname)
            raw.settimeout(5)
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            raw.sendall(f"{head}content-length: {size + 1}\r\n\r\n".encode())
            raw.sendall(b" " * size)
            held.append(raw)
            tenant.answered("half_sent_bodies", 1)
        except OSError:
            tenant.answered("half_sent_bodies", 0)
    time.sleep(3)
    for one in held:
        one.close()


def unknown_tokens(tenant: Tenant) -> None:
    """Reads with a token that is different each time: each may cost the API server a review."""
    for _ in range(10):
        token = {"authorization": f"Bearer {random.getrandbits(128):x}"}
        tenant.send("unknown_tokens", "GET", f"{tenant.public}/v1/jobs", headers=token)
        tenant.send("unknown_tokens", "GET", f"{tenant.predictor}/v1/models", headers=token)


def verbs_at_open_ports(tenant: Tenant) -> None:
    """Verbs of the scheduler at the ports that tenants reach."""
    body = {"PodName": "x", "PodNamespace": tenant.namespace, "PodUID": "x", "Node": "n0"}
    tenant.send("verbs_at_open_ports", "POST", f"{tenant.public}/bind", json=body)
    tenant.send("verbs_at_open_ports", "GET", f"{tenant.agent}/metrics")


def long_affinity(tenant: Tenant) -> None:
    """A node affinity of thousands of terms."""
    expressions = [{"key": "zone", "operator": "In", "values": [f"z{i}" for i in range(3)]}]
    terms = [{"matchExpressions": expressions} for _ in range(5_000)]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    one = pod(tenant.name("affinity"), affinity={"nodeAffinity": required})
    tenant.create("long_affinity", "pods", one)


def private_gates(tenant: Tenant) -> None:
    """Pods with a gate of the tenant's own, which it opens after Tandem's is open."""
    gate = "mallory.example/mine"
    one = pod(tenant.name("gated"), schedulingGates=[{"name": gate}])
    if not tenant.create("private_gates", "pods", one):
        return
    for path in list(tenant._left["private_gates"])[:4]:
        name = path.rpartition("/")[2]
        test = {"op": "test", "path": "/spec/schedulingGates", "value": [{"name": gate}]}
        remove = {"op": "remove", "path": "/spec/schedulingGates"}
        tenant.patch("private_gates", name, [test, remove])


def relabelled(tenant: Tenant) -> None:
    """Pods that go from gang to gang, and from owner to owner."""
    name = tenant.name("moves")
    one = pod(name)
    one["metadata"]["annotations"] = {"tandem.gpu/gang": "a", "tandem.gpu/gang-size": "3"}
    if tenant.create("relabelled", "pods", one):
        for gang in ("b", "c", "d"):
            tenant.patch("relabelled", name, {"metadata": {"annotations": {
                "tandem.gpu/gang": gang}}})  # fmt: skip
        owner = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "none",
                 "uid": f"{random.getrandbits(64):x}", "controller": True}  # fmt: skip
        tenant.patch("relabelled", name, {"metadata": {"ownerReferences": [owner]}})


def waiting_gangs(tenant: Tenant) -> None:
    """Gangs of eight that wait, each of a kind of its own."""
    name = tenant.name("gang")
    one = job(name, pods=8, model=f"model-{name}", checkpoint="true")
    one["spec"]["template"]["spec"]["containers"][0]["image"] = f"{name}:1"
    tenant.create("waiting_gangs", "jobs", one)


def impossible(tenant: Tenant) -> None:
    """Jobs that no cluster can hold."""
    tenant.create("impossible", "jobs", job(tenant.name("vast"), gpus=10_000, memory="100Ti"), 5)


def wide_job(tenant: Tenant) -> None:
    """One Job of three hundred pods."""
    tenant.create("wide_job", "jobs", job(tenant.name("wide"), pods=300), 1)


def lying_annotations(tenant: Tenant) -> None:
    """Values that change all the time on a pod that waits."""
    for path in list(tenant._left.get("private_gates", ()))[-3:]:
        value = {"tandem.gpu/memory": f"{random.randrange(1, 80)}Gi"}
        tenant.patch(
            "lying_annotations", path.rpartition("/")[2], {"metadata": {"annotations": value}}
        )


def predictor_requests(tenant: Tenant) -> None:
    """Pushes and feedback for another tenant's namespace, and bytes that are no graph."""
    base = f"{tenant.predictor}/v1"
    name = "predictor_requests"
    tenant.send(name, "POST", f"{base}/models", params={"namespace": "honest", "name": "x"},
                content=random.randbytes(200_000))  # fmt: skip
    tenant.send(name, "DELETE", f"{base}/models/honest/x")
    tenant.send(name, "POST", f"{base}/feedback", json={"observations": [{}] * 1000})


def relabelled_without_gpu(tenant: Tenant) -> None:
    """Three labels a second on pods without a GPU, on nodes that do not exist."""
    name = "relabelled_without_gpu"
    one = pod(tenant.name("cpu"), gpus=0, nodeName=tenant.name("no-such-node"))
    tenant.create(name, "pods", one, 5)
    for path in list(tenant._left.get(name, ()))[-3:]:
        label = {"metadata": {"labels": {"turn": f"{random.getrandbits(32):x}"}}}
        tenant.patch(name, path.rpartition("/")[2], label)


def groups_without_a_name(tenant: Tenant) -> None:
    """Pods whose group is no name of an object, each of a group of its own."""
    name = tenant.name("grouped")
    one = pod(name)
    one["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": f"No_Name_{name}"}
    tenant.create("groups_without_a_name", "pods", one)


def forged_log_lines(tenant: Tenant) -> None:
    """Reviews whose names begin a line of the log, straight to the webhook's port."""
    one = pod("x", gpus=10_000)
    body = review(one)
    forged = "x\n2026-01-01 00:00:00,000 ERROR tandem forged line\x1b[2J"
    body["request"] |= {"name": forged, "namespace": forged, "userInfo": {"username": forged}}
    body["request"]["kind"] = {"group": "", "version": "v1", "kind": "Pod"}
    tenant.send("forged_log_lines", "POST", f"{tenant.public}/mutate", json=body)


ATTACKS = (
    Attack(no_room_for_a_stamp, 2.0),
    Attack(full_annotations_with_gpu, 2.0),
    Attack(unknown_annotations, 2.0),
    Attack(unknown_annotations_to_the_port, 1.0),
    Attack(malformed_containers, 1.0),
    Attack(half_sent_bodies, 2.0),
    Attack(unknown_tokens, 1.0),
    Attack(verbs_at_open_ports, 1.0),
    Attack(long_affinity, 2.0),
    Attack(private_gates, 2.0),
    Attack(relabelled, 1.0),
    Attack(waiting_gangs, 2.0),
    Attack(impossible, 5.0),
    Attack(wide_job, 60.0),
    Attack(lying_annotations, 0.5),
    Attack(predictor_requests, 1.0),
    Attack(relabelled_without_gpu, 1.0),
    Attack(groups_without_a_name, 2.0),
    Attack(forged_log_lines, 1.0),
    *LASTING,
)


def repeat(tenant: Tenant, attack: Attack, over: threading.Event) -> None:
    name = attack.step.__name__
    while not over.is_set():
        try:
            attack.step(tenant)
        except httpx.HTTPError:
            tenant.answered(name, 0)
        tenant.steps[name] += 1
        over.wait(attack.pause_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("api", "ca", "token-file", "namespace", "public", "predictor", "agent"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("node-token-file", "kubelet-token-file"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--only", nargs="*", help="names of attacks; all if absent")
    given = parser.parse_args()
    random.seed(given.seed)
    tenant = Tenant(
        given.api, given.ca, Path(given.token_file).read_text(), given.namespace, given.public,
        given.predictor, given.agent, given.seed, Path(given.node_token_file).read_text(),
        Path(given.kubelet_token_file).read_text(),
    )  # fmt: skip
    over = threading.Event()
    chosen = [one for one in ATTACKS if not given.only or one.step.__name__ in given.only]
    threads = [
        threading.Thread(target=repeat, args=(tenant, one, over), daemon=True) for one in chosen
    ]
    for thread in threads:
        thread.start()
    over.wait(given.seconds)
    over.set()
    for thread in threads:
        thread.join(40)
    found = {
        one.step.__name__: {
            "steps": tenant.steps[one.step.__name__],
            "answers": {
                str(status): count
                for (name, status), count in sorted(tenant.answers.items())
                if name == one.step.__name__
            },
        }
        for one in chosen
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
