"""Attacks on what Tandem counts, learns and keeps, each one step that is repeated.

One tenant has rights in one namespace. Two attacks have the credentials of a node that was taken
over, on which no job of others runs.
"""

from __future__ import annotations

import base64
import json
import random
import socket
from typing import Any
from urllib.parse import quote, urlsplit

from e2e_tenant import ADDRESS, Attack, Object, Tenant, job, pod

KWOK = "kwok.tandem.gpu"
STOLEN = "n1"
NODES = "/apis/tandem.gpu/v1alpha1/gpunodes"
LEAKED = 599  # counted as the status of an answer that named a node or a GPU of others
EIB = 2**60
_WORD = "torch."
#: Ways to devices other than ours: fields of a pod's spec, of its container, and annotations.
OTHER_WAYS: tuple[tuple[Object, Object, dict[str, str]], ...] = (
    ({}, {"resources": {"limits": {"nvidia.com/gpu.shared": 1}}}, {}),
    ({}, {"resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}, {}),
    ({}, {"resources": {"limits": {"nvidia.com/gpu": "1k"}}}, {}),
    ({"resourceClaims": [{"name": "g", "resourceClaimName": "gpu"}]}, {}, {}),
    ({}, {}, {"devices.nri.io/container.c": "- path: /dev/nvidia0"}),
    ({}, {}, {"cdi-devices.nri.io/container.c": "nvidia.com/gpu=all"}),
    ({}, {}, {"io.kubernetes.cri-o.Devices": "/dev/nvidia0"}),
    ({}, {}, {"cdi.k8s.io/x": "nvidia.com/gpu=all"}),
)
HOST_PATHS = (
    "/usr/local/nvidia", "/run/k0s", "/run/nri", "/dev", "/proc", "/sys", "/var/lib/kubelet",
    "/run/containerd", "/run/crio", "/etc/cdi", "/", "/opt/nvidia", "/var/run/cdi",
)  # fmt: skip
GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"


def annotated(name: str, gpus: int = 1, pods: int = 1, **marks: str) -> Object:
    """A Job whose pods bear marks for what plays the kubelet."""
    one = job(name, pods=pods, gpus=gpus)
    one["spec"]["template"]["metadata"]["annotations"] |= {
        f"{KWOK}/{key.replace('_', '-')}": value for key, value in marks.items()
    }
    return one


def pods_of(tenant: Tenant, attack: str, phase: str, limit: int = 50) -> list[Object]:
    path = f"/api/v1/namespaces/{tenant.namespace}/pods"
    query = {"fieldSelector": f"status.phase={phase}", "resourceVersion": "0", "limit": str(limit)}
    found: list[Object] = tenant.ask(attack, "GET", path, params=query).json().get("items", [])
    return found


def quadratic_messages(tenant: Tenant) -> None:
    """A pod without GPUs that ended with 12 KiB of words, and three label patches a second."""
    me = "quadratic_messages"
    name = tenant.kept.get(me, "")
    path = f"/api/v1/namespaces/{tenant.namespace}/pods"
    if not name:
        name = tenant.name("words")
        one = pod(name, gpus=0, nodeName="n0")
        one["spec"]["containers"] = [{"name": f"c{i}", "image": "i:1"} for i in range(3)]
        one["metadata"]["annotations"] = {f"{KWOK}/run-duration": "10ms", f"{KWOK}/exit-code": "1"}
        tenant.create(me, "pods", one, kept=1)
        tenant.kept[me] = name
    message = (_WORD * 1000)[: 4096 - 1] + str(random.randrange(10))
    ended = {"exitCode": 1, "reason": "Error", "message": message}
    statuses = [
        {"name": f"c{i}", "image": "i:1", "imageID": "", "ready": False, "restartCount": 1,
         "state": {"terminated": ended}, "lastState": {"terminated": ended}}
        for i in range(3)
    ]  # fmt: skip
    merge = {"content-type": "application/merge-patch+json"}
    tenant.ask(me, "PATCH", f"{path}/{name}/status", tenant.kubelet_token, headers=merge,
               content=json.dumps({"status": {"containerStatuses": statuses}}))  # fmt: skip
    for _ in range(3):
        label = {"metadata": {"labels": {"n": f"{random.getrandbits(32):x}"}}}
        tenant.patch(me, name, label)


def deleted_jobs_with_grace(tenant: Tenant) -> None:
    """Jobs that are deleted while their pods ignore SIGTERM for the longest grace there is."""
    one = annotated(tenant.name("grace"), ignores_sigterm="true")
    one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 2**31 - 1
    tenant.create("deleted_jobs_with_grace", "jobs", one, kept=1)
    one = annotated(tenant.name("shorter"), ignores_sigterm="true")
    one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 60
    tenant.create("deleted_jobs_with_grace", "jobs", one, kept=1)


def relabelled_running(tenant: Tenant) -> None:
    """Running pods that go from gang to gang by labels and owners."""
    me = "relabelled_running"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "decoy",
             "uid": f"{random.getrandbits(64):x}"}  # fmt: skip
    for each in pods_of(tenant, me, "Running")[:3]:
        decoy = f"decoy-{random.getrandbits(24):x}"
        for label in (JOBSET_LABEL, GROUP_LABEL, "leaderworkerset.sigs.k8s.io/name"):
            tenant.patch(me, each["metadata"]["name"], {"metadata": {"labels": {label: decoy}}})
        tenant.patch(me, each["metadata"]["name"], {"metadata": {"ownerReferences": [owner]}})


def _report(tenant: Tenant, attack: str, **status: Any) -> None:
    """Write the stolen node's report as it likes."""
    path = f"{NODES}/{STOLEN}"
    node = tenant.ask(attack, "GET", path, tenant.node_token).json()
    if node.get("kind") != "GPUNode":
        body = {"apiVersion": "tandem.gpu/v1alpha1", "kind": "GPUNode",
                "metadata": {"name": STOLEN}, "spec": {}}  # fmt: skip
        node = tenant.ask(attack, "POST", NODES, tenant.node_token, json=body).json()
    now = tenant.now()
    node["status"] = {"observedAt": now, "gpus": []} | status
    tenant.ask(attack, "PUT", f"{path}/status", tenant.node_token, json=node)


def forged_out_of_memory(tenant: Tenant) -> None:
    """Containers of other tenants that ran out of memory on the stolen node, as it says."""
    me = "forged_out_of_memory"
    seen = tenant.ask(me, "GET", f"{NODES}/n0", tenant.node_token).json()
    uses = [
        use for gpu in (seen.get("status") or {}).get("gpus", ()) for use in gpu.get("pods", ())
    ]
    ends = [
        {"gpu": "GPU-n0-0", "namespace": "honest", "pod": use.get("pod", "x"), "uid": use["uid"],
         "container": f"c{random.randrange(10**6)}", "exitCode": 1, "endedAt": tenant.now(),
         "memoryBytes": EIB}
        for use in uses or [{"uid": f"{random.getrandbits(64):x}"}]
        if use.get("uid")
    ]  # fmt: skip
    _report(tenant, me, outOfMemory=ends[:16])


def giant_reports(tenant: Tenant) -> None:
    """Thousands of made-up GPUs of an EiB each, more and others every time."""
    count = random.choice((64, 1000, 8000))
    gpus = [
        {"uuid": f"GPU-{random.getrandbits(40):x}", "index": i, "model": "x", "memoryBytes": EIB,
         "shares": 8, "health": "Healthy"}
        for i in range(count)
    ]  # fmt: skip
    _report(tenant, "giant_reports", gpus=gpus)


def rights_of_a_node(tenant: Tenant) -> None:
    """Everything that the account of an agent might read, and reviews of tokens."""
    me = "rights_of_a_node"
    for path in ("/api/v1/pods", "/api/v1/secrets", "/apis/tandem.gpu/v1alpha1/gpujobs"):
        tenant.ask(me, "GET", path, tenant.node_token, params={"limit": "500"})
    spec = {"token": f"{random.getrandbits(256):x}"}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    tenant.ask(me, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", tenant.node_token,
               json=body)  # fmt: skip


def infinite_progress(tenant: Tenant) -> None:
    """Numbers from a running pod that no JSON can hold, and some that are hardly numbers."""
    me = "infinite_progress"
    token = tenant.kept.get(me, "")
    running = pods_of(tenant, me, "Running")
    if not token and running:
        meta = running[0]["metadata"]
        spec = {
            "audiences": ["tandem-agent"], "expirationSeconds": 3600,
            "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": meta["name"],
                               "uid": meta["uid"]},
        }  # fmt: skip
        path = f"/api/v1/namespaces/{tenant.namespace}/serviceaccounts/default/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = tenant.ask(me, "POST", path, json=body).json()
        tenant.kept[me] = token = answer.get("status", {}).get("token", "")
    for iterations, seconds in (("1e9", "5e-324"), ("1e308", "1e-308"), ("NaN", "1"), ("1", "-1"),
                                ("1" * 400, "1"), ("1e999", "1")):  # fmt: skip
        content = f'{{"iterations": {iterations}, "seconds": {seconds}}}'
        tenant.send(me, "POST", f"{tenant.agent}/v1/progress", content=content,
                    headers={"authorization": f"Bearer {token}"})  # fmt: skip


def invented_tokens(tenant: Tenant) -> None:
    """Tokens that look like those of pods, each another one, to the agent's port."""
    for _ in range(20):
        claims = {"kubernetes.io": {"pod": {"uid": f"{random.getrandbits(64):x}"}}}
        claims |= {"aud": ["tandem-agent"], "exp": 9999999999}
        parts = [json.dumps(part).encode() for part in ({"alg": "RS256"}, claims, random.random())]
        token = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
        tenant.send("invented_tokens", "POST", f"{tenant.agent}/v1/progress",
                    json={"iterations": 1, "seconds": 1},
                    headers={"authorization": f"Bearer {token}"})  # fmt: skip


def never_starting(tenant: Tenant) -> None:
    """Jobs whose containers never start."""
    one = annotated(tenant.name("never"), never_starts="true")
    tenant.create("never_starting", "jobs", one, kept=4)


def many_ended_pods(tenant: Tenant) -> None:
    """One Job whose pods end as soon as they run, again and again."""
    one = annotated(tenant.name("ended"), run_duration="10ms")
    one["spec"] |= {"completions": 100_000, "parallelism": 2}
    tenant.create("many_ended_pods", "jobs", one, kept=1)


def short_runs(tenant: Tenant) -> None:
    """Jobs that end at once, from which the order of all jobs learns."""
    for _ in range(3):
        one = annotated(tenant.name("short"), run_duration="10ms")
        one["spec"]["ttlSecondsAfterFinished"] = 1
        tenant.create("short_runs", "jobs", one, kept=10)


def other_device_ways(tenant: Tenant) -> None:
    """Pods that ask for the same GPUs in other ways, with and without ours."""
    spec, container, notes = random.choice(OTHER_WAYS)
    one = pod(tenant.name("device"), gpus=random.randrange(2), **spec)
    for key, value in container.items():
        limits = one["spec"]["containers"][0].setdefault(key, {}).get("limits", {})
        one["spec"]["containers"][0][key] = {"limits": {**limits, **value["limits"]}}
    one["metadata"]["annotations"] = notes
    tenant.create("other_device_ways", "pods", one, kept=5)


def host_paths(tenant: Tenant) -> None:
    """Folders of the node through which devices are reached."""
    volume = {"name": "v", "hostPath": {"path": random.choice(HOST_PATHS)}}
    one = pod(tenant.name("folder"), volumes=[volume])
    one["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/x"}]
    tenant.create("host_paths", "pods", one, kept=5)


def unequal_gangs(tenant: Tenant) -> None:
    """Gangs whose first pod asks for one GPU and whose others ask for all."""
    name = tenant.name("unequal")
    for index in range(3):
        one = pod(f"{name}-{index}", gpus=8 if index else 1)
        one["metadata"]["annotations"] = {"tandem.gpu/gang": name, "tandem.gpu/gang-size": "3"}
        tenant.create("unequal_gangs", "pods", one, kept=12)


def absurd_numbers(tenant: Tenant) -> None:
    """Annotations that are numbers no machine calculates with."""
    one = pod(tenant.name("absurd"))
    one["metadata"]["annotations"] = {
        "tandem.gpu/iterations": random.choice(("1e400", "9" * 300, "nan", "5e-324")),
        "tandem.gpu/memory": random.choice(("1e300", "8Ei", "9" * 300, "1k")),
    }
    tenant.create("absurd_numbers", "pods", one, kept=5)


def zero_budgets(tenant: Tenant) -> None:
    """A disruption budget that protects every pod of the namespace for ever."""
    budget = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": tenant.name("budget")},
        "spec": {"maxUnavailable": 0, "selector": {}},
    }  # fmt: skip
    tenant.create("zero_budgets", "poddisruptionbudgets", budget, kept=2)


def slow_uploads(tenant: Tenant) -> None:
    """Eight models, of which a byte comes now and then."""
    me = "slow_uploads"
    url = urlsplit(tenant.predictor)
    held: list[socket.socket] = tenant.sockets.setdefault(me, [])
    while len(held) < 8:
        raw = socket.create_connection((url.hostname, url.port), 5, source_address=(ADDRESS, 0))
        raw.settimeout(5)
        raw.sendall(
            f"POST /v1/models?namespace={tenant.namespace}&name=slow-{len(held)} HTTP/1.1\r\n"
            f"host: x\r\nauthorization: Bearer {tenant.token}\r\ncontent-length: 100000000\r\n\r\n"
            .encode()
        )  # fmt: skip
        held.append(raw)
    for raw in list(held):
        try:
            raw.sendall(b"\x0a")
            tenant.answered(me, 1)
        except OSError:
            tenant.answered(me, 0)
            raw.close()
            held.remove(raw)


def function_bombs(tenant: Tenant) -> None:
    """A graph of a few KB that is more nodes than there are atoms, in the slot of a slow upload."""
    held = tenant.sockets.get("slow_uploads")
    if held:
        held.pop(0).close()
    tenant.send(
        "function_bombs", "POST", f"{tenant.predictor}/v1/models",
        params={"namespace": tenant.namespace, "name": "bomb"}, content=bomb(),
        headers={"authorization": f"Bearer {tenant.token}"},
    )  # fmt: skip


def bomb(levels: int = 12, callees: int = 10) -> bytes:
    """Functions, each of which calls the one before it ten times."""
    from onnx import TensorProto, helper

    functions = []
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    for level in range(levels):
        body = [
            helper.make_node(f"F{level - 1}", [f"t{i}"], [f"t{i + 1}"], domain="local")
            for i in range(callees)
        ]
        if not level:
            body = [helper.make_node("Relu", ["t0"], [f"t{callees}"])]
        functions.append(
            helper.make_function("local", f"F{level}", ["t0"], [f"t{callees}"], body, opsets)
        )
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    node = helper.make_node(f"F{levels - 1}", ["x"], ["y"], domain="local")
    graph = helper.make_graph([node], "g", [value], [result])
    model = helper.make_model(graph, functions=functions, opset_imports=opsets)
    found: bytes = model.SerializeToString()
    return found


def forged_log_lines_of_readers(tenant: Tenant) -> None:
    """Names with line breaks and escape codes, to the public port and the predictor."""
    me = "forged_log_lines_of_readers"
    hostile = "x\n2026-01-01 00:00:00 CRITICAL all is lost\r\x1b[2J\x1b]0;y\x07\u202e"
    mine = {"authorization": f"Bearer {tenant.token}"}
    tenant.send(me, "GET", f"{tenant.public}/v1/explain/{tenant.namespace}/{quote(hostile)}",
                headers=mine)  # fmt: skip
    tenant.send(me, "GET", f"{tenant.predictor}/v1/{quote(hostile)}", headers=mine)


def names_of_nodes(tenant: Tenant) -> None:
    """What the nodes of the cluster and their GPUs are called."""
    me = "names_of_nodes"
    pending = pods_of(tenant, me, "Pending", limit=500)
    waiting = [each for each in pending if each["spec"].get("schedulingGates")]
    for each in random.sample(waiting, min(4, len(waiting))):
        url = f"{tenant.public}/v1/explain/{tenant.namespace}/{each['metadata']['name']}"
        answer = tenant.open.get(url, headers={"authorization": f"Bearer {tenant.token}"})
        body = answer.json() if answer.is_success else {}
        # The message and the decisions name GPUs that the job itself has or had.
        leaked = body.get("nodes") or "GPU-n0" in json.dumps(body.get("reasons"))
        tenant.answered(me, LEAKED if leaked else answer.status_code)


LASTING = (
    Attack(quadratic_messages, 1.0),
    Attack(deleted_jobs_with_grace, 15.0),
    Attack(relabelled_running, 2.0),
    Attack(forged_out_of_memory, 3.0),
    Attack(infinite_progress, 2.0),
    Attack(never_starting, 15.0),
    Attack(many_ended_pods, 60.0),
    Attack(other_device_ways, 1.0),
    Attack(invented_tokens, 2.0),
    Attack(unequal_gangs, 5.0),
    Attack(giant_reports, 3.0),
    Attack(rights_of_a_node, 2.0),
    Attack(short_runs, 2.0),
    Attack(slow_uploads, 5.0),
    Attack(function_bombs, 5.0),
    Attack(forged_log_lines_of_readers, 1.0),
    Attack(names_of_nodes, 3.0),
    Attack(host_paths, 1.0),
    Attack(zero_budgets, 15.0),
    Attack(absurd_numbers, 2.0),
)
