"""A cluster of any size as an API server would list it: made from a seed, served page by page.

`python -m benchmarks.recorded_api --nodes 5000 --pods-per-node 8 --seed 1` prints its port and
serves until its input is closed. Watches stay open and tell nothing, unless `--reports-per-s` says
how many agents report a second; a tenth as many jobs change, and `/sent` counts both. Reviews of
tokens and of rights are granted. With `--hami`, nodes and pods say the same to HAMi's extender
(`benchmarks.recorded_hami`).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from benchmarks import recorded_hami

Object = dict[str, Any]
GPUS_PER_NODE = 8
GIB = 2**30
#: Pods that have a plan and wait to be placed, of each size: kube-scheduler asks about no others.
PLANNED = 16
_TIME = "2026-01-01T00:00:00.000000Z"
_FAR_TIME = "2099-01-01T00:00:00.000000Z"  # reports that never grow stale
#: What Go's client has to find in each object of a watch; other clients do not look at it.
_KINDS = {"nodes": "Node", "pods": "Pod", "resourcequotas": "ResourceQuota"}


def node_name(index: int) -> str:
    """Return a name as long as clouds make them."""
    return f"ip-10-{index // 62500}-{index // 250 % 250}-{index % 250}.eu-west-1.compute.internal"


def gpu_id(node: int, index: int) -> str:
    """Return a UUID as NVML writes it."""
    return f"GPU-{node:08x}-{index:04x}-4000-8000-{node * GPUS_PER_NODE + index:012x}"


class Recorded:
    """All objects of a cluster, one list a resource, each item as JSON text."""

    def __init__(self, nodes: int, pods_per_node: int, seed: int, *, hami: bool = False) -> None:
        choose = random.Random(seed)
        self.lists: dict[str, list[str]] = {
            "nodes": [_text(_node(i, hami=hami), i) for i in range(nodes)],
            "gpunodes": [_text(_gpu_node(i), i) for i in range(nodes)],
            "pods": [],
            "gpujobs": [],
            "resourcequotas": [],
        }
        for number in range(nodes * pods_per_node):
            where, gpu = divmod(number, pods_per_node)
            gib = choose.choice((4, 8, 12, 16))
            pod = _pod(number, where, gpu % GPUS_PER_NODE)
            if hami:
                uuid = gpu_id(where, gpu % GPUS_PER_NODE)
                recorded_hami.place(pod, node_name(where), uuid, gib * 1024)
            self.lists["pods"].append(_text(pod, number))
            self.lists["gpujobs"].append(_text(_gpu_job(f"train-{number}", gib), number))
        for number in range(PLANNED):
            for name, gib in ((f"ask-{number}", 10), (f"big-{number}", 200)):
                self.lists["pods"].append(_text(waiting_pod(name), number))
                job = _gpu_job(name, gib)
                job["status"] |= {"phase": "Admitted", "plan": _plan(name)}
                self.lists["gpujobs"].append(_text(job, number))

    def page(self, resource: str, limit: int, start: int) -> bytes:
        """Return one page of a list."""
        items = self.lists.get(resource, [])
        end = start + limit if limit else len(items)
        more = f',"continue":"{end}"' if end < len(items) else ""
        inner = ",".join(items[start:end])
        return f'{{"metadata":{{"resourceVersion":"1000000"{more}}},"items":[{inner}]}}'.encode()


def _text(obj: Object, number: int) -> str:
    obj["metadata"] |= {
        "uid": f"{obj['metadata']['name']}-uid",
        "resourceVersion": str(number + 1),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:x": {}}}],
    }
    return json.dumps(obj)


def _node(index: int, *, hami: bool) -> Object:
    name = node_name(index)
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "p4d.24xlarge",
        "topology.kubernetes.io/region": "eu-west-1",
        "topology.kubernetes.io/zone": f"eu-west-1{'abc'[index % 3]}",
    }
    node: Object = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [{"key": "tandem.gpu/gpu", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "95500m", "memory": "1150Gi", "pods": "250"},
            "images": [{"names": ["registry.example/train:1"], "sizeBytes": 10**9}] * 10,
        },
    }
    if hami:
        recorded_hami.register(node, [gpu_id(index, gpu) for gpu in range(GPUS_PER_NODE)])
    return node


def _gpu_node(index: int) -> Object:
    gpus = [
        {
            "uuid": gpu_id(index, gpu),
            "index": gpu,
            "model": "NVIDIA A100-SXM4-80GB",
            "memoryBytes": 80 * GIB,
            "memoryReservedBytes": GIB // 2,
            "memoryUsedBytes": 20 * GIB,
            "utilisationPercent": 40.0,
            "utilisationSource": "samples",
            "temperatureCelsius": 50.0,
            "powerWatts": 250.0,
            "shares": 2,
            "health": "Healthy",
        }
        for gpu in range(GPUS_PER_NODE)
    ]
    status = {"agentVersion": "0.1.0", "driverVersion": "580.1", "observedAt": _FAR_TIME}
    return {"metadata": {"name": node_name(index)}, "spec": {}, "status": status | {"gpus": gpus}}


def _pod(number: int, node: int, gpu: int) -> Object:
    pod = waiting_pod(f"train-{number}")
    pod["metadata"]["annotations"]["tandem.gpu/visible-devices"] = gpu_id(node, gpu)
    pod["spec"]["nodeName"] = node_name(node)
    started = {"running": {"startedAt": "2026-01-01T00:00:10Z"}}
    pod["status"] = {"phase": "Running", "containerStatuses": [{"name": "main", "state": started}]}
    return pod


def waiting_pod(name: str) -> Object:
    """Return a pod as the API server has it after the webhook, about 2.5 KiB."""
    variable = {
        "name": "NVIDIA_VISIBLE_DEVICES",
        "valueFrom": {
            "fieldRef": {"fieldPath": "metadata.annotations['tandem.gpu/visible-devices']"}
        },
    }
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "command": ["python", "-m", "train", "--epochs", "90", "--data", "/data/imagenet"],
        "env": [variable, *({"name": f"SETTING_{i}", "value": "x" * 20} for i in range(10))],
        "resources": {
            "limits": {"tandem.gpu/gpu": "1", "memory": "32Gi"},
            "requests": {"tandem.gpu/gpu": "1", "cpu": "4", "memory": "32Gi"},
        },
        "volumeMounts": [{"name": f"volume-{i}", "mountPath": f"/mnt/{i}"} for i in range(4)],
    }
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": name,
        "uid": f"{name}-job-uid",
        "controller": True,
    }
    return {
        "metadata": {
            "name": f"{name}-x7k2p",
            "namespace": "research",
            "labels": {"app": "train", "batch.kubernetes.io/job-name": name},
            "annotations": {"tandem.gpu/model": "resnet-50", "tandem.gpu/batch-size": "64"},
            "ownerReferences": [owner],
        },
        "spec": {
            "schedulerName": "tandem-scheduler",
            "containers": [container],
            "tolerations": [
                {"key": "tandem.gpu/gpu", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists",
                 "effect": "NoExecute", "tolerationSeconds": 300},
            ],
            "volumes": [{"name": f"volume-{i}", "emptyDir": {}} for i in range(4)],
        },
        "status": {"phase": "Pending"},
    }  # fmt: skip


def _plan(name: str) -> Object:
    """Return a plan on the first GPU for the pod that `waiting_pod(name)` is; it never expires."""
    pod = f"{name}-x7k2p"
    place = {"pod": pod, "uid": f"{pod}-uid", "node": node_name(0), "gpus": [gpu_id(0, 0)]}
    return {"pods": [place], "madeAt": _TIME, "deadline": _FAR_TIME}


def _gpu_job(name: str, gib: int) -> Object:
    load = {
        "utilisationPercent": 40.0,
        "utilisationP95Percent": 55.0,
        "memoryBaseBytes": gib * GIB,
        "memoryPeakExtraBytes": 2 * GIB,
        "peakProbability": 0.2,
        "memoryP95Bytes": (gib + 2) * GIB,
        "utilisationSource": "formula",
        "memorySource": "formula",
        "modelVersion": "formula-1",
        "featureHash": "0" * 64,
    }
    return {
        "metadata": {"name": f"job-{name}", "namespace": "research"},
        "spec": {
            "workload": {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": name,
                "uid": f"{name}-job-uid",
            },
            "demand": {"gpusPerPod": 1, "gangSize": 1, "model": "resnet-50", "batchSize": 64},
        },
        "status": {
            "phase": "Running",
            "reason": "Running",
            "message": "1 of 1 pods run",
            "load": load,
            "queuedAt": _TIME,
            "admittedAt": _TIME,
            "startedAt": _TIME,
            "attainedGpuSeconds": 1000.0,
            "attempts": 1,
        },
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or a body waits 40 ms for the client's word on the head
    recorded: Recorded
    reports_per_s = 0.0
    written: ClassVar[dict[str, bytes]] = {}  # by path
    sent: ClassVar[dict[str, int]] = {}  # changes of the watch that is open, by resource
    ended = threading.Event()

    def do_GET(self) -> None:
        """Answer a list with a page, a watch with silence, what was written; else with 404."""
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        resource = url.path.rsplit("/", 1)[-1]
        if "sendInitialEvents" in query:
            refused = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422}
            self._answer(422, json.dumps(refused | {"reason": "Invalid"}).encode())
            return
        if "watch" in query:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):  # the extender has ended
                self._watch(resource)
            return
        if url.path in self.written:
            self._answer(200, self.written[url.path])
            return
        if url.path == "/sent":
            self._answer(200, json.dumps(self.sent).encode())
            return
        known = resource in self.recorded.lists
        # Selectors ask for Tandem's own pods and nodes, which are not recorded.
        asked = "none" if "labelSelector" in query else resource
        body = (
            self.recorded.page(asked, int(query.get("limit", 0)), int(query.get("continue", 0)))
            if known
            else b'{"kind":"Status","code":404,"message":"not recorded"}'
        )
        self._answer(200 if known else 404, body)

    def _watch(self, resource: str) -> None:
        rate = self.reports_per_s * {"gpunodes": 1.0, "gpujobs": 0.1}.get(resource, 0.0)
        number, due = 0, time.monotonic()
        kind = {"kind": _KINDS[resource], "apiVersion": "v1"} if resource in _KINDS else {}
        while not self.ended.wait(max(0.0, due - time.monotonic()) if rate else 30):
            bookmark = kind | {"metadata": {"resourceVersion": "1000000"}}
            line = {"type": "BOOKMARK", "object": bookmark}
            if rate:
                line = {"type": "MODIFIED", "object": self._changed(resource, number)}
                number, due = number + 1, due + 1 / rate
                self.sent[resource] = number
            text = json.dumps(line).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))

    def _changed(self, resource: str, number: int) -> Object:
        """Return an object of a list with other measurements."""
        items = self.recorded.lists[resource]
        found: Object = json.loads(items[number * 7919 % len(items)])
        found["metadata"]["resourceVersion"] = str(1_000_001 + number)
        if resource == "gpunodes":
            for gpu in found["status"]["gpus"]:
                gpu["utilisationPercent"] = 40.0 + number % 20
                gpu["memoryUsedBytes"] = 20 * GIB + number % 1000 * 2**20
        else:
            found["status"]["message"] = f"1 of 1 pods run, change {number}"
        return found

    def do_POST(self) -> None:
        """Take any write; it can be read again, but is on no list."""
        self._write(201)

    def do_PUT(self) -> None:
        """Take any write; it can be read again, but is on no list."""
        self._write(200)

    def do_PATCH(self) -> None:
        """Take any change, as of an object that has nothing else; it is on no list."""
        self._write(200)

    def _write(self, status: int) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        metadata = body.setdefault("metadata", {})
        metadata.update(uid="written", resourceVersion="1000001")
        path = urlsplit(self.path).path
        if path.endswith(("/tokenreviews", "/subjectaccessreviews")):
            granted = {"authenticated": True, "allowed": True, "user": {"username": "benchmark"}}
            self._answer(201, json.dumps(body | {"status": granted}).encode())
            return
        if status == 201 and "name" in metadata:
            path = f"{path}/{metadata['name']}"
        self.written[path] = json.dumps(body).encode()
        self._answer(status, self.written[path])

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until standard input is closed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--pods-per-node", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--reports-per-s", type=float, default=0.0)
    parser.add_argument("--hami", action="store_true")
    arguments = parser.parse_args()
    _Handler.reports_per_s = arguments.reports_per_s
    _Handler.recorded = Recorded(
        arguments.nodes, arguments.pods_per_node, arguments.seed, hami=arguments.hami
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()
    _Handler.ended.set()


if __name__ == "__main__":
    main()
