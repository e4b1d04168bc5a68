"""The webhook in front of a real API server, under the rights that our manifests give."""

import copy
import re
import socket
import threading

import pytest
import uvicorn
from admission_cases import container, job, pod
from fastapi import FastAPI
from field_manifests import answers

from controlplane import manifests, wait_until
from scheduler_extender.admission.certificates import (
    CONFIGURATION_NAME,
    SECRET_NAME,
    install_authority,
)
from scheduler_extender.admission.config import AdmissionConfig, Rotation
from scheduler_extender.admission.rotation import Keeper
from scheduler_extender.admission.webhook import admission_router, has_nvidia_runtime_class
from scheduler_extender.serving import pairing
from tandem.contracts import crds, names
from tandem.errors import TandemError
from tandem.kube import errors
from tandem.kube.client import KubeClient
from tandem.kube.events import EventRecorder
from tandem.kube.reflector import Reflector
from tandem.kube.resource import (
    GPU_JOBS,
    GPU_NODES,
    JOBS,
    LEASES,
    MODEL_PROFILES,
    NODES,
    PODS,
    SECRETS,
)

pytestmark = [pytest.mark.controlplane]


@pytest.fixture(scope="module")
def installed(control_plane):
    """The control plane with our definitions, accounts and priority class."""
    for definition in crds.DEFINITIONS:
        control_plane.apply(definition.manifest())
        name = definition.manifest()["metadata"]["name"]
        control_plane.await_definitions(name)
    control_plane.apply(manifests.objects(*manifests.FOUNDATIONS))
    return control_plane


def account(plane, namespace, name):
    wait_until(
        lambda: plane.http.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}").is_success,
        f"account {name} exists",
    )
    return KubeClient.load(plane.service_account_kubeconfig(namespace, name))


@pytest.fixture(scope="module")
def extender(installed):
    client = account(installed, names.NAMESPACE, "tandem-scheduler")
    yield client
    client.close()


@pytest.fixture(scope="module")
def webhook(installed, extender, tmp_path_factory):
    """The webhook served over TLS on loopback, and the API server configured to call it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        hosts = [f"tandem-webhook.{names.NAMESPACE}.svc", "127.0.0.1"]
        serving = Keeper(extender, names.NAMESPACE, hosts, Rotation()).begin()
        certificate, key = serving.write(tmp_path_factory.mktemp("tls"))
        app = FastAPI()
        app.include_router(admission_router(AdmissionConfig()))
        server = uvicorn.Server(
            uvicorn.Config(
                app, log_level="warning", ssl_certfile=certificate, ssl_keyfile=key, lifespan="off"
            )
        )
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        (configuration,) = manifests.objects(
            "MutatingWebhookConfiguration", name=CONFIGURATION_NAME
        )
        for each in configuration["webhooks"]:
            path = each["clientConfig"].pop("service")["path"]
            each["clientConfig"]["url"] = f"https://127.0.0.1:{port}{path}"
        installed.apply(configuration)
        wait_until(lambda: server.started, "the webhook is served")
        assert install_authority(extender, serving.ca) == len(configuration["webhooks"])
        assert install_authority(extender, serving.ca) == 0
        yield server
        installed.kubectl(
            "delete", "mutatingwebhookconfiguration", CONFIGURATION_NAME, "--ignore-not-found"
        )
        installed.kubectl("delete", "secret", SECRET_NAME, "-n", names.NAMESPACE)
        server.should_exit = True
        thread.join(30)


@pytest.fixture
def team(webhook, control_plane, namespace):
    """A namespace in which the API server calls us by now: it learns of webhooks after a while."""
    probe = training_job("probe", annotations={names.MEMORY: "?"})

    def refused():
        try:
            control_plane.apply({**probe, "metadata": {"name": "probe", "namespace": namespace}})
        except TandemError:
            return True
        control_plane.kubectl("delete", "job", "probe", "-n", namespace)
        return False

    wait_until(refused, "the API server asks the webhook")
    return namespace


def training_job(name, *containers, annotations=None, **spec):
    template = pod(*containers, annotations=annotations)
    # As a user writes it, without what the API server fills in.
    template["spec"] = {"restartPolicy": "Never", "containers": template["spec"]["containers"]}
    body = job(template, **spec)
    del body["spec"]["podReplacementPolicy"]
    return {**body, "metadata": {"name": name}}


def apply(plane, namespace, body):
    return plane.apply({**body, "metadata": {**body["metadata"], "namespace": namespace}})


def pods_of(plane, namespace, name):
    listed = plane.get("pods", "-n", namespace, "-l", f"job-name={name}")
    return listed["items"]


def test_an_unreadable_annotation_is_refused_at_apply_and_nothing_is_half_created(
    control_plane, team
):
    body = training_job("wrong", container(gpus="1"), annotations={names.MEMORY: "12 gigs"})
    with pytest.raises(TandemError) as caught:
        apply(control_plane, team, body)
    message = str(caught.value)
    assert "spec.template.metadata.annotations[tandem.gpu/memory]" in message
    assert "12 gigs" in message
    assert "such as 12Gi" in message
    assert control_plane.get("jobs", "-n", team)["items"] == []
    assert pods_of(control_plane, team, "wrong") == []


def test_pods_of_a_good_job_come_gated_with_their_environment(control_plane, team):
    annotations = {names.MEMORY: "12Gi", names.CHECKPOINT: "true"}
    body = training_job(
        "good", container(gpus="1"), container("logs"), annotations=annotations, parallelism=2
    )
    apply(control_plane, team, body)
    pods = wait_until(
        lambda: len(found := pods_of(control_plane, team, "good")) == 2 and found, "two pods"
    )
    for each in pods:
        spec = each["spec"]
        assert spec["schedulingGates"] == [{"name": names.SCHEDULING_GATE}]
        assert spec["schedulerName"] == "tandem-scheduler"
        assert spec["priorityClassName"] == "tandem-training"
        assert spec["preemptionPolicy"] == "Never", "derived from our class"
        assert spec["containers"][0]["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] == (
            "metadata.annotations['tandem.gpu/visible-devices']"
        )
        assert spec["containers"][1]["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
        assert each["status"]["conditions"][0]["reason"] == "SchedulingGated"
    spec = control_plane.get("job", "good", "-n", team)["spec"]
    assert spec["podFailurePolicy"]["rules"][0]["action"] == "Ignore"
    assert spec["podReplacementPolicy"] == "Failed"


def test_a_stock_job_in_an_adopted_namespace_gets_whole_gpus(control_plane, team):
    control_plane.kubectl("label", "namespace", team, "tandem.gpu/adopt=true")
    body = training_job("stock", container(gpus="2", resource=names.NVIDIA_RESOURCE))

    def adopted():
        control_plane.kubectl("delete", "job", "stock", "-n", team, "--ignore-not-found")
        apply(control_plane, team, body)
        (only,) = wait_until(lambda: pods_of(control_plane, team, "stock"), "a pod is made")
        return only if only["spec"]["schedulerName"] == "tandem-scheduler" else None

    # The API server learns of a namespace's label after a while.
    only = wait_until(adopted, "the namespace is adopted")
    limits = only["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {names.RESOURCE: "2"}
    assert only["metadata"]["annotations"][names.EXCLUSIVE] == "true"


def test_other_workloads_do_not_depend_on_us(control_plane, team, webhook):
    """The webhook is taken away under the API server's feet: only our pods wait for it."""
    hostage = webhook.config.app.router.routes
    kept = hostage[:]
    hostage.clear()
    try:
        with pytest.raises(TandemError, match="webhook"):
            apply(control_plane, team, training_job("ours", container(gpus="1")))
        apply(control_plane, team, training_job("theirs", container()))
        # 0 asks for nothing, as everywhere in Kubernetes.
        apply(control_plane, team, training_job("zeros", container(gpus=0), container("b", "0")))
    finally:
        hostage.extend(kept)
    for name in ("theirs", "zeros"):
        (made,) = wait_until(lambda n=name: pods_of(control_plane, team, n), "their pod is made")
        assert made["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize("adopt", [False, True])
def test_containers_that_render_zeros_stay_next_to_the_one_with_the_gpus(
    control_plane, team, adopt
):
    if adopt:
        control_plane.kubectl("label", "namespace", team, "tandem.gpu/adopt=true")
    zeros = {"limits": {names.RESOURCE: 0, names.NVIDIA_RESOURCE: "0"}}
    body = training_job(
        "mixed", container("launcher", resources=zeros), container("main", gpus="1")
    )
    apply(control_plane, team, body)
    (made,) = wait_until(lambda: pods_of(control_plane, team, "mixed"), "a pod is made")
    launcher, main = made["spec"]["containers"]
    assert made["spec"]["schedulerName"] == "tandem-scheduler"
    assert launcher["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert launcher["resources"]["limits"] == dict.fromkeys(
        (names.RESOURCE, names.NVIDIA_RESOURCE), "0"
    )
    assert main["resources"]["limits"] == {names.RESOURCE: "1"}


def test_parts_of_gpus_in_other_systems_words_are_translated_or_refused(control_plane, team):
    """Without the number of GPUs, or without any resource: the API server calls us all the same."""
    control_plane.kubectl("label", "namespace", team, "tandem.gpu/adopt=true")
    hami = training_job("hami", container(gpus="3000", resource="nvidia.com/gpumem"))
    kai = training_job("kai", container(), annotations={"gpu-memory": "2000"})

    def adopted(body, name):
        control_plane.kubectl("delete", "job", name, "-n", team, "--ignore-not-found")
        apply(control_plane, team, body)
        (only,) = wait_until(lambda: pods_of(control_plane, team, name), "a pod is made")
        return only if only["spec"]["schedulerName"] == "tandem-scheduler" else None

    for body, name, memory in ((hami, "hami", "3000Mi"), (kai, "kai", "2000Mi")):
        # The API server learns of a namespace's label after a while.
        made = wait_until(lambda b=body, n=name: adopted(b, n), "the namespace is adopted")
        resources = made["spec"]["containers"][0]["resources"]
        assert resources["limits"] == resources["requests"] == {names.RESOURCE: "1"}
        assert made["metadata"]["annotations"][names.MEMORY] == memory
        assert names.EXCLUSIVE not in made["metadata"]["annotations"]
    mig = training_job("mig", container(gpus="1", resource="nvidia.com/mig-1g.5gb"))
    half = training_job("half", container(), annotations={"gpu-fraction": "0.5"})
    for body, says in ((mig, f"{names.MEMORY}: 5Gi"), (half, f"write {names.RESOURCE}")):
        with pytest.raises(TandemError, match=re.escape(says)):
            apply(control_plane, team, body)
    apply(control_plane, team, training_job("theirs", container()))
    (only,) = wait_until(lambda: pods_of(control_plane, team, "theirs"), "a pod is made")
    assert only["spec"]["schedulerName"] == "default-scheduler"


@pytest.fixture
def guarded(control_plane, team):
    """The namespace with the policies for pods, which judge what comes out of the webhook."""
    policies = manifests.objects("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    mine = [each for each in policies if each["metadata"]["name"] == "tandem-pods"]
    only = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": team}}}
    for each in mine:
        if each["kind"] == "ValidatingAdmissionPolicyBinding":
            each["spec"]["matchResources"] = only
    control_plane.apply(mine)
    yield team
    control_plane.kubectl("delete", "validatingadmissionpolicybinding", "tandem-pods")
    control_plane.kubectl("delete", "validatingadmissionpolicy", "tandem-pods")


def test_the_api_server_takes_or_refuses_the_pods_of_the_field_as_the_webhook_says(
    control_plane, guarded
):
    def create(body):
        body = copy.deepcopy(body)
        body["spec"].pop("serviceAccountName", None)
        path = f"/api/v1/namespaces/{guarded}/pods?dryRun=All"
        return control_plane.http.post(path, json=body)

    judged = 0
    (sliced,) = [m for m, *_ in answers() if (m.kind, m.use) == ("Deployment", "sliced")]
    for adopted in (False, True):
        if adopted:
            control_plane.kubectl("label", "namespace", guarded, "tandem.gpu/adopt=true")
            wait_until(
                lambda: create(sliced.pods[0]).status_code == 422, "the namespace is adopted"
            )
        for manifest, _, of_pods in answers():
            if manifest.adopted is not adopted:
                continue
            for made, answer in zip(manifest.pods, of_pods, strict=True):
                response = create(made)
                at = (manifest.project, manifest.kind, manifest.use, response.text)
                assert response.status_code == (201 if answer.allowed else 422), at
                if answer.patch:
                    spec = response.json()["spec"]
                    assert spec["schedulerName"] == names.SCHEDULER_NAME, at
                assert all(field in response.json()["message"] for field, _ in answer.causes), at
                judged += 1
    assert judged == sum(len(manifest.pods) for manifest, *_ in answers()) > 200


def test_devices_by_claims_or_annotations_are_refused_at_apply(control_plane, team):
    body = training_job("claims", container(gpus="1"))
    template = body["spec"]["template"]
    template["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]
    template["metadata"]["annotations"] = {"devices.nri.io/container.main": "- path: /dev/nvidia0"}
    with pytest.raises(TandemError) as caught:
        apply(control_plane, team, body)
    message = str(caught.value)
    assert "spec.template.spec.resourceClaims[0]" in message
    assert "spec.template.metadata.annotations[devices.nri.io/container.main]" in message


def test_a_cron_job_and_a_deployment_get_the_answer_as_well(control_plane, team):
    template = training_job("x", container(gpus="1"), annotations={names.BATCH_SIZE: "many"})
    cron = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly"},
        "spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": template["spec"]}},
    }
    field = r"spec\.jobTemplate\.spec\.template\.metadata\.annotations\[tandem\.gpu/batch-size\]"
    with pytest.raises(TandemError, match=field):
        apply(control_plane, team, cron)
    pod_template = template["spec"]["template"]
    pod_template["metadata"]["labels"] = {"app": "x"}
    del pod_template["spec"]["restartPolicy"]
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serving"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": pod_template},
    }
    with pytest.raises(TandemError, match=r"tandem\.gpu/batch-size"):
        apply(control_plane, team, deployment)


# --- rights -----------------------------------------------------------------------------------


def gpu_job(name):
    return {
        "metadata": {"name": name},
        "spec": {
            "workload": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"},
            "demand": {"gpusPerPod": 1},
        },
    }


def test_the_extender_s_account_may_do_what_the_extender_does(
    control_plane, extender, namespace, team
):
    mirrors = [
        Reflector(extender, resource, lambda kind, item: None)
        for resource in (PODS, NODES, JOBS, GPU_JOBS, GPU_NODES, MODEL_PROFILES)
    ]
    for mirror in mirrors:
        mirror.start()
    for mirror in mirrors:
        assert mirror.synced.wait(60), mirror.name
        mirror.stop()

    control_plane.add_node("rights")
    apply(control_plane, namespace, training_job("run", container(gpus="1")))
    (gated,) = wait_until(lambda: pods_of(control_plane, namespace, "run"), "a pod is made")
    name, uid = gated["metadata"]["name"], gated["metadata"]["uid"]
    EventRecorder(extender, "tandem-queue", "rights").record(gated, "Waiting", "for a GPU")
    assert "for a GPU" in control_plane.kubectl("describe", "pod", name, "-n", namespace)

    created = extender.create(GPU_JOBS, gpu_job("run"), namespace)
    created["status"] = {"phase": "Admitted"}
    extender.replace(GPU_JOBS, created, namespace, subresource="status")
    ungate = {
        "metadata": {"uid": uid, "annotations": {names.EPOCH: "1"}},
        "spec": {"schedulingGates": []},
    }
    extender.patch(PODS, name, ungate, namespace)
    devices = {names.VISIBLE_DEVICES: "GPU-1"}
    extender.bind(namespace, name, "rights", uid=uid, annotations=devices)
    bound = extender.get(PODS, name, namespace)
    assert bound["spec"]["nodeName"] == "rights"
    assert bound["metadata"]["annotations"][names.VISIBLE_DEVICES] == "GPU-1"
    extender.evict(namespace, name, uid=uid)
    extender.delete(GPU_JOBS, "run", namespace)


def test_the_runtime_class_of_the_cluster_is_found(installed, extender):
    assert not has_nvidia_runtime_class(extender)
    installed.apply(
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "nvidia"},
            "handler": "nvidia",
        }
    )
    assert has_nvidia_runtime_class(extender)
    installed.kubectl("delete", "runtimeclass", "nvidia")


def test_the_extender_s_account_may_do_no_more(extender, namespace):
    for attempt in (
        lambda: extender.list(SECRETS, namespace),
        lambda: extender.list(SECRETS, names.NAMESPACE),
        lambda: extender.create(PODS, pod(), namespace),
        lambda: extender.create(GPU_NODES, {"metadata": {"name": "n"}}),
    ):
        with pytest.raises(errors.Forbidden):
            attempt()


def test_a_kube_scheduler_runs_with_our_configuration_and_account(
    installed, extender, namespace, tmp_path
):
    """It accepts the file, is elected, schedules what needs no extender, and is refused nothing."""
    path = installed.service_account_kubeconfig(names.NAMESPACE, "tandem-scheduler")
    config = manifests.scheduler_config()
    shared = tmp_path / "shared"
    pairing.authority(shared)
    tls = config["extenders"][0]["tlsConfig"]
    for key, file in tls.items():
        tls[key] = file.replace("/run/tandem-verbs", str(shared))
    process = installed.start_scheduler("tandem-scheduler", config=config, kubeconfig=path)

    def holder():
        try:
            lease = extender.get(LEASES, names.LEASE_NAME, names.NAMESPACE)
        except errors.NotFound:
            return ""
        return lease["spec"]["holderIdentity"]

    assert wait_until(holder, "it holds the Lease").startswith(f"{socket.gethostname()}_")
    installed.add_node("scheduled")
    plain = pod(container())
    plain["spec"] = {"schedulerName": "tandem-scheduler", "containers": [container()]}
    # Admission refuses such a pod. It takes no part here: this is about the scheduler's rights.
    installed.kubectl(
        "delete", "mutatingwebhookconfiguration", CONFIGURATION_NAME, "--ignore-not-found"
    )

    def accepted():
        try:
            apply(installed, namespace, {**plain, "metadata": {"name": "plain"}})
        except TandemError:
            return False
        return True

    wait_until(accepted, "the API server asks no webhook")
    wait_until(
        lambda: extender.get(PODS, "plain", namespace)["spec"].get("nodeName"), "it schedules"
    )
    process.terminate()
    # The next test on this control plane need not wait for it to expire.
    installed.kubectl("delete", "lease", names.LEASE_NAME, "-n", names.NAMESPACE)
    log = process.log.read_text()
    assert "forbidden" not in log.lower(), [line for line in log.splitlines() if "orbidden" in line]


def test_agents_and_predictor_write_their_own_kind_only(installed, namespace):
    agent = account(installed, names.AGENT_NAMESPACE, "tandem-agent")
    node = agent.create(GPU_NODES, {"metadata": {"name": "agent-rights"}})
    status = {"observedAt": "2026-01-01T00:00:00Z"}
    agent.replace(GPU_NODES, {**node, "status": status}, subresource="status")
    with pytest.raises(errors.Forbidden):
        agent.create(GPU_JOBS, gpu_job("x"), namespace)
    predictor = account(installed, names.NAMESPACE, "tandem-predictor")
    assert predictor.list(MODEL_PROFILES, namespace) == []
    with pytest.raises(errors.Forbidden):
        predictor.list(PODS, namespace)
