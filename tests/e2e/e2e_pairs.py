"""Two pairs of kube-scheduler and extender, what a kubelet does for them, and who did what."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from controlplane import ControlPlane, Process, manifests, wait_until
from controlplane.installation import Installation, plain_verbs
from controlplane.wire import Wire
from scheduler_extender.faults import VARIABLE
from tandem.contracts import names

ROOT = Path(__file__).parents[2]
GRACE_S = 30.0  # a pod's default
ACCOUNT = f"system:serviceaccount:{names.NAMESPACE}:tandem-scheduler"
#: Everything that the account of both pairs writes, and with what outcome.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "None", "resources": [{"group": "events.k8s.io"}]},
        {"level": "Metadata", "users": [ACCOUNT]},
        {"level": "None"},
    ],
}  # fmt: skip


class Pair:
    """A kube-scheduler and its extender: a host name and a line to the API server of their own."""

    def __init__(self, plane: ControlPlane, folder: Path, name: str, address: str) -> None:
        self.plane, self.name, self.address = plane, name, address
        folder.mkdir()
        self.folder = folder
        self.installation = Installation(plane, folder)
        self.wire = Wire(int(plane.url.rpartition(":")[2]), source=address)
        self.fault = folder / "fault"

    def start(self, more: dict[str, Any] | None = None) -> None:
        account = self._account()
        own = {"leader": {"hostname": self.name}, "kubeconfig": str(account)}
        settings = {**own, **(more or {})}
        self.extender = self.installation.start_extender(
            settings, name=f"extender-{self.name}", env={VARIABLE: f"@{self.fault}"}
        )
        config = manifests.scheduler_config()
        plain_verbs(config, self.installation.verbs_url)
        self.scheduler = self.plane.start_scheduler(
            f"scheduler-{self.name}",
            config=config,
            kubeconfig=account,
            hostname=self.name,
            kept_up=False,
        )

    def _account(self) -> Path:
        """Return the kubeconfig of the account that both share, by way of our wire."""
        path = self.plane.service_account_kubeconfig(names.NAMESPACE, "tandem-scheduler")
        document = yaml.safe_load(path.read_text())
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.wire.port}"
        mine = self.folder / "kubeconfig"
        mine.write_text(yaml.safe_dump(document))
        return mine

    @property
    def processes(self) -> tuple[Process, Process]:
        return self.scheduler, self.extender

    def revive(self) -> None:
        """Start both anew, as a kubelet sees to it, and wait until they stand by."""
        self.fault.unlink(missing_ok=True)
        for process in self.processes:
            process.terminate()
        self.restart_what_ended()

    def restart_what_ended(self) -> None:
        """Start what has ended by itself, as a kubelet does, and wait until both stand by."""
        for process in self.processes:
            process.start()
        url = f"{self.installation.verbs_url}/readyz"
        wait_until(lambda: answers(url), f"the extender of {self.name} is ready", timeout_s=120)
        self.plane.wait_scheduler(self.scheduler.name)

    def leads(self) -> bool:
        return holder(self.plane).startswith(f"{self.name}_")


def two_pairs(plane: ControlPlane, folder: Path) -> list[Pair]:
    """Make two pairs that share a predictor; neither has been started."""
    pairs = [
        Pair(plane, folder / name, name, address)
        for name, address in (("pair-a", "127.0.0.2"), ("pair-b", "127.0.0.3"))
    ]
    first, second = pairs
    first.installation.start_predictor()
    second.installation._ports["predictor"] = first.installation._ports["predictor"]
    return pairs


def stopped(process: Process) -> bool:
    """Tell whether a process is stopped (SIGSTOP)."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def answers(url: str, timeout_s: float = 2.0) -> bool:
    try:
        return httpx.get(url, timeout=timeout_s, trust_env=False, verify=False).is_success
    except httpx.HTTPError:
        return False


def holder(plane: ControlPlane) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases/{names.LEASE_NAME}"
    answer = plane.http.get(path)
    return (answer.json()["spec"].get("holderIdentity") or "") if answer.is_success else ""


@contextlib.contextmanager
def kubelet(pair: Pair) -> Iterator[None]:
    """Probe both containers of a pair as its manifest asks, and start again what fails.

    A container that does not end at SIGTERM is killed after the grace period of its probe, or of
    its pod. The first restart comes at once, the next ones after 10, 20, ... seconds.
    """
    over = threading.Event()
    threads = [
        threading.Thread(target=_keep, args=(pair, process, probes, over), daemon=True)
        for process, probes in zip(pair.processes, shipped_probes(), strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(GRACE_S + 10)


Probe = dict[str, Any]


def shipped_probes() -> tuple[dict[str, Probe], dict[str, Probe]]:
    """Return the probes of kube-scheduler and extender in the manifests that we ship, by kind."""
    documents = yaml.safe_load_all((ROOT / "deploy" / "manifests" / "tandem.yaml").read_text())
    spec = next(
        one["spec"]["template"]["spec"]
        for one in documents
        if one and (one["kind"], one["metadata"]["name"]) == ("Deployment", "tandem-scheduler")
    )
    found = {
        container["name"]: {kind: container[f"{kind}Probe"] for kind in ("startup", "liveness")}
        for container in (*spec["containers"], *spec["initContainers"])
    }
    return found["kube-scheduler"], found["extender"]


def _keep(pair: Pair, process: Process, probes: dict[str, Probe], over: threading.Event) -> None:
    # Both ask the extender: it is its health that the scheduler's life hangs on.
    for probe in probes.values():
        assert probe["httpGet"]["path"] == "/healthz"
        assert str(probe["httpGet"]["port"]) in ("8881", "probes")
    url = f"{pair.installation.probes_url}/healthz"
    backoff_s = 0.0
    while _until_it_fails(probes["liveness"], url, over):
        _end(process, probes["liveness"].get("terminationGracePeriodSeconds", GRACE_S), over)
        if over.wait(backoff_s):
            return
        process.start()
        backoff_s = min(max(10.0, 2 * backoff_s), 300.0)
        if not _until_it_answers(probes["startup"], url, over):
            return


def _until_it_fails(probe: Probe, url: str, over: threading.Event) -> bool:
    failed = 0
    while not over.wait(probe["periodSeconds"]):
        failed = 0 if answers(url, probe.get("timeoutSeconds", 1)) else failed + 1
        if failed >= probe.get("failureThreshold", 3):
            return True
    return False


def _until_it_answers(probe: Probe, url: str, over: threading.Event) -> bool:
    while not over.wait(probe["periodSeconds"]):
        if answers(url, probe.get("timeoutSeconds", 1)):
            return True
    return False


def _end(process: Process, grace_s: float, over: threading.Event) -> None:
    process.send(signal.SIGTERM)
    until = time.monotonic() + grace_s
    while process.running and time.monotonic() < until:
        if over.wait(0.1):
            return
    process.kill()


@dataclass(frozen=True)
class Act:
    """A write that one of the pairs asked of the API server."""

    address: str  # by which wire
    when: str  # RFC 3339 with microseconds, when its outcome was known
    verb: str
    what: str  # resource/subresource
    name: str
    code: int

    @property
    def took_effect(self) -> bool:
        return self.code < 300


def acts(audit_log: Path) -> list[Act]:
    """Return all writes of both pairs so far but for Leases, in the order of their outcomes."""
    return [act for act in _writes(audit_log) if act.what != "leases"]


def lease_writes(audit_log: Path) -> list[Act]:
    """Return all writes of both pairs to Leases so far, in the order of their outcomes."""
    return [act for act in _writes(audit_log) if act.what == "leases"]


def _writes(audit_log: Path) -> list[Act]:
    found = []
    for line in audit_log.read_text().splitlines():
        with contextlib.suppress(ValueError, KeyError):  # a last line that is half written
            event = json.loads(line)
            target = event["objectRef"]
            found.append(
                Act(
                    event["sourceIPs"][0],
                    event["stageTimestamp"],
                    event["verb"],
                    "/".join(filter(None, (target["resource"], target.get("subresource")))),
                    target.get("name", ""),
                    event["responseStatus"]["code"],
                )
            )
    return sorted(found, key=lambda act: act.when)
