"""A cluster of real nodes with Tandem's chart on it, and what the tests ask of it.

What happened is read from the API server, from the container runtime's own record of what each
container was given, and from the simulated driver: never from what the extender reports.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import yaml

from controlplane import ControlPlane, binaries, wait_until
from controlplane.realnode import NodeOptions, obstacles
from tandem.contracts import names
from tandem.errors import TandemError

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "tandem"
COMPONENTS = ("extender", "agent", "predictor", "train")
DEVICES = names.VISIBLE_DEVICES
GPU_LABEL = {"nvidia.com/gpu.present": "true"}
TRAIN_IMAGE = "tandem-train:0.1.0"
DISK_BYTES = 8 << 30
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"


def image_archives() -> list[Path]:
    folder = binaries.cache_root().parent / "images"
    return [folder / f"tandem-{component}.tar" for component in COMPONENTS]


def why_not() -> str:
    """Return why no real cluster can run here, or an empty string."""
    found = [f"no {', '.join(absent)}"] if (absent := binaries.missing()) else []
    found += obstacles()
    if binaries.find("helm") is None:
        found.append("no helm")
    if outdated := outdated_images():
        found.append(outdated)
    return "; ".join(found)


def outdated_images(*components: str) -> str:
    """Return which images are missing or older than the sources of this checkout, and what to do.

    Of `components`, or of all.

    A test that ran with stale images would test other code than the checkout's.
    """
    command = [sys.executable, str(ROOT / "deploy" / "images" / "build.py"), "--check"]
    command += ["--only", *components] if components else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return "; ".join(done.stdout.splitlines())


def job(
    name: str,
    *args: str,
    annotations: Mapping[str, str] | None = None,
    gpus: int = 1,
    memory: str = "256Mi",
    volume: bool = False,
    **container: Any,
) -> dict[str, Any]:
    """Return a Job that runs the training example with `args`."""
    mounts = [{"name": "checkpoints", "mountPath": "/checkpoints"}]
    volumes = [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}]
    limits: dict[str, Any] = {"memory": memory} | ({names.RESOURCE: gpus} if gpus else {})
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "backoffLimit": 4,
            "template": {
                "metadata": {"annotations": dict(annotations or {})},
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 20,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": 65532,
                        "fsGroup": 65532,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "volumes": volumes if volume else [],
                    "containers": [
                        {
                            "name": "train",
                            "image": TRAIN_IMAGE,
                            "args": list(args),
                            "resources": {
                                "requests": {"cpu": "20m", "memory": "48Mi"},
                                "limits": limits,
                            },
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "readOnlyRootFilesystem": True,
                                "capabilities": {"drop": ["ALL"]},
                            },
                            "volumeMounts": mounts if volume else [],
                            **container,
                        }
                    ],
                },
            },
        },
    }


class RealCluster:
    """One plane with real nodes and Tandem on it."""

    chart = CHART

    @classmethod
    def start(cls, nodes: int, values: Mapping[str, Any] | None = None) -> Self:
        options = [NodeOptions(f"real-{index}", labels=GPU_LABEL) for index in range(nodes)]
        # The last of several nodes has a small disk of its own, which a test can fill.
        options[1:] = [replace(each, disk_bytes=DISK_BYTES) for each in options[1:]]
        plane = ControlPlane.start(scheduler=True, real_nodes=options)
        cluster = cls(plane)
        try:
            cluster.load_images()
            cluster.install(values or {})
        except BaseException:
            print(cluster.describe())
            plane.close()
            raise
        return cluster

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self._namespaces = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.plane.close()

    def load_images(self) -> None:
        for node in self.plane.real_nodes.values():
            for archive in image_archives():
                node.import_image(archive)

    def helm(self, *args: str) -> str:
        command = [str(binaries.require("helm")), *args, "--namespace", names.NAMESPACE]
        command += ["--kubeconfig", str(self.plane.kubeconfig())]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"helm {args}: {done.stdout}{done.stderr}"
        return done.stdout

    def install(self, values: Mapping[str, Any]) -> None:
        """Install the chart as docs/install.md says, in a namespace that enforces `restricted`."""
        kubectl = self.plane.kubectl
        kubectl("create", "namespace", names.NAMESPACE)
        kubectl("label", "namespace", names.NAMESPACE, RESTRICTED)
        path = self.plane.folder / "values.yaml"
        path.write_text(yaml.safe_dump(dict(values)))
        self.helm("install", "tandem", str(CHART), "--values", str(path))
        self.wait_installed()

    def wait_installed(self) -> None:
        kubectl = self.plane.kubectl
        for name in ("predictor", "scheduler"):
            kubectl("rollout", "status", f"deployment/tandem-{name}", "-n", names.NAMESPACE,
                    "--timeout=180s")  # fmt: skip
        kubectl("rollout", "status", "daemonset/tandem-agent", "-n", names.AGENT_NAMESPACE,
                "--timeout=120s")  # fmt: skip
        for node in self.plane.real_nodes:
            kubectl("wait", "--for=create", f"gpunode/{node}", "--timeout=60s")

    def spread_schedulers(self) -> None:
        """Have a scheduler pod on each of two nodes, as after the installation.

        Nothing moves a pod back to a node that was drained: until the next rollout both may be on
        one node, and go with it.
        """
        selector = ["-n", names.NAMESPACE, "-l", "app.kubernetes.io/component=scheduler"]

        def spread() -> bool:
            pods = self.plane.get("pods", *selector)["items"]
            staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
            if len({pod["spec"].get("nodeName") for pod in staying}) > 1:
                return True
            name = staying[0]["metadata"]["name"]
            self.plane.kubectl("delete", "pod", "-n", names.NAMESPACE, name)
            self.wait_installed()
            return False

        wait_until(spread, "each node has a scheduler pod", timeout_s=180)

    # --- namespaces and volumes -------------------------------------------------------------

    def namespace(self) -> str:
        """Return a new namespace with a claim `checkpoints` that all nodes share."""
        self._namespaces += 1
        name = f"jobs-{self._namespaces}"
        self.plane.kubectl("create", "namespace", name)
        self.plane.kubectl("label", "namespace", name, RESTRICTED)
        folder = self.plane.shared_folder / name
        folder.mkdir()
        folder.chmod(0o777)
        reference = {"namespace": name, "name": "checkpoints"}
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                **common,
                "capacity": {"storage": "1Gi"},
                "claimRef": reference,
                "hostPath": {"path": f"/srv/{name}"},
            },
        }
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": reference,
            "spec": {**common, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": name},
        }
        self.plane.apply([volume, claim])
        # kube-scheduler now and then misses that a claim is bound, and looks again minutes later.
        claimed = ["pvc/checkpoints", "--for=jsonpath={.status.phase}=Bound", "--timeout=120s"]
        self.plane.kubectl("wait", "-n", name, *claimed)
        return name

    def apply(self, namespace: str, *manifests: Mapping[str, Any]) -> None:
        text = "\n---\n".join(json.dumps(one) for one in manifests)
        self.plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)

    def apply_patiently(self, namespace: str, *manifests: Mapping[str, Any]) -> None:
        """Apply as a pipeline would that tries again while the webhook's pods are replaced."""

        def applied() -> bool:
            try:
                self.apply(namespace, *manifests)
            except TandemError as error:
                print(error.message)
                return False
            return True

        wait_until(applied, "the manifests are taken", timeout_s=90, poll_s=1.0)

    # --- pods -------------------------------------------------------------------------------

    def pods(self, namespace: str, job_name: str = "") -> list[dict[str, Any]]:
        selector = ["-l", f"job-name={job_name}"] if job_name else []
        found = self.plane.get("pods", "-n", namespace, *selector)["items"]
        return sorted(found, key=lambda pod: pod["metadata"]["creationTimestamp"])

    def pod(self, namespace: str, job_name: str) -> dict[str, Any] | None:
        found = self.pods(namespace, job_name)
        return found[-1] if found else None

    def running(self, namespace: str, job_name: str, timeout_s: float = 120) -> dict[str, Any]:
        """Wait until the newest pod of a Job has a running container, and return it."""

        def look() -> dict[str, Any] | None:
            pod = self.pod(namespace, job_name)
            statuses = (pod or {}).get("status", {}).get("containerStatuses", [])
            leaving = pod is not None and "deletionTimestamp" in pod["metadata"]
            up = bool(statuses) and all("running" in each["state"] for each in statuses)
            return pod if up and not leaving else None

        return wait_until(look, f"job {job_name} runs", timeout_s=timeout_s)

    def succeeded(self, namespace: str, job_name: str, timeout_s: float = 240) -> dict[str, Any]:
        """Wait until a Job is complete; return what its last pod printed last."""

        def complete() -> bool:
            status = self.plane.get("job", job_name, "-n", namespace).get("status", {})
            conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
            assert conditions.get("Failed") != "True", f"job {job_name} failed: {status}"
            return conditions.get("Complete") == "True"

        wait_until(complete, f"job {job_name} is complete", timeout_s=timeout_s, poll_s=0.5)
        ended = [p for p in self.pods(namespace, job_name) if p["status"]["phase"] == "Succeeded"]
        return self.results(namespace, ended[-1]["metadata"]["name"])

    def results(self, namespace: str, pod: str) -> dict[str, Any]:
        lines = self.plane.kubectl("logs", "-n", namespace, pod).splitlines()
        answer: dict[str, Any] = {}
        for line in lines:
            if line.startswith("{"):
                answer |= json.loads(line)
        return answer

    def status(self, namespace: str, job_name: str) -> dict[str, Any]:
        """Return the status of a Job's GPUJob, empty where there is none yet."""
        path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/gpujobs/job-{job_name}"
        answer = self.plane.http.get(path)
        return dict(answer.json().get("status", {})) if answer.is_success else {}

    def wait_measured(self, uids: set[str]) -> None:
        """Wait until the agents have found the processes of these pods on GPUs."""

        def measured() -> bool:
            text = json.dumps(self.plane.get("gpunodes")["items"])
            return all(uid in text for uid in uids)

        wait_until(measured, "the agents report the pods")

    def empty(self, namespace: str) -> None:
        """Delete a namespace's Jobs, and wait until nothing of them is left."""
        self.plane.kubectl("delete", "jobs", "--all", "-n", namespace, "--wait=false")
        wait_until(lambda: not self.leftovers(namespace), "nothing is left", timeout_s=90)

    # --- the oracle -------------------------------------------------------------------------

    def holders(self) -> Counter[str]:
        """Return how many pods that have not ended were given each GPU, by the API server."""
        found: Counter[str] = Counter()
        for pod in self.plane.get("pods", "-A")["items"]:
            if pod["spec"].get("nodeName") and pod["status"].get("phase") in ("Pending", "Running"):
                found.update(
                    filter(None, pod["metadata"].get("annotations", {}).get(DEVICES, "").split(","))
                )
        return found

    def containers_created(self) -> Iterator[dict[str, Any]]:
        for node in self.plane.real_nodes.values():
            for record in node.containers():
                yield {**record, "node": node.name}

    def gpus_of(self, pod: Mapping[str, Any]) -> set[str]:
        """Return the GPUs that the runtime gave to the containers of a pod."""
        uid = pod["metadata"]["uid"]
        return {
            device
            for record in self.containers_created()
            if record["pod_uid"] == uid and record["devices"]
            for device in record["devices"].split(",")
        }

    def leftovers(self, namespace: str) -> dict[str, Any]:
        """Return what an emptied namespace still occupies; nothing when all is well."""
        found: dict[str, Any] = {}
        if pods := self.pods(namespace):
            found["pods"] = [pod["metadata"]["name"] for pod in pods]
        if jobs := self.plane.get("gpujobs", "-n", namespace)["items"]:
            found["gpujobs"] = [each["metadata"]["name"] for each in jobs]
        for node in self.plane.real_nodes.values():
            containers = node.ctr(
                "containers", "list", f"labels.io.kubernetes.pod.namespace=={namespace}"
            )
            if lines := containers.splitlines()[1:]:
                found[node.name] = lines
        return found

    def describe(self) -> str:
        """Return in words what the cluster looks like, for a failure's report."""
        parts = [self.plane.diagnosis()]
        for args in (
            ("get", "pods", "-A", "-o", "wide"),
            ("get", "gpujobs", "-A"),
            ("get", "events", "-A", "--sort-by=.lastTimestamp"),
        ):
            try:
                parts.append(self.plane.kubectl(*args)[-6000:])
            except Exception as error:  # the report must not hide the failure
                parts.append(str(error))
        return "\n\n".join(parts)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def manifests(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]
