"""One real node: its programs, and what tests do to it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane import binaries
from controlplane.access import Access
from controlplane.certificates import write_secret
from controlplane.realnode import configuration, images
from controlplane.realnode.site import (
    CGROUPS,
    Site,
    cgroup_hierarchies,
    ip,
    remove_cgroup,
)
from tandem.errors import TandemError
from tandem.local.processes import Process
from tandem.local.waiting import wait_until

FIRST_PROCESS = Path(__file__).with_name("first_process.py")
GPU_RUNTIME = Path(__file__).with_name("gpu_runtime.py")
GPU_DRIVER = Path(__file__).with_name("gpu_driver.py")
#: Absolute limits: the disk holds more than the node, and may be small.
EVICTION = {"memory.available": "100Mi", "nodefs.available": "200Mi"}

_START_S = 60.0
_FIRST, _RUNTIME, _KUBELET, _PROXY, _GPUS = "", "containerd", "kubelet", "kube-proxy", "gpus"


@dataclass(frozen=True)
class NodeOptions:
    """The configuration of a real node: `gpus` simulated GPUs of `gpu_memory_bytes` each.

    `disk_bytes`: the size of a disk of its own below /var/lib, whose free space kubelet measures;
    0 for the disk of this machine.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[str] = ()
    gpus: int = 2
    gpu_memory_bytes: int = 80 << 30
    eviction: Mapping[str, str] = field(default_factory=lambda: dict(EVICTION))
    max_pods: int = 110
    disk_bytes: int = 0


def on_node(folder: Path, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` on the node whose files are in `folder`."""
    script = [sys.executable, "-I", "-S", str(FIRST_PROCESS), "join"]
    return [*script, str(folder / "config.json"), *argv]


def execute(folder: Path, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program on a node and return its result."""
    return subprocess.run(on_node(folder, argv), capture_output=True, text=True, check=False)


def check(folder: Path, argv: Sequence[str]) -> str:
    """Run a program on a node and return what it prints; raise TandemError on failure."""
    done = execute(folder, argv)
    if done.returncode:
        raise TandemError(f"{' '.join(argv)} on {folder.name}: {done.stderr.strip()}")
    return done.stdout


def ctr(folder: Path, *args: str) -> str:
    """Run `ctr` on a node, in the namespace of kubelet's containers."""
    return check(folder, [str(binaries.node_build_folder() / "ctr"), "-n", "k8s.io", *args])


def import_image(folder: Path, archive: Path) -> None:
    """Make the images of an OCI or Docker archive known to the containerd of a node."""
    ctr(folder, "images", "import", "--local", str(archive))


def processes_of_pods(kubepods: Path) -> Iterator[tuple[str, str, int]]:
    """Yield (pod UID, container id, process id) of the groups below `kubepods`.

    Groups may end meanwhile, as they do whenever a container ends.
    """
    for folder, _, files in os.walk(kubepods):
        parts = Path(folder).relative_to(kubepods).parts
        pod = next((at for at, name in enumerate(parts) if name.startswith("pod")), len(parts))
        if "cgroup.procs" not in files or len(parts) < pod + 2:
            continue
        with contextlib.suppress(OSError):
            for pid in Path(folder, "cgroup.procs").read_text().split():
                yield parts[pod].removeprefix("pod"), parts[pod + 1], int(pid)


Run = Callable[[str, Sequence[str | os.PathLike[str]], Mapping[str, str]], Process]


class RealNode:
    """kubelet, containerd, kube-proxy and simulated GPUs in namespaces of their own.

    `processes` are the programs by their short name; `folder` has the node's files, `var` what
    it sees as /var. `run` starts a process by name that ends with the plane.
    """

    def __init__(
        self, options: NodeOptions, index: int, site: Site, access: Access, base: Path, run: Run
    ) -> None:
        self.options = options
        self.name = options.name
        self.index = index
        self.address = site.node_address(index)
        self._site = site
        self._access = access
        self._run = run
        self.folder = base / options.name
        self.var = self.folder / "var"
        self._link = f"tnd{site.number}n{index}"
        self._cgroup = f"{site.cgroup}/{self.name}"
        self.processes: dict[str, Process] = {}
        self._write_files()

    # --- files ------------------------------------------------------------------------------

    def _file(self, name: str) -> Path:
        return self.folder / name

    def _write_files(self) -> None:
        for name in ("lib/kubelet", "lib/containerd", "lib/cni", "log/pods"):
            (self.var / name).mkdir(parents=True)
        for name in (configuration.CNI, configuration.REGISTRIES):
            (self.folder / name).mkdir()
        site, folder = self._site, self.folder
        shutil.copy(self._access.ca_file, self._file("ca.crt"))
        certificate, key = self._access.serving([self.name], [self.address])
        self._file("kubelet.crt").write_bytes(certificate)
        write_secret(self._file("kubelet.key"), key)
        user = f"system:node:{self.name}"
        kubeconfig = self._access.kubeconfig(user, ["system:nodes"])
        shutil.copy(kubeconfig, self._file("kubelet.kubeconfig"))
        proxy = self._access.kubeconfig("system:kube-proxy", [])
        self._file("kubelet.yaml").write_text(
            configuration.kubelet(
                folder,
                site.dns_address,
                self.options.eviction,
                own_disk=bool(self.options.disk_bytes),
            )
        )
        self._file("kube-proxy.yaml").write_text(configuration.kube_proxy(proxy, site.pod_cidr))
        pods = configuration.cni(site.node_pod_cidr(self.index))
        (folder / configuration.CNI / "10-tandem.conflist").write_text(pods)
        self._write_gpu_files()
        build = binaries.node_build_folder()
        runc = binaries.require("runc")
        self._file("containerd.toml").write_text(
            configuration.containerd(folder, runc, self._file("gpu-runtime"), build)
        )
        self._file("config.json").write_text(
            json.dumps(
                {
                    "name": self.name,
                    "cgroup": self._cgroup,
                    "var": str(self.var),
                    "disk": str(self._make_disk()),
                    "shared": str(self.folder.parent / "shared"),
                    "pid_file": str(self._file("pid")),
                    "ready_file": str(self._file("ready")),
                }
            )
        )

    def pull_by_http(self, registry: str) -> None:
        """Pull without TLS from a registry such as `10.0.0.1:5000`; containerd looks at each pull.

        It must be reachable from the node.
        """
        folder = self._file(configuration.REGISTRIES) / registry
        folder.mkdir(exist_ok=True)
        (folder / "hosts.toml").write_text(f'server = "http://{registry}"\n')

    def _make_disk(self) -> Path | str:
        """Make the file of the node's own disk; return its path, or an empty string."""
        if not self.options.disk_bytes:
            return ""
        disk = self._file("disk")
        with disk.open("wb") as file:
            file.truncate(self.options.disk_bytes)  # takes no space until it is written to
        command = ["mkfs.ext4", "-q", "-m", "0", str(disk)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise TandemError(f"{' '.join(command)}: {done.stderr.strip()}", "Install e2fsprogs.")
        return disk

    def _write_gpu_files(self) -> None:
        from node_agent.stub import build

        library = build(binaries.cache_root())
        for name in ("gpu-state", "gpu-usage"):
            (self.folder / name).mkdir()
        self._file("libnvidia-ml.so.1").write_bytes(library.read_bytes())
        # Debian's Python, because containerd's environment on the node has no other.
        script = GPU_RUNTIME.read_text().partition("\n")[2]
        self._file("gpu-runtime").write_text(f"#!{sys.executable} -IS\n{script}")
        self._file("gpu-runtime").chmod(0o755)
        self._file("gpu-runtime.json").write_text(
            json.dumps(
                {
                    "runc": str(binaries.require("runc")),
                    "library": str(self._file("libnvidia-ml.so.1")),
                    "state": str(self._file("gpu-state")),
                    "usage": str(self._file("gpu-usage")),
                    "log": str(self._file("containers.jsonl")),
                }
            )
        )
        self._file("gpus.json").write_text(
            json.dumps(
                {
                    "node": self.name,
                    "gpus": self.options.gpus,
                    "memory": self.options.gpu_memory_bytes,
                    "state": str(self._file("gpu-state") / "state"),
                    "socket": str(self._file("gpu-usage") / "socket"),
                    "log": str(self._file("gpu-log.jsonl")),
                }
            )
        )

    # --- start and stop ---------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The node's first process, as this machine numbers it."""
        return int(self._file("pid").read_text())

    def start(self) -> None:
        """Start the node; return once containerd answers. kubelet registers the node itself."""
        for name in ("pid", "ready"):
            self._file(name).unlink(missing_ok=True)
        first = [sys.executable, "-I", "-S", str(FIRST_PROCESS), str(self._file("config.json"))]
        self._start(_FIRST, first)
        ready = self._file("ready")
        self._await(lambda: ready.exists() and self._file("pid").exists(), "is prepared", _FIRST)
        self._connect()
        self._start_programs()

    def _start_programs(self) -> None:
        build = binaries.node_build_folder()
        path = f"{build}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        environment = {"PATH": path}
        self._join(_GPUS, [sys.executable, "-I", str(GPU_DRIVER), str(self._file("gpus.json"))])
        self._join(
            _RUNTIME,
            [str(build / "containerd"), "--config", str(self._file("containerd.toml"))],
            environment,
        )
        self._await(self._runtime_answers, "has a running containerd", _RUNTIME)
        self.import_image(images.pause_image())
        labels = {"tandem.gpu/real-node": "true", **self.options.labels}
        self._join(
            _KUBELET,
            [
                str(build / "kubelet"),
                f"--config={self._file('kubelet.yaml')}",
                f"--kubeconfig={self._file('kubelet.kubeconfig')}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
                "--node-labels=" + ",".join(f"{k}={v}" for k, v in labels.items()),
                "--register-with-taints=" + ",".join(self.options.taints),
                f"--max-pods={self.options.max_pods}",
            ],
            environment,
        )
        self._join(
            _PROXY,
            [
                str(build / "kube-proxy"),
                f"--config={self._file('kube-proxy.yaml')}",
                f"--hostname-override={self.name}",
            ],
            environment,
        )

    def _start(
        self, short: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Process:
        name = f"{self.name}-{short}" if short else self.name
        process = self.processes[short] = self._run(name, argv, env or {})
        return process

    def _join(
        self, short: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Process:
        return self._start(short, on_node(self.folder, argv), env)

    def _await(self, condition: Callable[[], bool], what: str, short: str) -> None:
        process = self.processes[short]

        def lives_and_holds() -> bool:
            if not process.running:
                raise process.failure(f"ended with status {process.exit_code}")
            return condition()

        wait_until(lives_and_holds, f"node {self.name} {what}", timeout_s=_START_S)

    def _runtime_answers(self) -> bool:
        return self.execute(str(binaries.node_build_folder() / "ctr"), "version").returncode == 0

    def close(self) -> None:
        """End every process of the node, and remove its control groups; may be called twice."""
        for process in reversed(self.processes.values()):
            process.kill()
        ip("link", "delete", self._link, check=False)
        for hierarchy in cgroup_hierarchies():
            remove_cgroup(hierarchy / self._cgroup)

    # --- network ----------------------------------------------------------------------------

    def _connect(self) -> None:
        site = self._site
        ip("link", "delete", self._link, check=False)
        ip(
            "link",
            "add",
            self._link,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            str(self.pid),
        )
        ip("link", "set", self._link, "master", site.bridge, "up")
        here = ["nsenter", "--target", str(self.pid), "--net", "ip"]
        for command in (
            ["address", "add", f"{self.address}/24", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            # A packet to a Service needs a route before kube-proxy's rules see it. There is no
            # default route: nothing on the node reaches anything outside this machine.
            ["route", "add", site.service_cidr, "dev", "eth0"],
        ):
            done = subprocess.run([*here, *command], capture_output=True, text=True, check=False)
            if done.returncode:
                raise TandemError(f"node {self.name}: {done.stderr.strip()}")
        site.route(site.node_pod_cidr(self.index), self.address)

    def reach(self, other: RealNode) -> None:
        """Add the route to the pods of another node."""
        pods = self._site.node_pod_cidr(other.index)
        self.check("ip", "route", "replace", pods, "via", other.address, "dev", "eth0")

    def disconnect(self) -> None:
        """Pull the plug: the node reaches nothing, and nothing reaches it."""
        ip("link", "set", self._link, "down")

    def reconnect(self) -> None:
        """Put the plug in again."""
        ip("link", "set", self._link, "up")

    # --- on the node ------------------------------------------------------------------------

    def execute(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a program on the node and return its result."""
        return execute(self.folder, argv)

    def check(self, *argv: str) -> str:
        """Run a program on the node and return what it prints; raise TandemError on failure."""
        return check(self.folder, argv)

    def ctr(self, *args: str) -> str:
        """Run `ctr` in the namespace of kubelet's containers."""
        return ctr(self.folder, *args)

    def import_image(self, archive: Path) -> None:
        """Make the images of an OCI or Docker archive known to containerd."""
        import_image(self.folder, archive)

    def containers(self) -> Iterator[dict[str, Any]]:
        """Yield what each container was created with: pod_uid, container, devices, time, id."""
        with contextlib.suppress(FileNotFoundError):
            for line in self._file("containers.jsonl").read_text().splitlines():
                yield json.loads(line)

    def pod_processes(self) -> Iterator[tuple[str, str, int]]:
        """Yield (pod UID, container id, process id of this machine) of all that pods run now.

        It is read from the control groups that kubelet has made, and asks no program.
        """
        hierarchy = next(h for h in cgroup_hierarchies() if h.name in ("memory", CGROUPS.name))
        yield from processes_of_pods(hierarchy / self._cgroup / "kubepods")

    # --- faults -----------------------------------------------------------------------------

    def restart(self, short: str) -> None:
        """Kill and start again `kubelet`, `containerd` or `kube-proxy`; containers live on."""
        self.processes[short].restart()
        if short == _RUNTIME:
            self._await(self._runtime_answers, "has a running containerd", _RUNTIME)

    def reboot(self) -> None:
        """Kill everything on the node at once, and start it again with what is on its disk."""
        self.power_off()
        self.start()
        for route in self._routes:
            self.reach(route)

    def power_off(self) -> None:
        """Kill everything on the node at once."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        for process in reversed(self.processes.values()):
            process.kill()
        for hierarchy in cgroup_hierarchies():
            remove_cgroup(hierarchy / self._cgroup)

    _routes: Sequence[RealNode] = ()

    def join_network(self, nodes: Sequence[RealNode]) -> None:
        """Reach the pods of `nodes`, now and after a reboot."""
        self._routes = [node for node in nodes if node is not self]
        for node in self._routes:
            self.reach(node)
