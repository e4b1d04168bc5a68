"""The DRA driver killed (SIGKILL) at its steps on a real node; kubelet and containerd restarted.

`make test` does it a few times, `make chaos` 200 times. After each kill kubelet is restarted, which
asks the driver again at once, and each third time containerd as well.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from repeated_faults import record, times
from seeds import SEED
from test_real_dra import GPUS, HALF, ROOT, Dra, on_a_real_node

from controlplane import ControlPlane, wait_until

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.xdist_group("real"),
    pytest.mark.timeout(14_400),
]

PROGRAM = ROOT / "tests" / "node_agent" / "dra_restarted.py"
PUBLISHES = ("publish-before", "publish-after")
PREPARES = ("prepare-asked", "file-begun", "file-half-written", "file-written", "prepared")
UNPREPARES = ("unprepare-asked", "file-removed", "unprepared")
KILLS = times(4, 200)
MOST_PODS = 3


class Killed(Dra):
    """A node whose driver is started again as often as it is killed."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane)
        self.fault = self.node.folder / "gpu-state" / "fault"

    def start_driver(self, *program: str) -> None:
        assert not program
        super().start_driver(str(PROGRAM), str(self.fault))

    def device_of(self, pod: str) -> str:
        """Return the UUID of the GPU that the claim of a pod was allocated."""
        (status,) = self.plane.get("pod", pod)["status"]["resourceClaimStatuses"]
        claim = self.plane.get("resourceclaim", status["resourceClaimName"])
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        (uuid,) = (gpu for gpu in GPUS if gpu.lower() == result["device"])
        return uuid


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    for node in on_a_real_node(Killed, tmp_path_factory.mktemp("image")):
        node.await_slice()
        node.template("half", capacity=HALF)
        yield node


def test_no_pod_is_lost_and_no_container_has_anothers_gpu(node: Killed) -> None:
    print(f"seed {SEED}: {KILLS} kills")
    rng = random.Random(SEED)
    given: dict[str, str] = {}  # the GPU of each pod
    killed, waited_s, restarts = Counter[str](), list[float](), Counter[str]()
    for number in range(KILLS):
        choices = [*PUBLISHES, *(PREPARES if len(given) < MOST_PODS else ())]
        point = rng.choice([*choices, *(UNPREPARES if given else ())])
        if number % 4 == 0 and len(given) < MOST_PODS:
            point = rng.choice(PREPARES)  # most of what can go wrong
        node.fault.write_text(point)
        began = time.monotonic()
        name = f"pod-{number}"
        if point in PREPARES:
            node.pod(name, "half")
        elif point in UNPREPARES:
            gone = rng.choice(sorted(given))
            del given[gone]
            node.plane.kubectl("delete", "pod", gone, "--wait=false")
        else:
            node.node.restart("kubelet")  # it deletes the slices of its node: they are written anew
            restarts["kubelet"] += 1
        wait_until(lambda: not node.fault.exists(), f"it is killed at {point}", timeout_s=180)
        killed[point] += 1
        if number % 3 == 0:
            node.node.restart("containerd")
            restarts["containerd"] += 1
        if point not in PUBLISHES:
            node.node.restart("kubelet")
            restarts["kubelet"] += 1
        if point in PREPARES:
            given[name] = node.await_running(name)
        elif point in UNPREPARES:
            node.plane.kubectl("wait", "--for=delete", f"pod/{gone}", "--timeout=180s")
        node.await_slice()
        waited_s.append(time.monotonic() - began)
        wait_until(
            lambda: len(node.files()) == len(given) == len(node.claims()),
            "each pod has one claim and one file, and no other is left",
            timeout_s=180,
        )
        print(f"progress: {number + 1} of {KILLS}, {point}: {waited_s[-1]:.0f} s", flush=True)
        for pod, gpu in given.items():
            assert node.device_of(pod) == gpu, "a container has a GPU that its claim does not give"
            (status,) = node.plane.get("pod", pod)["status"]["containerStatuses"]
            assert (status["restartCount"], "running" in status["state"]) == (0, True)
    node.plane.kubectl("delete", "pods", "--all", "--timeout=180s")
    node.await_nothing()
    assert killed.total() == KILLS
    record(
        "driver on a real node",
        "killed at its steps: publish, prepare, file written, unprepare; kubelet and containerd"
        " restarted in between",
        KILLS,
        wait=waited_s,
        **{f"restarts of {name}": count for name, count in restarts.items()},
    )
