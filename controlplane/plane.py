"""The control plane itself: its processes, and what tests do with it."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import httpx
import yaml

from controlplane import binaries, components
from controlplane.access import ADMIN, Access
from controlplane.diagnosis import diagnosis
from controlplane.nodes import Node, create_nodes
from controlplane.realnode import NodeOptions, RealNode, RealNodes
from tandem.errors import TandemError
from tandem.local.processes import Process, free_port
from tandem.local.scratch import Scratch
from tandem.local.waiting import wait_until

Manifest = Mapping[str, Any]

_START_TIMEOUT_S = 120.0
_HEALTH_TIMEOUT_S = 5.0
_REVIVE_EVERY_S = 1.0
# Users that RBAC's bootstrap roles know, so that each program has the rights of a real one.
_CONTROLLER_MANAGER_USER = "system:kube-controller-manager"
_SCHEDULER_USER = "system:kube-scheduler"


class ControlPlane:
    """A running control plane; see the package's docstring for how to use it.

    Attributes: `url` and `ca_file` of the API server, `folder` with all files, `http`, an
    `httpx.Client` that speaks to the API server as administrator, and `processes` by name.
    """

    #: Planes that this process has made and closed: a test of the control plane needs one.
    made: ClassVar[int] = 0
    closed: ClassVar[int] = 0

    @classmethod
    def start(
        cls,
        nodes: int | Iterable[Node] = 0,
        *,
        scheduler: bool = False,
        apiserver_args: Sequence[str] = (),
        manager_args: Sequence[str] = (),
        real_nodes: int | Iterable[NodeOptions] = 0,
        audit: bool = False,
    ) -> Self:
        """Start etcd, the API server, the controller manager and kwok, and wait for readiness.

        `nodes`: how many nodes of the default size, or which. `scheduler`: a kube-scheduler with
        its default configuration as well. `apiserver_args` and `manager_args`: more arguments of
        the API server and of the controller manager. `real_nodes`: how many nodes with a kubelet,
        or which. `audit`: the API server logs each write, for `audited`.
        Raises TandemError when programs are missing or one does not come up, then with the end
        of its log.
        """
        if isinstance(real_nodes, int):
            real_nodes = [NodeOptions(f"real-{index}") for index in range(real_nodes)]
        real = list(real_nodes)
        plane = cls(binaries.require_all(), RealNodes.prepare() if real else None)
        try:
            plane._start([*apiserver_args, *(plane._audit() if audit else ())], manager_args)
            if isinstance(nodes, int):
                nodes = [Node(f"node-{index}") for index in range(nodes)]
            plane.add_nodes(nodes)
            if scheduler:
                plane.start_scheduler()
            plane._start_real_nodes(real)
        except BaseException:
            plane.close()
            raise
        return plane

    def __init__(self, programs: Mapping[str, Path], real: RealNodes | None = None) -> None:
        """Prepare a plane of `programs` by name; `start` also starts it."""
        self._programs = programs
        self._real = real
        self.real_nodes: dict[str, RealNode] = {}
        self._scratch = Scratch()
        self.folder = self._scratch.path
        self._layout = components.Layout(self.folder, free_port())
        if real is not None:
            site = real.site
            self._layout = replace(
                self._layout,
                address=site.address,
                service_cidr=site.service_cidr,
                real_nodes=True,
            )
        self._layout.logs.mkdir()
        addresses = [real.site.address, real.site.api_service_address] if real else []
        self._access = Access(self._layout, addresses)
        if real is not None:
            self._access.write_kubelet_client()
        self._scheduler_ports: dict[str, int] = {}
        self._kept_up: dict[str, Process] = {}
        self._closing = threading.Event()
        self._reviver = threading.Thread(target=self._revive, name="reviver", daemon=True)
        self.processes: dict[str, Process] = {}
        self.url = self._layout.url
        self.ca_file = self._access.ca_file
        self.http = self._access.http
        self._open = True
        ControlPlane.made += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process and remove every file; may be called twice.

        What was started by `run` or `start_scheduler` is asked to end first. The rest is
        killed: there is nothing in it to be kept.
        """
        self._closing.set()
        if self._reviver.is_alive():
            self._reviver.join()
        for node in self.real_nodes.values():
            node.close()
        newest_first = list(reversed(self.processes.values()))
        for process in newest_first:
            if process.name not in binaries.REQUIRED:
                process.terminate()
        for process in newest_first:
            process.kill()
        self.http.close()
        if self._real is not None:
            self._real.close()
        self._scratch.remove()
        ControlPlane.closed += self._open
        self._open = False

    def _start(self, apiserver_args: Sequence[str], manager_args: Sequence[str]) -> None:
        programs, layout = self._programs, self._layout
        self.run("etcd", components.etcd(programs["etcd"], layout))
        api = components.apiserver(programs["kube-apiserver"], layout, apiserver_args)
        self.run("kube-apiserver", api)
        self.wait_ready()
        manager = self._programs["kube-controller-manager"]
        user = self.kubeconfig(_CONTROLLER_MANAGER_USER)
        self.run(
            manager.name, [*components.controller_manager(manager, layout, user), *manager_args]
        )
        self.run("kwok", components.kwok(programs["kwok"], layout, self.kubeconfig()))
        default = "/api/v1/namespaces/default"
        self._await(
            lambda: (
                self._answers(f"{default}/serviceaccounts/default")
                and self._answers(f"{default}/configmaps/kube-root-ca.crt")
            ),
            "the controllers are at work",
        )
        self._reviver.start()

    def _revive(self) -> None:
        while not self._closing.wait(_REVIVE_EVERY_S):
            self._start_schedulers_that_gave_up()

    def _start_schedulers_that_gave_up(self) -> None:
        """Do what a kubelet does: a kube-scheduler ends when it loses its Lease."""
        for process in list(self._kept_up.values()):
            process.start_if_it_gave_up()

    def _audit(self) -> list[str]:
        policy = yaml.safe_dump(dict(components.AUDIT_POLICY))
        self._layout.file("audit.yaml").write_text(policy)
        return components.audit(self._layout)

    def audited(self, user: str = "") -> list[dict[str, Any]]:
        """Return the audit events of the writes so far, of one user or of all, oldest first.

        A write is in the log before it is answered. Needs a plane that was started with `audit`.
        """
        lines = self._layout.file("audit.log").read_text().splitlines()
        events: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [event for event in events if user in ("", event["user"]["username"])]

    def _start_real_nodes(self, options: Sequence[NodeOptions]) -> None:
        if self._real is None:
            return
        self.real_nodes = self._real.start(options, self._access, self._run_on_node)
        self.apply(self._real.cluster_manifests())
        for name in self.real_nodes:
            self.wait_node(name)

    @property
    def shared_folder(self) -> Path:
        """A folder that all real nodes see as /srv, as they would see a file server."""
        if self._real is None:
            raise TandemError("this control plane has no real nodes")
        return self._real.shared

    def _run_on_node(
        self, name: str, argv: Sequence[str | os.PathLike[str]], env: Mapping[str, str]
    ) -> Process:
        return self.run(name, argv, env=env)

    def wait_node(self, name: str, *, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Wait until the API server knows that a node is ready."""
        path = f"/api/v1/nodes/{name}"

        def ready() -> bool:
            answer = self.http.get(path)
            conditions = answer.json()["status"].get("conditions", []) if answer.is_success else []
            return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

        self._await(ready, f"node {name} is ready", f"{name}-kubelet", timeout_s=timeout_s)

    def wait_ready(self) -> None:
        """Wait until the API server says that it is ready, as after a restart of it or of etcd."""
        self._await(lambda: self._answers("/readyz"), "the API server is ready")

    def _answers(self, path: str) -> bool:
        try:
            return self.http.get(path, timeout=_HEALTH_TIMEOUT_S).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def _await(
        self,
        condition: Callable[[], bool],
        what: str,
        *needed: str,
        timeout_s: float = _START_TIMEOUT_S,
    ) -> None:
        """Wait for `condition`, but no longer than the plane's own and the `needed` programs live.

        One that the caller has stopped on purpose and does not need is not missed.
        """
        names = [name for name in ("etcd", "kube-apiserver", *needed) if name in self.processes]

        def lives_and_holds() -> bool:
            self._start_schedulers_that_gave_up()
            for process in map(self.processes.__getitem__, names):
                if not process.running:
                    raise process.failure(f"ended with status {process.exit_code}")
            return condition()

        wait_until(lives_and_holds, what, timeout_s=timeout_s)

    def kubeconfig(self, user: str = ADMIN, *, groups: Sequence[str] = ()) -> Path:
        """Return the path of a kubeconfig for `user`.

        `admin` may do everything; anyone else what RBAC grants to that user or those groups.
        """
        if user == ADMIN:
            return self._access.admin_kubeconfig
        return self._access.kubeconfig(user, groups)

    def write_serving_certificate(self, folder: Path) -> None:
        """Write `tls.crt` and `tls.key` into a new folder, for a server on 127.0.0.1.

        The CA in `ca_file` has signed it.
        """
        self._access.write_serving(folder, "127.0.0.1")

    def service_account_token(
        self, namespace: str, name: str, *, pod: Manifest | None = None
    ) -> str:
        """Return a token of a service account that exists.

        Bound to `pod`, it names the pod's node, as the token of an agent does.
        """
        return self._access.token(namespace, name, pod)

    def service_account_kubeconfig(
        self, namespace: str, name: str, *, pod: Manifest | None = None
    ) -> Path:
        """Return the path of a kubeconfig with such a token."""
        return self._access.token_kubeconfig(namespace, name, pod)

    def kubectl(self, *args: str, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        """Run kubectl as administrator (or by `kubeconfig`) and return what it prints.

        Raises TandemError with kubectl's own words when it fails.
        """
        answer = subprocess.run(
            [self._programs["kubectl"], "--kubeconfig", kubeconfig or self.kubeconfig(), *args],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode != 0:
            raise TandemError(f"kubectl {' '.join(args)}: {answer.stderr.strip()}")
        return answer.stdout

    def apply(
        self,
        manifests: str | Path | Manifest | Iterable[Manifest],
        *,
        kubeconfig: Path | None = None,
    ) -> str:
        """`kubectl apply` a YAML text, a file, an object, or several; return what it prints."""
        if isinstance(manifests, Path):
            manifests = manifests.read_text()
        elif not isinstance(manifests, str):
            objects = [manifests] if isinstance(manifests, Mapping) else manifests
            manifests = "\n---\n".join(json.dumps(one) for one in objects)
        return self.kubectl("apply", "-f", "-", stdin=manifests, kubeconfig=kubeconfig)

    def await_definitions(self, *crds: str) -> None:
        """Wait until custom resources, such as `gpujobs.tandem.gpu`, are served.

        `kubectl wait` fails at once on a definition that has no conditions yet
        (kubernetes/kubernetes#66439).
        """
        for name in crds:
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
            self._await(
                partial(self._established, path), f"{name} is established", "kube-apiserver"
            )

    def _established(self, path: str) -> bool:
        answer = self.http.get(path)
        if not answer.is_success:
            return False
        conditions = answer.json().get("status", {}).get("conditions") or ()
        return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)

    def get(self, *args: str) -> dict[str, Any]:
        """Return `kubectl get ARGS -o json`, decoded."""
        answer: dict[str, Any] = json.loads(self.kubectl("get", *args, "-o", "json"))
        return answer

    def events_since(self, path: str, resource_version: str) -> list[dict[str, Any]]:
        """Return the watch events on a collection, such as `/api/v1/pods`, after a version.

        Each is `{"type": ..., "object": ...}`. Takes a second; call it when all is over, to see
        every state that an object went through.
        """
        query = {"watch": "1", "resourceVersion": resource_version, "timeoutSeconds": "1"}
        lines = self.http.get(path, params=query).raise_for_status().text.splitlines()
        return [json.loads(line) for line in lines]

    def diagnosis(self) -> str:
        """Return in words what waits on this plane, what is on its way out, and the last events."""
        return diagnosis(self.http)

    def await_gone(self, namespace: str, *, timeout_s: float = 240.0) -> None:
        """Wait until a namespace that has been deleted is gone; the error says what keeps it."""
        path = f"/api/v1/namespaces/{namespace}"
        try:
            self._await(
                lambda: self.http.get(path).status_code == httpx.codes.NOT_FOUND,
                f"namespace {namespace} is gone",
                "kube-controller-manager",
                "kwok",
                timeout_s=timeout_s,
            )
        except TandemError as error:
            raise TandemError(f"{error.message}\n{self.diagnosis()}") from error

    def add_node(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        cpu: str | int = 64,
        memory: str = "256Gi",
        pods: int = 110,
        taints: Sequence[str] = (),
    ) -> None:
        """Create one node, ready to be scheduled to; fields as in `Node`."""
        node = Node(name, labels or {}, cpu=cpu, memory=memory, pods=pods, taints=tuple(taints))
        self.add_nodes([node])

    def add_nodes(self, nodes: Iterable[Node]) -> None:
        """Create nodes, ready to be scheduled to; 1,000 take a few seconds."""
        create_nodes(self.http, nodes)

    def run(
        self,
        name: str,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        hostname: str = "",
    ) -> Process:
        """Start any program under `name`; it ends with the plane.

        `env` is added to our environment. `hostname` (Linux only) is the program's own.
        """
        if name in self.processes and self.processes[name].running:
            raise TandemError(f"{name} runs already in this control plane")
        process = Process(name, argv, self._layout.log(name), env=env, hostname=hostname)
        self.processes[name] = process
        process.start()
        return process

    def start_scheduler(
        self,
        name: str = "kube-scheduler",
        *,
        config: Manifest | Path | None = None,
        kubeconfig: Path | None = None,
        args: Sequence[str] = (),
        hostname: str = "",
        wait: bool = True,
        kept_up: bool = True,
    ) -> Process:
        """Start a kube-scheduler under `name`, and wait until it is ready unless `wait` is false.

        `config`: a KubeSchedulerConfiguration, or None for the default one without leader
        election. It is given `kubeconfig`, by default that of the user system:kube-scheduler.
        `hostname` (Linux only) begins the name by which it holds its Lease. Where it is `kept_up`
        it is started again when it gives up, as after the loss of its Lease.
        """
        document: Manifest = (
            yaml.safe_load(config.read_text())
            if isinstance(config, Path)
            else config or components.DEFAULT_SCHEDULER_CONFIGURATION
        )
        client = {
            **document.get("clientConnection", {}),
            "kubeconfig": str(kubeconfig or self.kubeconfig(_SCHEDULER_USER)),
        }
        path = self._layout.file(f"{name}.yaml")
        path.write_text(yaml.safe_dump({**document, "clientConnection": client}))
        port = self._scheduler_ports[name] = free_port()
        argv = components.scheduler(self._programs["kube-scheduler"], path, port, args)
        process = self.run(name, argv, hostname=hostname)
        if kept_up:
            self._kept_up[name] = process
        if wait:
            self.wait_scheduler(name)
        return process

    def wait_scheduler(self, name: str = "kube-scheduler") -> None:
        """Wait until the scheduler says that it is ready, as after a restart."""
        url = f"{self.scheduler_url(name)}/readyz"

        def ready() -> bool:
            try:
                # It signs its own certificate; it is on loopback, and we tell it nothing.
                answer = httpx.get(url, verify=False, timeout=_HEALTH_TIMEOUT_S, trust_env=False)  # noqa: S501
            except httpx.TransportError:
                return False
            return answer.status_code == httpx.codes.OK

        self._await(ready, f"{name} is ready", name)

    def scheduler_url(self, name: str = "kube-scheduler") -> str:
        """Return the address of a scheduler's /readyz and /metrics (self-signed certificate)."""
        return f"https://127.0.0.1:{self._scheduler_ports[name]}"
