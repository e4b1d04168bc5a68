"""Owners of pods at apply, and the webhook over HTTP."""

import base64
import json

import pytest
from admission_cases import admit, apply_patch, ask, container, fields, job, pod, review
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_extender.admission.config import AdmissionConfig
from scheduler_extender.admission.webhook import admission_router
from scheduler_extender.cluster.kinds import TEMPLATES
from tandem.contracts import names

WRONG = pod(annotations={names.MEMORY: "12 gigs"})
TEMPLATE = {"metadata": WRONG["metadata"], "spec": WRONG["spec"]}
CHECKPOINT = pod(annotations={names.CHECKPOINT: "true"})


def owner(api_version, kind, spec):
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (job(WRONG), "spec.template"),
        (
            owner("batch/v1", "CronJob", {"jobTemplate": {"spec": {"template": TEMPLATE}}}),
            "spec.jobTemplate.spec.template",
        ),
        (owner("apps/v1", "StatefulSet", {"template": TEMPLATE}), "spec.template"),
        (
            owner(
                "jobset.x-k8s.io/v1alpha2",
                "JobSet",
                {
                    "replicatedJobs": [
                        {"template": {"spec": {"template": {}}}},
                        {"template": {"spec": {"template": TEMPLATE}}},
                    ]
                },
            ),
            "spec.replicatedJobs[1].template.spec.template",
        ),
        (
            owner(
                "kubeflow.org/v1",
                "PyTorchJob",
                {"pytorchReplicaSpecs": {"Worker": {"template": TEMPLATE}}},
            ),
            "spec.pytorchReplicaSpecs[Worker].template",
        ),
    ],
)
def test_a_wrong_annotation_is_refused_at_apply_with_its_field(body, field):
    verdict = ask(body)
    assert fields(verdict) == [f"{field}.metadata.annotations[tandem.gpu/memory]"]
    assert verdict.errors[0].value == "12 gigs"
    assert "such as 12Gi" in verdict.errors[0].allowed


#: Each kind with the field of its template, written out here: the code's own table is judged by it.
KINDS = [
    ("batch/v1", "Job", ["template"]),
    ("batch/v1", "CronJob", ["jobTemplate", "spec", "template"]),
    ("apps/v1", "Deployment", ["template"]),
    ("apps/v1", "StatefulSet", ["template"]),
    ("jobset.x-k8s.io/v1alpha2", "JobSet", ["replicatedJobs", 0, "template", "spec", "template"]),
    ("kubeflow.org/v1", "PyTorchJob", ["pytorchReplicaSpecs", "Master", "template"]),
    ("kubeflow.org/v1", "TFJob", ["tfReplicaSpecs", "Chief", "template"]),
    ("kubeflow.org/v1", "MPIJob", ["mpiReplicaSpecs", "Launcher", "template"]),
    ("kubeflow.org/v2beta1", "MPIJob", ["mpiReplicaSpecs", "Worker", "template"]),
    ("kubeflow.org/v1", "XGBoostJob", ["xgbReplicaSpecs", "Worker", "template"]),
    ("kubeflow.org/v1", "PaddleJob", ["paddleReplicaSpecs", "Worker", "template"]),
    ("kubeflow.org/v1", "JAXJob", ["jaxReplicaSpecs", "Worker", "template"]),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", ["leaderWorkerTemplate", "leaderTemplate"]),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", ["leaderWorkerTemplate", "workerTemplate"]),
    ("ray.io/v1", "RayCluster", ["headGroupSpec", "template"]),
    ("ray.io/v1", "RayCluster", ["workerGroupSpecs", 0, "template"]),
    ("ray.io/v1", "RayJob", ["rayClusterSpec", "headGroupSpec", "template"]),
    ("ray.io/v1", "RayJob", ["rayClusterSpec", "workerGroupSpecs", 0, "template"]),
    ("ray.io/v1", "RayService", ["rayClusterConfig", "headGroupSpec", "template"]),
    ("ray.io/v1", "RayService", ["rayClusterConfig", "workerGroupSpecs", 0, "template"]),
    (
        "trainer.kubeflow.org/v1alpha1",
        "TrainingRuntime",
        ["template", "spec", "replicatedJobs", 0, "template", "spec", "template"],
    ),
    ("batch.volcano.sh/v1alpha1", "Job", ["tasks", 0, "template"]),
]


@pytest.mark.parametrize(("api_version", "kind", "way"), KINDS, ids=lambda v: str(v))
def test_the_template_of_every_kind_is_read(api_version, kind, way):
    spec = TEMPLATE
    for step in reversed(way):
        spec = [spec] if isinstance(step, int) else {step: spec}
    verdict = ask(owner(api_version, kind, spec))
    field = "spec" + "".join(
        f"[{step}]" if isinstance(step, int) or step[0].isupper() else f".{step}" for step in way
    )
    assert fields(verdict) == [f"{field}.metadata.annotations[tandem.gpu/memory]"]


@pytest.mark.parametrize(("api_version", "kind", "way"), KINDS, ids=lambda v: str(v))
def test_the_time_to_end_is_bounded_in_the_template_of_every_kind(api_version, kind, way):
    body = pod(terminationGracePeriodSeconds=2**31 - 1)
    spec = {"metadata": body["metadata"], "spec": body["spec"]}
    for step in reversed(way):
        spec = [spec] if isinstance(step, int) else {step: spec}
    verdict = ask(owner(api_version, kind, spec))
    assert fields(verdict)[0].endswith(".spec.terminationGracePeriodSeconds")
    assert "write 3600 or less" in verdict.errors[0].allowed


def test_every_kind_that_is_read_is_tested():
    assert {(v.partition("/")[0], kind) for v, kind, _ in KINDS} == set(TEMPLATES)


def test_each_template_of_a_workload_is_judged():
    replicas = {"Launcher": {"template": {}}, "Worker": {"template": TEMPLATE}}
    body = owner("kubeflow.org/v2beta1", "MPIJob", {"mpiReplicaSpecs": replicas})
    assert fields(ask(body)) == [
        "spec.mpiReplicaSpecs[Worker].template.metadata.annotations[tandem.gpu/memory]"
    ]
    assert fields(ask(owner("kubeflow.org/v1", "TFJob", {"mpiReplicaSpecs": replicas}))) == []
    assert fields(ask(owner("example.com/v1", "MPIJob", {"mpiReplicaSpecs": replicas}))) == []


def test_a_template_that_is_changed_is_judged_and_one_that_is_not_is_left():
    one = {"Launcher": {"template": TEMPLATE}, "Worker": {"template": {}}}
    two = {"Launcher": {"template": TEMPLATE}, "Worker": {"template": TEMPLATE}}
    old, new = (
        owner("kubeflow.org/v1", "MPIJob", {"mpiReplicaSpecs": each}) for each in (one, two)
    )
    verdict = ask(new, operation="UPDATE", old=old)
    assert [field.split(".")[1] for field in fields(verdict)] == ["mpiReplicaSpecs[Worker]"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (
            pod(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0"}),
            "metadata.annotations[cdi.k8s.io/x]",
        ),
        (
            pod(volumes=[{"name": "h", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}]),
            "spec.volumes[0].hostPath.path",
        ),
        (
            pod(container(gpus="1", securityContext={"privileged": True})),
            "spec.containers[0].securityContext.privileged",
        ),
        (pod(hostPID=True), "spec.hostPID"),
        (pod(nodeName="n0"), "spec.nodeName"),
        (pod(container(gpus="65")), "spec.containers[0].resources.limits[tandem.gpu/gpu]"),
    ],
)
def test_a_template_is_refused_what_a_pod_is_refused(body, field):
    assert fields(ask(body)) == [field]
    assert fields(ask(job(body))) == [f"spec.template.{field}"]


def test_a_template_that_asks_for_no_gpu_is_left_alone():
    body = job(pod(container(), annotations={"tandem.gpu/nonsense": ""}))
    assert ask(body).errors == []


def test_a_stock_template_is_ours_in_adopted_namespaces_only():
    body = job(
        pod(container(gpus="1", resource=names.NVIDIA_RESOURCE), annotations={names.MEMORY: "much"})
    )
    assert ask(body).errors == []
    assert len(ask(body, adopt=True).errors) == 1


def test_what_was_let_in_before_us_can_still_be_updated():
    old = owner("apps/v1", "Deployment", {"template": TEMPLATE, "replicas": 1})
    scaled = owner("apps/v1", "Deployment", {"template": TEMPLATE, "replicas": 0})
    assert ask(scaled, operation="UPDATE", old=old).errors == []
    fine = owner("apps/v1", "Deployment", {"template": pod()})
    assert ask(scaled, operation="UPDATE", old=fine).errors != []


def test_evictions_of_a_checkpointable_job_are_no_failures():
    spec = admit(job(CHECKPOINT))["spec"]
    assert spec["podFailurePolicy"]["rules"] == [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ]
    assert spec["podReplacementPolicy"] == "Failed"


@pytest.mark.parametrize(
    "body",
    [
        job(pod()),
        job(pod(annotations={names.CHECKPOINT: "true"}, restartPolicy="OnFailure")),
        job(CHECKPOINT, podFailurePolicy={"rules": []} | {"rules": [{"action": "FailJob"}]}),
    ],
    ids=["no-checkpoint", "restarts-in-place", "own-policy"],
)
def test_other_jobs_keep_their_policy(body):
    assert ask(body).patch == []


def test_a_running_job_is_not_changed():
    assert ask(job(CHECKPOINT), operation="UPDATE", old=job(pod())).patch == []


@pytest.mark.parametrize("junk", [None, 3, "x", [], [1], {"spec": 3}, {"spec": {"containers": 1}}])
@pytest.mark.parametrize(("group", "kind"), TEMPLATES)
def test_templates_that_are_no_templates_break_nothing(group, kind, junk):
    for way in TEMPLATES[group, kind]:
        spec = junk
        for step in reversed(way):
            spec = [spec] if step == "*" else {step: spec}
        verdict = ask({"apiVersion": f"{group}/v1", "kind": kind, **spec})
        assert all(error.allowed for error in verdict.errors)


# --- over HTTP --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def http():
    app = FastAPI()
    app.include_router(admission_router(AdmissionConfig(), has_runtime_class=lambda: True))
    return TestClient(app, raise_server_exceptions=False)


def test_an_allowed_request_carries_a_patch(http):
    answer = http.post("/mutate", json=review(pod())).json()
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = answer["response"]
    assert (response["uid"], response["allowed"]) == ("review-1", True)
    assert response["patchType"] == "JSONPatch"
    patched = apply_patch(pod(), json.loads(base64.b64decode(response["patch"])))
    assert patched["spec"]["runtimeClassName"] == "nvidia"


def test_a_refusal_is_a_status_with_causes(http):
    response = http.post("/mutate", json=review(job(WRONG))).json()["response"]
    assert response["allowed"] is False
    status = response["status"]
    assert status["code"] == 422
    field = "spec.template.metadata.annotations[tandem.gpu/memory]"
    assert status["details"]["causes"][0]["field"] == field
    assert status["message"].startswith(f'{field}: "12 gigs" is not allowed: must be')
    assert "patch" not in response


def test_adopted_namespaces_have_a_path_of_their_own(http):
    body = review(pod(container(gpus="1", resource=names.NVIDIA_RESOURCE)))
    assert "patch" not in http.post("/mutate", json=body).json()["response"]
    assert "patch" in http.post("/mutate-adopted", json=body).json()["response"]


def test_warnings_are_passed_on(http):
    response = http.post("/mutate", json=review(pod(priorityClassName="urgent"))).json()["response"]
    assert "urgent" in response["warnings"][0]


def test_deletions_and_updates_of_pods_are_let_through(http):
    for operation in ("DELETE", "UPDATE"):
        body = review(WRONG, operation=operation, old=WRONG)
        response = http.post("/mutate", json=body).json()["response"]
        assert response == {"uid": "review-1", "allowed": True}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "annotations", "spec", "containers", "resources", "limits", "env",
                 "tandem.gpu/gpu", "tandem.gpu/memory", "template", "name"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=80)
@given(JSON, st.sampled_from(["Pod", "Job"]))
def test_no_body_makes_the_webhook_fall_over(http, body, kind):
    request = review({"apiVersion": "v1" if kind == "Pod" else "batch/v1", "kind": kind})
    request["request"]["object"] = body
    assert http.post("/mutate", json=request).status_code in (200, 422)
    assert http.post("/mutate", json=body).status_code == 422
