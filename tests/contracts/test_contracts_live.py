"""The custom resource definitions in a real API server."""

import json

import pytest

from controlplane import wait_until
from node_agent.progress import Steps, pace_of
from tandem.contracts import crds
from tandem.contracts.resources import GPU, GPUNodeStatus, PodUse
from tandem.errors import TandemError

pytestmark = [pytest.mark.controlplane]

GPU_JOB = {
    "apiVersion": "tandem.gpu/v1alpha1",
    "kind": "GPUJob",
    "metadata": {"name": "job-bert"},
    "spec": {
        "workload": {"apiVersion": "batch/v1", "kind": "Job", "name": "bert", "uid": "u"},
        "demand": {"gpusPerPod": 2, "gangSize": 4, "model": "bert"},
    },
}
NOW = "2026-01-01T00:00:00.123456Z"
LATER = "2126-11-22T10:00:00Z"


@pytest.fixture(scope="session")
def definitions(control_plane):
    for definition in crds.DEFINITIONS:
        control_plane.apply(definition.manifest())
        control_plane.await_definitions(definition.manifest()["metadata"]["name"])
    return control_plane


def set_status(plane, path, status):
    answer = plane.http.patch(
        f"/apis/tandem.gpu/v1alpha1/{path}/status",
        json={"status": status},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert answer.is_success, answer.text


def test_schemas_are_accepted_as_structural(definitions):
    for definition in crds.DEFINITIONS:
        name = definition.manifest()["metadata"]["name"]
        conditions = definitions.get("crd", name)["status"]["conditions"]
        assert not [each for each in conditions if each["type"] == "NonStructuralSchema"]


def test_columns_of_a_gpujob_answer_where_it_stands(definitions, namespace):
    definitions.apply({**GPU_JOB, "metadata": {"name": "job-bert", "namespace": namespace}})
    path = f"namespaces/{namespace}/gpujobs/job-bert"
    set_status(
        definitions,
        path,
        {
            "phase": "Queued",
            "queue": 1,
            "position": 3,
            "reason": "MemoryCollision",
            "waitingSince": NOW,
            "attainedGpuSeconds": 7200.5,
            "expectedStart": {"earliest": LATER, "asOf": NOW},
        },
    )
    header, row = definitions.kubectl("get", "gj", "-n", namespace).splitlines()
    assert header.split() == [
        *("NAME", "PHASE", "QUEUE", "AHEAD", "PODS", "GPUS"),
        *("ATTAINED", "WAITING", "EXPECTED", "REASON", "AGE"),
    ]
    *words, _waiting, expected, reason, _age = row.split()
    assert words == ["job-bert", "Queued", "1", "3", "4", "2", "7200.5"]
    assert expected == LATER
    assert reason == "MemoryCollision"


def test_columns_of_a_gpunode_answer_what_it_has(definitions):
    definitions.apply(
        {"apiVersion": "tandem.gpu/v1alpha1", "kind": "GPUNode", "metadata": {"name": "columns"}}
    )
    status = crds.GPUNodeStatus.model_validate(
        {
            "observedAt": NOW,
            "gpus": [
                {"uuid": "GPU-1", "index": 0, "model": "V100", "memoryBytes": 2**34},
                {
                    "uuid": "GPU-2",
                    "index": 1,
                    "model": "V100",
                    "memoryBytes": 2**34,
                    "health": "Quarantined",
                    "pods": [{"pod": "p", "uid": "u"}],
                },
            ],
        }
    )
    set_status(definitions, "gpunodes/columns", status.wire())
    header, row = definitions.kubectl("get", "gn", "columns").splitlines()
    columns = ["NAME", "GPUS", "HEALTHY", "IDLE", "PODS", "MODEL", "REPORTED", "AGE"]
    assert header.split() == columns
    assert row.split()[:6] == ["columns", "2", "1", "1", "1", "V100"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"demand": {"gpusPerPod": 0}}, "spec.demand.gpusPerPod"),
        ({"demand": {}}, "spec.demand.gpusPerPod"),
        (
            {"demand": {"gpusPerPod": 1, "declaredUtilisationPercent": 101}},
            "spec.demand.declaredUtilisationPercent",
        ),
        ({"workload": {"kind": "Job"}}, "spec.workload.uid"),
    ],
)
def test_an_invalid_object_is_refused_with_the_field(definitions, namespace, change, field):
    invalid = {
        **GPU_JOB,
        "metadata": {"name": "wrong", "namespace": namespace},
        "spec": {**GPU_JOB["spec"], **change},
    }
    with pytest.raises(TandemError, match=field.replace(".", r"\.")):
        definitions.apply(invalid)


def test_an_unknown_phase_is_refused(definitions, namespace):
    definitions.apply({**GPU_JOB, "metadata": {"name": "phase", "namespace": namespace}})
    answer = definitions.http.patch(
        f"/apis/tandem.gpu/v1alpha1/namespaces/{namespace}/gpujobs/phase/status",
        json={"status": {"phase": "Lost"}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert answer.status_code == 422
    assert "status.phase" in answer.json()["message"]
    assert "Queued" in answer.json()["message"], "it says what is allowed"


def test_kubectl_explain_tells_what_a_field_is(definitions):
    text = wait_until(
        lambda: definitions.kubectl("explain", "gpujob.spec.demand"), "explain answers"
    )
    assert "What the user asked for" in text


def test_an_api_server_reads_every_report_that_progress_can_cause_and_no_infinity(definitions):
    """What a pod tells of itself is in the report of its node, the memory guard's requests too."""
    node = {
        "apiVersion": "tandem.gpu/v1alpha1",
        "kind": "GPUNode",
        "metadata": {"name": "reported"},
    }
    definitions.apply(node)
    most = {"iterations_recorded": 1.0, "active_seconds": 86_400.0, "idle_seconds": 5e-324}
    uses = [
        PodUse(
            uid=f"pod-{number}",
            iterations_per_second=pace.iterations_per_s,
            active_seconds=pace.activity[0] if pace.activity else None,
        )
        for number, pace in enumerate(
            pace_of(Steps(iterations=iterations, seconds=seconds, **most))
            for iterations in (0.0, 5e-324, 1e9)
            for seconds in (1e-3, 86_400.0)
        )
    ]
    gpu = GPU(uuid="GPU-1", index=0, model="A100", memory_bytes=1 << 36, pods=uses)
    report = GPUNodeStatus(observed_at=NOW, gpus=[gpu]).wire()
    set_status(definitions, "gpunodes/reported", report)
    text = json.dumps({"status": report})
    for bad in ("Infinity", "NaN", "1e999"):
        answer = definitions.http.patch(
            "/apis/tandem.gpu/v1alpha1/gpunodes/reported/status",
            content=text.replace('"iterationsPerSecond": 0.0', f'"iterationsPerSecond": {bad}'),
            headers={"Content-Type": "application/merge-patch+json"},
        )
        assert bad not in text
        assert answer.status_code == 400, answer.text
