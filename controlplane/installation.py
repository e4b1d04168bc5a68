"""Tandem itself on a local control plane: the manifests applied, the services run as processes.

Every service runs under its own service account with the rights that the manifests give it, and
the API server reaches the webhook as it would in a cluster, by its Service. The tests, the
benchmarks and curious users share this; the caller that starts the agents simulates the GPUs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from controlplane import binaries, manifests
from controlplane.plane import ControlPlane
from tandem.contracts import names
from tandem.errors import TandemError
from tandem.local.processes import Process, free_port
from tandem.local.waiting import wait_until

_ROOT = Path(__file__).resolve().parents[1]
CUSTOM_RESOURCES = _ROOT / "helm" / "tandem" / "crds"
CHART = _ROOT / "helm" / "tandem"
RELEASE = "tandem"

Settings = Mapping[str, Any]


def plain_verbs(config: dict[str, Any], url: str) -> None:
    """Let a scheduler's configuration call the verbs at `url`, without the chart's certificates.

    The folder that the containers of the chart's pod share exists in a pod only.
    """
    (extender,) = config["extenders"]
    extender["urlPrefix"] = url
    extender.pop("enableHTTPS", None)
    extender.pop("tlsConfig", None)


class Installation:
    """One Tandem on one control plane; its processes end with the plane's.

    `folder` takes the configuration files. `install()` applies the manifests and starts the
    predictor, the extender and its kube-scheduler; agents are added by node. With `values`, the
    chart is installed by Helm with these values instead, and the services read the settings that
    it gives them; its pods are left without a scheduler, for they would start nothing here.
    `source` is another checkout, whose chart and services are used instead of ours.
    """

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        *,
        values: Settings | None = None,
        source: Path = _ROOT,
    ) -> None:
        self.plane = plane
        self.chart = source / "helm" / "tandem"
        # That checkout's modules, not those of the folder that we are in nor what is installed.
        self._environment = (
            {} if source == _ROOT else {"PYTHONPATH": str(source), "PYTHONSAFEPATH": "1"}
        )
        self._values = values
        self._folder = folder
        self._ports = {name: free_port() for name in ("predictor", "verbs", "public", "probes")}

    @property
    def predictor_url(self) -> str:
        """Address of the predictor service."""
        return f"http://127.0.0.1:{self._ports['predictor']}"

    @property
    def verbs_url(self) -> str:
        """Address that kube-scheduler calls; /healthz, /readyz and /metrics are there as well."""
        return f"http://127.0.0.1:{self._ports['verbs']}"

    @property
    def public_url(self) -> str:
        """Address of the webhook, the read-only API and the metrics (our own certificate)."""
        return f"https://localhost:{self._ports['public']}"

    @property
    def probes_url(self) -> str:
        """Address that a kubelet asks for /healthz and /readyz."""
        return f"http://127.0.0.1:{self._ports['probes']}"

    def install(self, extender: Settings | None = None) -> None:
        """Apply the manifests and start everything but the agents; `extender` are its settings."""
        self.apply_manifests()
        self.start_predictor()
        self.start_extender(extender or {})
        self.start_scheduler()

    def helm(self, *args: str) -> str:
        """Run helm as administrator, in our namespace; raise TandemError with its words."""
        command = [str(binaries.require("helm")), *args, "--namespace", names.NAMESPACE]
        answer = subprocess.run(
            [*command, "--kubeconfig", str(self.plane.kubeconfig())],
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode != 0:
            raise TandemError(f"helm {args[0]}: {answer.stderr.strip()}")
        return answer.stdout

    def helm_values(self) -> Path:
        """Return a file with our values, and on top where this machine's webhook is."""
        webhook = {**(self._values or {}).get("webhook", {}), "url": self.public_url}
        path = self._folder / "values.yaml"
        path.write_text(yaml.safe_dump({**(self._values or {}), "webhook": webhook}))
        return path

    def apply_manifests(self) -> None:
        """Apply the custom resources, the accounts with their rights, and the policies."""
        if self._values is not None:
            values = str(self.helm_values())
            self.helm("install", RELEASE, str(self.chart), "--create-namespace", "--values", values)
            return
        for path in sorted(CUSTOM_RESOURCES.glob("*.yaml")):
            self.plane.apply(path)
        crds = ("gpujobs", "gpunodes", "modelprofiles")
        self.plane.await_definitions(*(f"{crd}.{names.GROUP}" for crd in crds))
        self.plane.apply(manifests.objects(*manifests.FOUNDATIONS) + manifests.policies())
        # What a cluster's Service leads to the webhook's pods, this one leads to our process.
        self.plane.apply(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "tandem-webhook", "namespace": names.NAMESPACE},
                "spec": {"type": "ExternalName", "externalName": "localhost"},
            }
        )

    def predictor_token(self) -> str:
        """Return a token of an account that may do everything with the models of all namespaces."""
        return self.plane.service_account_token(names.NAMESPACE, "tandem-predictor")

    def start_predictor(self, name: str = "predictor") -> Process:
        """Start the predictor with its models in the API server."""
        path = self._folder / "predictor.yaml"
        path.write_text(yaml.safe_dump(self.settings("predictor")))
        process = self.plane.run(
            name,
            [
                sys.executable, "-m", "predictor",
                "--config", str(path),
                "--host", "127.0.0.1",
                "--port", str(self._ports["predictor"]),
                "--kubeconfig", self._account(names.NAMESPACE, "tandem-predictor"),
            ],
            env=self._environment,
        )  # fmt: skip
        self._await_ready(process, f"{self.predictor_url}/readyz")
        return process

    def start_extender(
        self,
        settings: Settings,
        name: str = "extender",
        env: Mapping[str, str] | None = None,
        *,
        ready_at_public: bool = False,
    ) -> Process:
        """Install the webhook's configuration and start the extender, which fills it in.

        Whether it is ready is asked at the verbs' port, or at the public one.
        """
        given = self.settings("scheduler", "extender")
        # The volume of a pod; this process shows the token of its account, which stays on loopback.
        given.pop("predictor_token_file", None)
        # Fixed in a pod; several extenders run on this machine. `settings` may name a free one.
        given.pop("tunnel", None)
        public = {"host": "127.0.0.1", "port": self._ports["public"]}
        config = {
            **given,
            "kubeconfig": self._account(names.NAMESPACE, "tandem-scheduler"),
            "predictor_url": self.predictor_url,
            "verbs": {"port": self._ports["verbs"]},
            **self._probes(given),
            "public": {**given.get("public", {}), **public},
            **settings,
        }
        path = self._folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(config))
        if self._values is None:
            (webhooks,) = manifests.objects("MutatingWebhookConfiguration", name="tandem")
            for webhook in webhooks["webhooks"]:
                webhook["clientConfig"]["service"]["port"] = self._ports["public"]
            self.plane.apply(webhooks)
        process = self.plane.run(
            name,
            [sys.executable, "-m", "scheduler_extender", "--config", str(path)],
            env={**self._environment, **(env or {})},
        )
        url = self.public_url if ready_at_public else self.verbs_url
        self._await_ready(process, f"{url}/readyz")
        return process

    def start_scheduler(self, name: str = names.SCHEDULER_NAME, hostname: str = "") -> Process:
        """Start the kube-scheduler that calls the extender, with the account that they share.

        A second one needs a `name`, and a `hostname` by which it holds the Lease.
        """
        config = self.settings("scheduler") or manifests.scheduler_config()
        plain_verbs(config, self.verbs_url)
        config["clientConnection"] = {"qps": 1000, "burst": 2000}
        return self.plane.start_scheduler(
            name,
            config=config,
            kubeconfig=Path(self._account(names.NAMESPACE, "tandem-scheduler")),
            hostname=hostname,
        )

    def start_agent(
        self, node: str, env: Mapping[str, str], settings: Settings | None = None
    ) -> Process:
        """Start the agent of a node; `env` says which NVML library it finds there.

        Its token is bound to a pod on that node, as a DaemonSet's is: an agent writes the GPUNode
        of its own node only.
        """
        path = self._folder / f"agent-{node}.yaml"
        given = self.settings("agent", namespace=names.AGENT_NAMESPACE)
        path.write_text(yaml.safe_dump({**given, "node": node, **(settings or {})}))
        port = free_port()
        process = self.plane.run(
            f"agent-{node}",
            [
                sys.executable, "-m", "node_agent",
                "--config", str(path),
                "--kubeconfig", str(self.agent_account(node)),
                "--listen", f"127.0.0.1:{port}",
                # An earlier version reads pods from the API server.
                *([] if self._environment else ["--extender", self.extender_address]),
            ],
            env={**self._environment, **env},
        )  # fmt: skip
        self._ports[f"agent-{node}"] = port
        wait_until(
            lambda: self.plane.http.get(f"/apis/{names.API_VERSION}/gpunodes/{node}").is_success,
            f"the agent of {node} has reported",
        )
        return process

    @property
    def extender_address(self) -> str:
        """Where agents ask the extender, by a name in its certificate."""
        return f"https://localhost:{self._ports['public']}"

    def agent_url(self, node: str) -> str:
        """Address of an agent's /healthz and /metrics."""
        return f"http://127.0.0.1:{self._ports[f'agent-{node}']}"

    def settings(
        self, component: str, file: str = "", namespace: str = names.NAMESPACE
    ) -> dict[str, Any]:
        """Return the settings that the chart gives a component; none without the chart."""
        if self._values is None:
            return {}
        found = self.plane.get("configmap", f"tandem-{component}", "-n", namespace)
        settings: dict[str, Any] = yaml.safe_load(found["data"][f"{file or component}.yaml"])
        return settings

    def agent_account(self, node: str) -> Path:
        """Return the path of a kubeconfig whose token is that of an agent's pod on `node`."""
        name = f"tandem-agent-{node}"
        self.plane.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": names.AGENT_NAMESPACE},
                "spec": {
                    "nodeName": node,
                    "serviceAccountName": "tandem-agent",
                    "containers": [{"name": "agent", "image": "tandem-agent"}],
                },
            }
        )
        pod = self.plane.get("pod", "-n", names.AGENT_NAMESPACE, name)
        return self.plane.service_account_kubeconfig(names.AGENT_NAMESPACE, "tandem-agent", pod=pod)

    def _probes(self, given: Settings) -> Settings:
        """Return where the extender answers kubelets; an earlier one has no such setting."""
        if self._environment and not given.get("probes"):
            return {}
        return {"probes": {"host": "127.0.0.1", "port": self._ports["probes"]}}

    def _account(self, namespace: str, name: str) -> str:
        return str(self.plane.service_account_kubeconfig(namespace, name))

    def _await_ready(self, process: Process, url: str) -> None:
        def ready() -> bool:
            if not process.running:
                raise RuntimeError(f"{process.name} has ended:\n{process.log_tail()}")
            try:
                # On loopback, by a self-signed certificate; the request has no secret.
                return httpx.get(url, timeout=2.0, trust_env=False, verify=False).is_success  # noqa: S501
            except httpx.TransportError:
                return False

        wait_until(ready, f"{process.name} is ready")
