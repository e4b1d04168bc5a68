"""A plane whose process is killed with SIGKILL leaves nothing of its real nodes behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controlplane import binaries, wait_until
from controlplane.realnode import obstacles
from controlplane.realnode.site import cgroup_hierarchies
from tandem.errors import TandemError

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.xdist_group("real"),
    pytest.mark.timeout(600),
]

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "stays"},
    "spec": {
        "nodeSelector": {"tandem.gpu/real-node": "true"},
        "containers": [{"name": "stays", "image": "tandem.local/pause:1"}],
    },
}


def tandem(state: Path, *args: str) -> dict[str, Any]:
    """Run `tandem controlplane`, with its state in a folder of the test; return what it prints."""
    command = [str(Path(sys.executable).with_name("tandem")), "controlplane", *args, "--json"]
    environment = {**os.environ, "XDG_STATE_HOME": str(state)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return dict(json.loads(done.stdout))


def processes_below(folder: Path) -> list[str]:
    """Return the processes of this machine whose command names a file of the nodes."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in command:
            found.append(f"{entry.name} {command[:100]}")
    return found


def links(bridge: str) -> list[str]:
    """Return the network interfaces of a plane: its bridge and the ports of its nodes."""
    prefixes = (bridge, f"tnd{bridge.removeprefix('tandem')}n")
    return [
        each.name for each in Path("/sys/class/net").iterdir() if each.name.startswith(prefixes)
    ]


def members(groups: list[Path]) -> set[int]:
    """Return the processes in control groups and in all groups below them."""
    return {
        int(pid)
        for group in groups
        for file in group.glob("**/cgroup.procs")
        for pid in file.read_text().split()
    }


def test_a_killed_plane_leaves_no_process_mount_interface_or_control_group(tmp_path: Path) -> None:
    if found := obstacles() + ([f"no {', '.join(b)}"] if (b := binaries.missing()) else []):
        pytest.skip(f"no real nodes: {'; '.join(found)}")
    state = tandem(tmp_path, "up", "--nodes", "0", "--real-nodes", "1")
    try:
        folder = Path(state["real_nodes"]["real-0"]["folder"]).parent
        number = state["real_nodes"]["real-0"]["address"].split(".")[2]
        groups = [hierarchy / f"tandem-{number}" for hierarchy in cgroup_hierarchies()]
        kubectl = [str(binaries.require("kubectl")), "--kubeconfig", state["kubeconfig"]]
        subprocess.run([*kubectl, "apply", "-f", "-"], input=json.dumps(POD), text=True, check=True)
        subprocess.run(
            [*kubectl, "wait", "--for=condition=Ready", "pod/stays", "--timeout=120s"], check=True
        )
        before = members(groups)
        assert len(before) > 6, "kubelet, containerd, a shim, pause, kube-proxy and others run"
        assert links(f"tandem{number}")
        assert processes_below(folder)
    finally:
        os.kill(state["pid"], signal.SIGKILL)

    def left() -> dict[str, Any]:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        found = {
            "processes": processes_below(folder)
            + [str(pid) for pid in before if Path(f"/proc/{pid}").exists()],
            "mounts": [line for line in mounts if str(folder) in line],
            "interfaces": links(f"tandem{number}"),
            "control groups": [str(group) for group in groups if group.exists()],
            "files": [str(folder)] if folder.exists() else [],
        }
        return {what: names for what, names in found.items() if names}

    with contextlib.suppress(TandemError):  # the assertion says what is left
        wait_until(lambda: not left(), "nothing is left of the killed plane", timeout_s=60)
    assert left() == {}
    assert tandem(tmp_path, "status") == {}, "the next plane can start"
