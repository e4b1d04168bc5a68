"""Leaders that fail while they bind a pod with a claim: `test_e2e_takeover`, by claims."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator

import pytest
import yaml
from repeated_faults import times
from seeds import SEED
from test_e2e_takeover import WAYS, Arena, on_an_audited_plane

from controlplane import binaries, wait_until
from tandem.contracts import claims, names

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("claims-takeover"),
    pytest.mark.timeout(7200),
]

ON = "scheduler.extender.config.admission.gpu_claims=true"
KINDS = (
    "ClusterRole",
    "DeviceClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)


class ClaimsArena(Arena):
    """The same with a node that hands its GPU over by claims.

    A kube-scheduler whose Binding was refused takes its reservation of the claim back; the
    controller manager sees that the pod has a node, and reserves it anew.
    """

    says = (*Arena.says, "resourceclaims/status")
    settings = {"admission": {"gpu_claims": True}}
    agent = {"hand_over": "dra-queue"}

    def prepare(self) -> None:
        chart = str(self.cluster.installation.chart)
        command = [str(binaries.require("helm")), "template", "tandem", chart, "--set", ON]
        command += ["--namespace", names.NAMESPACE, "--kube-version", "1.37.1"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        objects = [each for each in yaml.safe_load_all(text) if each and each["kind"] in KINDS]
        self.plane.apply(objects)

    def check_claim(self) -> None:
        """Check that the running pod has what its claim gives, and the claim is reserved for it."""
        pod = self.cluster.pod_of(self.namespace, self.running)
        assert pod is not None
        uid, name = pod["metadata"]["uid"], claims.claim_of(pod["spec"])
        path = f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/resourceclaims/{name}"
        wanted = claims.planned(uid, "n0", ["GPU-n0-0"], by_claims=True)

        def reserved() -> bool:
            claim = self.cluster.read(path)
            assert claims.read(claim) == wanted
            return [each["uid"] for each in claim["status"].get("reservedFor", [])] == [uid]

        wait_until(reserved, "the claim is reserved for its pod", timeout_s=60)


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClaimsArena]:
    folder = tmp_path_factory.mktemp("claims-takeover")
    with on_an_audited_plane(ClaimsArena, folder) as arena:
        yield arena


def test_the_second_pair_takes_over_claims_as_well(arena: ClaimsArena) -> None:
    """Each way once in `make test`, ten times in `make chaos`."""
    print(f"seed {SEED}")
    ways = [WAYS[index % len(WAYS)] for index in range(times(4, 40))]
    random.Random(SEED).shuffle(ways)
    for how in ways:
        took_s = arena.take_over(how)
        print(f"{how}: {took_s:.1f} s until the other pair's Binding")
        arena.check_claim()
