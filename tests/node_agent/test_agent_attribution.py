"""From /proc/PID/cgroup to a pod, as container runtimes and cgroup drivers write it."""

import pytest

from node_agent.attribution import Attribution, Container, parse_cgroup

UID = "0a1b2c3d-1111-2222-3333-444455556666"
SYSTEMD_UID = UID.replace("-", "_")
STATIC = "0123456789abcdef0123456789abcdef"
ID = "ab" * 32


@pytest.mark.parametrize(
    ("what", "text", "uid", "container"),
    [
        (
            "v2, systemd, containerd, guaranteed",
            f"0::/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/cri-containerd-{ID}.scope\n",
            UID,
            ID,
        ),
        (
            "v2, systemd, CRI-O, burstable",
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD_UID}.slice/crio-{ID}.scope",
            UID,
            ID,
        ),
        (
            "v2, cgroupfs, containerd",
            f"0::/kubepods/besteffort/pod{UID}/{ID}\n",
            UID,
            ID,
        ),
        (
            "v2, cgroupfs, CRI-O",
            f"0::/kubepods/burstable/pod{UID}/crio-{ID}\n",
            UID,
            ID,
        ),
        (
            "v2, seen from a cgroup namespace",
            f"0::/../../kubepods-besteffort-pod{SYSTEMD_UID}.slice/cri-containerd-{ID}.scope\n",
            UID,
            ID,
        ),
        (
            "v2, a manager inside the container",
            f"0::/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/cri-containerd-{ID}.scope/init.scope\n",
            UID,
            ID,
        ),
        (
            "v2, kubelet in a container of its own",
            f"0::/system.slice/docker-{ID}.scope/kubelet.slice/kubelet-kubepods.slice/"
            f"kubelet-kubepods-pod{SYSTEMD_UID}.slice/cri-containerd-{'cd' * 32}.scope",
            UID,
            "cd" * 32,
        ),
        (
            "v1, docker, many hierarchies",
            f"12:pids:/user.slice\n11:memory:/kubepods/burstable/pod{UID}/{ID}\n1:name=systemd:/kubepods/burstable/pod{UID}/{ID}\n",
            UID,
            ID,
        ),
        (
            "v1, containerd's driver for systemd",
            f"4:devices:/system.slice/containerd.service/kubepods-burstable-pod{SYSTEMD_UID}.slice:cri-containerd:{ID}\n",
            UID,
            ID,
        ),
        ("static pod", f"0::/kubepods/burstable/pod{STATIC}/{ID}\n", STATIC, ID),
        ("the pod's own cgroup", f"0::/kubepods/burstable/pod{UID}\n", UID, None),
        (
            "a tenant's cgroup that bears another pod's UID",
            f"0::/kubepods/burstable/pod{UID}/{ID}/pod{UID.replace('0a', 'ff')}/{'cd' * 32}",
            UID,
            ID,
        ),
    ],
)
def test_pod_of_a_cgroup(what, text, uid, container):
    assert parse_cgroup(text) == Container(uid, container), what


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/\n",
        "0::/system.slice/nvidia-persistenced.service\n",
        "0::/user.slice/user-1000.slice/session-1.scope\n",
        f"0::/system.slice/docker-{ID}.scope\n",
        f"0::/podman/tripod{UID}/x\n",
        "0::/kubepods/burstable/pod1234/x\n",
        "nonsense",
    ],
)
def test_process_of_no_pod(text):
    assert parse_cgroup(text) is None


def test_pid_that_is_used_again_is_looked_up_again(proc):
    attribution = Attribution(proc.root)
    proc.add(7, UID, start=100)
    assert attribution.container(7).pod_uid == UID
    other = UID.replace("0a1b", "ffff")
    proc.add(7, other, start=100)
    assert attribution.container(7).pod_uid == UID, "remembered"
    proc.add(7, other, start=101)
    assert attribution.container(7).pod_uid == other


def test_process_that_is_gone(proc):
    attribution = Attribution(proc.root)
    with pytest.raises(ProcessLookupError):
        attribution.container(7)
    proc.add(7, None)
    assert attribution.container(7) is None
    proc.remove(7)
    with pytest.raises(ProcessLookupError):
        attribution.container(7)


def test_forgets_what_is_not_kept(proc):
    attribution = Attribution(proc.root)
    proc.add(7, UID, start=100)
    attribution.container(7)
    attribution.keep_only({8})
    other = UID.replace("0a1b", "ffff")
    proc.add(7, other, start=100)
    assert attribution.container(7).pod_uid == other
