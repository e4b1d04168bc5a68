"""`tandem doctor` names the fault in each of many broken clusters, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from cli_cluster import AGENTS, NOW_S, SYSTEM, Site, authority, condition, gpu, stamp, text
from typer.testing import CliRunner

from tandem.cli.doctor import command
from tandem.cli.doctor.claims import DEVICE_CLASSES
from tandem.cli.doctor.cluster import (
    DAEMON_SETS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    POLICY_BINDINGS,
    PRIORITY_CLASSES,
)
from tandem.cli.doctor.command import CHECKS
from tandem.cli.doctor.findings import Finding, Outcome, examine
from tandem.cli.main import build_app
from tandem.contracts import claims, names
from tandem.errors import TandemError
from tandem.kube.access import ACCESS_REVIEWS
from tandem.kube.errors import Forbidden, Gone, unreachable
from tandem.kube.resource import (
    CONFIG_MAPS,
    GPU_NODES,
    KUEUE_TOPOLOGIES,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    RUNTIME_CLASSES,
    SECRETS,
)
from tandem.kube.tunnel import Answer


def examined(site: Site) -> list[Finding]:
    return list(examine(CHECKS, site.cluster()))


def of(found: list[Finding], outcome: Outcome) -> list[Finding]:
    return [each for each in found if each.outcome is outcome]


def test_nothing_is_wrong_with_a_healthy_cluster() -> None:
    found = examined(Site())
    assert {each.outcome for each in found} == {Outcome.OK}, found
    assert [each.check for each in found] == [name for name, _ in CHECKS]


def old_version(site: Site) -> None:
    site.server.git_version = "v1.29.4+k3s1"


def gate_off(site: Site) -> None:
    site.server.gates["SidecarContainers"] = False


def no_definitions(site: Site) -> None:
    site.server.served = {"gpujobs", "modelprofiles"}


def no_labels(site: Site) -> None:
    for name in ("gpu-0", "gpu-1"):
        site.change(NODES, name, {"metadata": {"labels": {"nvidia.com/gpu.present": None}}})
        site.api.delete(GPU_NODES, name)


def node_down(site: Site) -> None:
    down = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
    site.change(NODES, "gpu-1", {"status": down})


def no_runtime_class(site: Site) -> None:
    site.api.delete(RUNTIME_CLASSES, "nvidia")


def no_toolkit(site: Site) -> None:
    site.change(NODES, "gpu-1", {"status": {"runtimeHandlers": [{"name": ""}, {"name": "runc"}]}})


def variable_ignored(site: Site) -> None:
    message = "a container with NVIDIA_VISIBLE_DEVICES=void saw nvidia0"
    said = condition("VariableHonoured", "False", message)
    site.change(GPU_NODES, "gpu-0", {"status": {"conditions": [said]}})


def device_plugin(site: Site) -> None:
    site.change(NODES, "gpu-0", {"status": {"capacity": {"nvidia.com/gpu": "2"}}})


def no_webhook(site: Site) -> None:
    site.api.delete(MUTATING_WEBHOOKS, "tandem")


def hooks_with(bundle: str) -> dict:
    client = {"service": {"name": "tandem-webhook"}, "caBundle": bundle}
    return {"webhooks": [{"name": "w.tandem.gpu", "clientConfig": client}]}


def no_authority(site: Site) -> None:
    site.change(MUTATING_WEBHOOKS, "tandem", hooks_with(""))


def other_authority(site: Site) -> None:
    site.change(MUTATING_WEBHOOKS, "tandem", hooks_with(text(authority(366)[0])))


def ended_certificate(site: Site) -> None:
    ca, certificate = authority(-3)
    site.change(MUTATING_WEBHOOKS, "tandem", hooks_with(text(ca)))
    site.change(SECRETS, "tandem-webhook", {"data": {"tls.crt": text(certificate)}}, SYSTEM)


def no_endpoints(site: Site) -> None:
    body = {"endpoints": [{"addresses": ["10.0.0.5"], "conditions": {"ready": False}}]}
    site.change(ENDPOINT_SLICES, "tandem-webhook-1", body, SYSTEM)


def caller_without_rights(site: Site) -> None:
    site.api.denied |= {("", "list", "gpujobs"), ("", "list", "gpunodes")}


def scheduler_without_rights(site: Site) -> None:
    site.api.denied.add(("tandem-scheduler", "update", "gpujobs"))


def agents_crash(site: Site) -> None:
    site.change(DAEMON_SETS, "tandem-agent", {"status": {"numberReady": 1}}, AGENTS)
    site.agent_pod("CrashLoopBackOff")


def extender_hangs(site: Site) -> None:
    one_replica_away(site)
    site.scheduler_pod(
        {"name": "kube-scheduler", "ready": True, "state": {"running": {}}},
        {"name": "extender", "ready": False, "state": {"running": {}}},
    )


def extender_crashes(site: Site) -> None:
    one_replica_away(site)
    site.scheduler_pod(
        {"name": "kube-scheduler", "ready": False, "state": {"running": {}}},
        {"name": "extender", "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
    )


def agents_forbidden(site: Site) -> None:
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    site.change(NAMESPACES, AGENTS, {"metadata": {"labels": label}})


def no_agents(site: Site) -> None:
    site.api.delete(DAEMON_SETS, "tandem-agent", AGENTS)


def silent_agent(site: Site) -> None:
    site.api.delete(GPU_NODES, "gpu-1")


def stale_report(site: Site) -> None:
    fields = [{"subresource": "status", "time": stamp(NOW_S - 400)}]
    site.change(
        GPU_NODES,
        "gpu-1",
        {
            "metadata": {"managedFields": fields},
            "status": {"observedAt": stamp(NOW_S - 401)},
        },
    )


def quarantined(site: Site) -> None:
    lost = gpu("GPU-9", health="Quarantined", healthReason="XID 79")
    site.change(GPU_NODES, "gpu-0", {"status": {"gpus": [lost]}})


def changed_inventory(site: Site) -> None:
    known = '{"GPU-0-0":["V100",17179869184]}'
    site.change(GPU_NODES, "gpu-0", {"metadata": {"annotations": {names.INVENTORY: known}}})


def deletion_overdue(site: Site) -> None:
    held = {names.VISIBLE_DEVICES: "GPU-0-0"}
    site.api.now_s = NOW_S - 400
    for name, its, phase in (
        ("stuck", held, "Running"),
        ("without-gpus", {}, "Running"),
        ("ended", held, "Failed"),
    ):
        metadata = {"name": name, "annotations": its, "finalizers": ["team-a/kept"]}
        spec = {"nodeName": "gpu-1", "terminationGracePeriodSeconds": 30, "containers": []}
        status = {"phase": phase}
        body = {"metadata": metadata, "spec": spec, "status": status}
        site.api.create(PODS, body, "team-a")
        site.api.delete(PODS, name, "team-a")


def no_gpus(site: Site) -> None:
    site.change(GPU_NODES, "gpu-0", {"status": {"gpus": []}})


def nvml_gone(site: Site) -> None:
    said = condition("NvmlAvailable", "False", "Driver Not Loaded")
    site.change(GPU_NODES, "gpu-0", {"status": {"conditions": [said]}})


def predictor_away(site: Site) -> None:
    site.change(DEPLOYMENTS, "tandem-predictor", {"status": {"availableReplicas": 0}}, SYSTEM)


def predictor_hangs(site: Site) -> None:
    said = b'{"error": "the predictor does not answer"}'
    site.answers["/v1/models"] = Answer(503, said)


def extender_unreachable(site: Site) -> None:
    away = unreachable("GET /tunnel: timed out", maybe_done=True)
    site.answers |= {"/v1/status/scope": away, "/v1/models": away}


def webhook_hangs(site: Site) -> None:
    site.server.refusal = (
        'Internal error occurred: failed calling webhook "workloads.tandem.gpu": failed to call'
        " webhook: context deadline exceeded"
    )


def webhook_of_an_adopted_namespace_hangs(site: Site) -> None:
    webhook_hangs(site)
    site.server.refusal = site.server.refusal.replace('"', '"adopted-', 1)


def webhook_ignored(site: Site) -> None:
    site.server.reviewed = False


def webhook_ignored_and_pod_refused(site: Site) -> None:
    site.server.refusal = (
        "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'tandem-pods' with binding"
        " 'tandem-pods' denied request: spec.schedulerName: tandem-scheduler schedules"
        " tandem.gpu/gpu"
    )


def one_replica_away(site: Site) -> None:
    site.change(DEPLOYMENTS, "tandem-scheduler", {"status": {"availableReplicas": 1}}, SYSTEM)


def caller_ahead(site: Site) -> None:
    site.clock_s += 90


def agent_behind(site: Site) -> None:
    site.change(GPU_NODES, "gpu-1", {"status": {"observedAt": stamp(NOW_S - 20 - 120)}})


def none_leads(site: Site) -> None:
    site.lease(NOW_S - 60)


def no_lease(site: Site) -> None:
    site.api.delete(LEASES, names.LEASE_NAME, SYSTEM)


def policy_gone(site: Site) -> None:
    site.api.delete(POLICY_BINDINGS, "tandem-assignments")


def no_priority_class(site: Site) -> None:
    site.api.delete(PRIORITY_CLASSES, names.PRIORITY_CLASS)


BROKEN: list[tuple[Callable[[Site], None], str, str, str]] = [
    # what is broken, the check that fails, words of what it says, words of what to do
    (old_version, "version", "v1.29.4+k3s1 is older than 1.30", "upgrade"),
    (gate_off, "feature gates", "SidecarContainers is off", "--feature-gates"),
    (no_definitions, "definitions", "lacks gpunodes", "kubectl apply"),
    (no_labels, "GPU nodes", "no node has the label nvidia.com/gpu.present=true", "label node"),
    (node_down, "GPU nodes", "1 of 2 GPU nodes not ready: gpu-1", "describe node gpu-1"),
    (no_runtime_class, "runtime class", "no runtime class nvidia", "GPU Operator"),
    (no_toolkit, "container toolkit", "gpu-1 has no handler nvidia", "nvidia-ctk"),
    (variable_ignored, "container toolkit", "void saw nvidia0", "node-agent.md"),
    (device_plugin, "device plugin", "gpu-0: 2 nvidia.com/gpu", "gpu.deploy.device-plugin=false"),
    (no_webhook, "webhook", "no MutatingWebhookConfiguration tandem", "helm upgrade"),
    (no_authority, "webhook", "caBundle is empty", "-c extender"),
    (other_authority, "certificate", "caBundle does not match", "rollout restart"),
    (ended_certificate, "certificate", "ended on 2027-01-12", "rollout restart"),
    (no_endpoints, "webhook", "tandem-webhook has no ready endpoint", "get pods"),
    (caller_without_rights, "your rights", "neither everywhere nor in team-a", "rolebinding"),
    (
        scheduler_without_rights,
        "accounts",
        "tandem-scheduler may not update gpujobs/status",
        "helm",
    ),
    (agents_crash, "agents", "1 of 2 agents ready: tandem-agent-x: CrashLoopBackOff", "logs"),
    (extender_hangs, "scheduler", "tandem-scheduler-x: extender runs and is not ready", "describe"),
    (extender_crashes, "scheduler", "CrashLoopBackOff in extender", "describe"),
    (agents_forbidden, "agents", "Pod Security restricted", "enforce=privileged"),
    (no_agents, "agents", "no DaemonSet tandem-agents/tandem-agent", "helm upgrade"),
    (silent_agent, "reports", "no report from gpu-1", "spec.nodeName=gpu-1"),
    (stale_report, "reports", "gpu-1 (up to 400 s)", "delete gpunode gpu-1"),
    (quarantined, "GPUs", "gpu-0/GPU-9 (V100) is quarantined: XID 79", "describe gpunode gpu-0"),
    (no_gpus, "GPUs", "gpu-0 reports no GPU", "nvidia-smi"),
    (changed_inventory, "GPUs", "GPU-0-1 is new", "kubectl annotate gpunode gpu-0"),
    (deletion_overdue, "deletions", "team-a/stuck (up to 400 s)", "describe pod stuck -n team-a"),
    (nvml_gone, "GPUs", "Driver Not Loaded", "nvidia-smi on gpu-0"),
    (predictor_away, "predictor", "0 of 1 replica available", "describe pods"),
    (predictor_hangs, "predictor", "the predictor does not answer", "deployment/tandem-predictor"),
    (extender_unreachable, "scheduler", "the extender does not answer", "tandem-scheduler"),
    (webhook_hangs, "webhook", "context deadline exceeded", "port 8443"),
    (webhook_of_an_adopted_namespace_hangs, "webhook", "deadline exceeded", "port 8443"),
    (webhook_ignored, "webhook", "failurePolicy: Ignore", "port 8443"),
    (webhook_ignored_and_pod_refused, "webhook", "failurePolicy: Ignore", "port 8443"),
    (one_replica_away, "scheduler", "1 of 2 replicas available", "describe pods"),
    (caller_ahead, "clocks", "90 s ahead of the API server's", "NTP"),
    (agent_behind, "clocks", "by up to 120 s: gpu-1", "NTP"),
    (none_leads, "leader", "tandem-scheduler-1 led until 60 s ago", "logs"),
    (no_lease, "leader", "no scheduler leads", "logs"),
    (policy_gone, "policies", "no binding of tandem-assignments", "helm upgrade"),
    (no_priority_class, "priority class", "tandem-training", "helm upgrade"),
]


@pytest.mark.parametrize(
    ("break_it", "check", "says", "do"), BROKEN, ids=[each[0].__name__ for each in BROKEN]
)
def test_the_fault_of_a_broken_cluster_is_named_with_what_to_do(
    break_it: Callable[[Site], None], check: str, says: str, do: str
) -> None:
    site = Site()
    break_it(site)
    failures = of(examined(site), Outcome.FAILED)
    assert [each.check for each in failures] == [check], failures
    assert says in failures[0].says
    assert do in failures[0].do


@pytest.mark.parametrize(
    "answer",
    [
        Answer(403, b"{}"),
        Answer(404, b'{"error": "this installation has no predictor"}'),
        Forbidden(403, "you may not get services/proxy"),
        TandemError("your kubeconfig has a certificate and no token"),
    ],
)
def test_an_extender_that_may_not_be_asked_is_no_fault(answer: Answer | Exception) -> None:
    site = Site()
    site.answers = dict.fromkeys(("/v1/models", "/v1/status/scope"), answer)
    assert not of(examined(site), Outcome.FAILED)


def test_what_refuses_a_pod_for_another_reason_is_no_fault_of_the_webhook() -> None:
    site = Site()
    site.server.refusal = 'pods "x" is forbidden: exceeded quota: gpus'
    assert not of(examined(site), Outcome.FAILED)


def test_two_faults_are_both_named() -> None:
    site = Site()
    device_plugin(site)
    none_leads(site)
    assert {each.check for each in of(examined(site), Outcome.FAILED)} == {
        "device plugin",
        "leader",
    }


def test_each_check_fails_in_some_broken_cluster() -> None:
    """A check that cannot fail would say nothing. Taints can only warn."""
    assert {each[1] for each in BROKEN} == {name for name, _ in CHECKS} - {"taints"}


def test_untainted_nodes_and_policies_that_are_off_are_warnings() -> None:
    site = Site()
    site.change(NODES, "gpu-0", {"spec": {"taints": []}})
    for item in site.api.list(POLICY_BINDINGS):
        site.api.delete(POLICY_BINDINGS, item["metadata"]["name"])
    found = examined(site)
    assert [each.check for each in of(found, Outcome.WARNING)] == ["policies", "taints"]
    assert not of(found, Outcome.FAILED)


def test_memory_that_no_listed_process_holds_is_a_warning() -> None:
    site = Site()
    leaky = gpu("GPU-9", memoryUnlistedBytes=70 << 30, memoryBytes=80 << 30, shares=1)
    site.change(GPU_NODES, "gpu-0", {"status": {"gpus": [leaky]}})
    found = examined(site)
    (said,) = (each for each in of(found, Outcome.WARNING) if each.check == "GPUs")
    assert "gpu-0/GPU-9 (V100): 70.0 of 80.0 GiB of memory" in said.says
    assert "fuser" in said.do
    assert not of(found, Outcome.FAILED)


def test_a_gpu_that_dra_hands_over_is_well() -> None:
    site = Site()
    of_dra = gpu("GPU-9", shares=0, sharesReason="DRA hands it over", draShares=2)
    site.change(GPU_NODES, "gpu-0", {"status": {"gpus": [of_dra]}})
    assert "GPUs" not in {each.check for each in of(examined(site), Outcome.WARNING)}
    closed = gpu("GPU-9", shares=0, sharesReason="compute mode ExclusiveProcess", draShares=0)
    site.change(GPU_NODES, "gpu-0", {"status": {"gpus": [closed]}})
    assert "GPUs" in {each.check for each in of(examined(site), Outcome.WARNING)}


def test_nodes_that_hand_gpus_over_by_claims_need_claims_and_a_driver() -> None:
    site = Site()
    queued = gpu("GPU-9", shares=2, draShares=2)
    site.change(GPU_NODES, "gpu-0", {"status": {"gpus": [queued]}})
    found = [each for each in of(examined(site), Outcome.FAILED) if each.check == "GPUs"]
    assert [each.says.partition(",")[0] for each in found] == [
        "jobs get no ResourceClaims",
        "no DRA driver of Tandem publishes the GPUs of gpu-0",
    ]
    assert "gpu_claims=true" in found[0].do
    site.api.create(DEVICE_CLASSES, {"metadata": {"name": names.QUEUE_CLASS}})
    theirs = {"driver": "other", "nodeName": "gpu-0"}
    site.api.create(RESOURCE_SLICES, {"metadata": {"name": "theirs"}, "spec": theirs})
    (left,) = (each for each in of(examined(site), Outcome.FAILED) if each.check == "GPUs")
    assert "dra.enabled=true" in left.do
    ours = {"driver": "tandem.gpu", "nodeName": "gpu-0"}
    site.api.create(RESOURCE_SLICES, {"metadata": {"name": "ours"}, "spec": ours})
    assert not of(examined(site), Outcome.FAILED)
    by_hand = gpu("GPU-9", shares=0, sharesReason="DRA hands it over", draShares=2)
    site.change(GPU_NODES, "gpu-0", {"status": {"gpus": [by_hand]}})
    site.api.delete(DEVICE_CLASSES, names.QUEUE_CLASS)
    assert not of(examined(site), Outcome.FAILED)


def test_a_topology_of_kueue_that_the_settings_name_must_exist() -> None:
    site = Site()
    settings = {"extender.yaml": "admission:\n  topology_from: tas\n"}
    site.api.create(
        CONFIG_MAPS, {"metadata": {"name": "tandem-scheduler"}, "data": settings}, SYSTEM
    )
    (found,) = of(examined(site), Outcome.FAILED)
    assert found.check == "scheduler"
    assert "Kueue's Topology tas, which does not exist" in found.says
    assert "topology_from=NAME" in found.do
    for unreadable in (CONFIG_MAPS, KUEUE_TOPOLOGIES[0]):
        site.api.unreadable = {unreadable}
        assert not of(examined(site), Outcome.FAILED)
        assert not of(examined(site), Outcome.UNKNOWN)
    site.api.unreadable = set()
    rack = {"levels": [{"nodeLabel": "example.com/rack"}]}
    for version in KUEUE_TOPOLOGIES:
        site.api.create(version, {"metadata": {"name": "tas"}, "spec": rack})
        assert not of(examined(site), Outcome.FAILED)
        site.api.delete(version, "tas")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, "no nodeLabel"),
        ({"levels": [{"nodeLabel": "example.com/rack"}] * 2}, "named once"),
        ({"levels": [{"nodeLabel": "a rack"}]}, "its spec.levels: 'a rack' is no key"),
    ],
)
def test_levels_of_a_topology_that_cannot_be_used_are_reported(
    spec: dict[str, Any], says: str
) -> None:
    site = Site()
    settings = {"extender.yaml": "admission:\n  topology_from: tas\n"}
    site.api.create(
        CONFIG_MAPS, {"metadata": {"name": "tandem-scheduler"}, "data": settings}, SYSTEM
    )
    site.api.create(KUEUE_TOPOLOGIES[0], {"metadata": {"name": "tas"}, "spec": spec})
    (found,) = of(examined(site), Outcome.FAILED)
    assert found.check == "scheduler"
    assert "whose levels cannot be used" in found.says
    assert says in found.says
    assert "kubectl edit topologies.kueue.x-k8s.io tas" in found.do


@pytest.mark.parametrize(
    "text", ["", "admission: {}", "admission: [a]", "admission: {topology_from: ''}", "{a: [", "a"]
)
def test_settings_that_name_no_topology_are_fine(text: str) -> None:
    site = Site()
    data = {"extender.yaml": text} if text else {}
    site.api.create(CONFIG_MAPS, {"metadata": {"name": "tandem-scheduler"}, "data": data}, SYSTEM)
    assert not of(examined(site), Outcome.FAILED)


def test_the_driver_stays_on_a_node_until_its_last_claim_is_gone() -> None:
    site = Site()

    def said() -> list[Finding]:
        return [each for each in examined(site) if names.HAND_OVER_LABEL in each.says + each.do]

    site.api.create(DEVICE_CLASSES, {"metadata": {"name": names.GROUP}})
    assert not said()
    wanted = claims.planned("uid", "gpu-0", ["GPU-9"], by_claims=True)
    capacity = {"gpu-9": {"shares": "1"}}
    body = claims.body("c", "team", "p", "uid", 1)
    del body["metadata"]["finalizers"]
    body["status"] = {"allocation": claims.written(wanted, capacity, "2026-01-01T00:00:00Z")}
    site.api.create(RESOURCE_CLAIMS, body)
    (lost,) = said()
    assert lost.outcome is Outcome.FAILED
    assert lost.do == "kubectl label node gpu-0 tandem.gpu/hand-over=environment"

    def label(way: str) -> None:
        site.change(NODES, "gpu-0", {"metadata": {"labels": {names.HAND_OVER_LABEL: way}}})

    label("environment")
    (stays,) = said()
    assert (stays.outcome, "1 of the claims" in stays.says) == (Outcome.WARNING, True)
    site.api.delete(RESOURCE_CLAIMS, "c", "team")
    (free,) = said()
    assert (free.outcome, "may be removed" in free.says) == (Outcome.OK, True)
    label("dra-queue")
    assert not said()


def test_a_label_that_is_no_way_and_a_gpu_that_goes_over_are_named() -> None:
    site = Site()
    message = "Node gpu-0 has the label tandem.gpu/hand-over=x. Write dra or dra-queue."
    said = condition("HandOverKnown", "False", message)
    why = "it moves from environment to dra-queue: the pods that have it now are to end first"
    moving = gpu("GPU-9", shares=0, sharesReason=why)
    site.change(GPU_NODES, "gpu-0", {"status": {"conditions": [said], "gpus": [moving]}})
    found = [each for each in examined(site) if each.check == "GPUs"]
    (failed,) = of(found, Outcome.FAILED)
    assert message in failed.says
    assert "--overwrite" in failed.do
    (warned,) = of(found, Outcome.WARNING)
    assert why in warned.says


def test_a_scheduler_of_the_users_own_needs_no_lease() -> None:
    site = Site()
    site.api.delete(LEASES, names.LEASE_NAME, SYSTEM)
    containers = {"template": {"spec": {"containers": [{"name": "extender"}]}}}
    site.change(DEPLOYMENTS, "tandem-scheduler", {"spec": containers}, SYSTEM)
    assert not of(examined(site), Outcome.FAILED)


def test_what_a_tenant_may_not_read_is_unknown_and_no_failure() -> None:
    site = Site()
    site.api.unreadable = {
        NODES, GPU_NODES, RUNTIME_CLASSES, DAEMON_SETS, DEPLOYMENTS, LEASES, SECRETS, NAMESPACES,
        MUTATING_WEBHOOKS, POLICY_BINDINGS, PRIORITY_CLASSES, ENDPOINT_SLICES, ACCESS_REVIEWS,
    }  # fmt: skip
    site.api.denied = {("", "list", "gpunodes")}

    def forbidden() -> dict[str, bool]:
        raise Forbidden(403, "forbidden")

    site.server.features = forbidden
    found = examined(site)
    assert not of(found, Outcome.FAILED)
    assert {each.check for each in of(found, Outcome.OK)} >= {
        "version",
        "your rights",
        "definitions",
    }
    assert all("no right" in each.says for each in of(found, Outcome.UNKNOWN))


def test_a_secret_that_may_not_be_read_leaves_the_authority_to_judge() -> None:
    site = Site()
    site.api.unreadable = {SECRETS}
    (found,) = (each for each in examined(site) if each.check == "certificate")
    assert found.outcome is Outcome.OK
    assert "may not read the Secret" in found.says


@pytest.mark.parametrize(
    ("error", "says", "do"),
    [
        (unreachable("GET /version: refused", maybe_done=False), "does not answer", "HTTPS_PROXY"),
        (Forbidden(401, "Unauthorized"), "does not accept your credentials", "log in"),
    ],
)
def test_without_an_api_server_the_first_check_says_so_and_no_other_is_made(
    error: Exception, says: str, do: str
) -> None:
    site = Site()

    def fails() -> str:
        raise error

    site.server.version = fails
    (found,) = examined(site)
    assert found.outcome is Outcome.FAILED
    assert says in found.says
    assert do in found.do


def test_a_list_that_expires_between_its_pages_is_read_again() -> None:
    site = Site()
    pages, calls = site.api.pages, []

    def expiring(resource, namespace=None, **more):
        calls.append(resource)
        if calls.count(NODES) == 1 and resource == NODES:
            raise Gone(410, "The provided continue parameter is too old")
        return pages(resource, namespace, **more)

    site.api.pages = expiring
    assert not of(examined(site), Outcome.FAILED)
    assert calls.count(NODES) == 2


class Live:
    """The doctor's own view of a cluster, whatever client it is given."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        from tandem.kube import client, credentials

        monkeypatch.setattr(client.KubeClient, "load", lambda *_: site.api)
        monkeypatch.setattr(credentials, "context_namespace", lambda *_: "team-a")
        monkeypatch.setattr(command, "Server", lambda _: site.server)
        monkeypatch.setattr(command, "Cluster", lambda *_: site.cluster())

    def run(self, *args: str):
        return CliRunner().invoke(build_app(), ["doctor", *args])


def test_a_healthy_cluster_ends_with_status_0_and_a_broken_one_with_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site()
    live = Live(site, monkeypatch)
    answer = live.run()
    assert answer.exit_code == 0
    assert answer.stdout.splitlines()[-1] == f"{len(CHECKS)} ok"
    predictor_away(site)
    answer = live.run()
    assert answer.exit_code == 1
    (at,) = (i for i, line in enumerate(answer.stdout.splitlines()) if line.startswith("failed"))
    line, do = answer.stdout.splitlines()[at : at + 2]
    assert "predictor" in line
    assert "-> kubectl describe pods" in do


def test_json_has_every_check_and_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    no_toolkit(site)
    answer = Live(site, monkeypatch).run("--json")
    said = json.loads(answer.stdout)
    assert answer.exit_code == 1
    assert said["healthy"] is False
    assert [each["check"] for each in said["checks"] if each["outcome"] == "failed"] == [
        "container toolkit"
    ]
    assert len(said["checks"]) == len(CHECKS)


def test_a_device_plugin_that_hands_out_thousands_is_seen() -> None:
    site = Site()
    site.change(NODES, "gpu-0", {"status": {"capacity": {"nvidia.com/gpu": "1k"}}})
    (found,) = (f for f in examined(site) if f.check == "device plugin")
    assert "gpu-0: 1000 nvidia.com/gpu" in found.says


def test_what_a_node_calls_itself_reaches_no_terminal_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site()
    message = "\x1b]0;owned\x07[bold]x\x1b[2J\u202e"
    said = condition("NvmlAvailable", "False", message)
    monkeypatch.setattr("tandem.kube.memory.check", lambda *_: None)  # an earlier definition
    site.change(GPU_NODES, "gpu-0", {"status": {"conditions": [said]}})
    answer = Live(site, monkeypatch).run()
    assert "?]0;owned?[bold]x?[2J?" in answer.stdout
    assert "\x1b" not in answer.stdout
    assert "\u202e" not in answer.stdout


def test_five_thousand_nodes_are_read_once_and_named_in_short() -> None:
    site = Site()
    for index in range(5000):
        name = f"n{index}"
        site.api.create(
            NODES, {"metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true"}}}
        )
    (down,) = (f for f in examined(site) if f.check == "GPU nodes")
    assert down.says == "5,000 of 5,002 GPU nodes not ready: n0, n1, n10 and 4,997 more"
    (silent,) = (f for f in examined(site) if f.check == "reports")
    assert "and 4,997 more" in silent.says
