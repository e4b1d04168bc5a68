"""What the chart renders, without a cluster."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from typing import Any

import kubernetes_validate
import pytest
import yaml
from controlplane_binaries import program
from helm_render import CHART, ROOT, Helm, Object, render

from node_agent.config import AgentSettings
from predictor.service.config import PredictorConfig
from scheduler_extender.config import ExtenderConfig
from tandem.contracts import names

#: Kubernetes knows the objects of these groups only once others have installed them.
FOREIGN = ("monitoring.coreos.com/",)


def test_lint_finds_nothing(helm: Helm) -> None:
    answer = helm("lint", "--strict", str(CHART))
    assert answer.returncode == 0, answer.stdout


def test_what_is_made_of_code_and_chart_is_current(helm: Helm) -> None:
    helm("version")  # or the test is skipped: the manifests cannot be rendered
    answer = subprocess.run(
        [sys.executable, str(ROOT / "helm" / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_page_on_security_lists_every_port_and_no_other() -> None:
    shipped = {ExtenderConfig().verbs.port}  # on loopback, so that no manifest names it
    for manifest in sorted((ROOT / "deploy" / "manifests").glob("*.yaml")):
        shipped |= {int(port) for port in re.findall(r"containerPort: (\d+)", manifest.read_text())}
    table = (
        (ROOT / "docs" / "security.md")
        .read_text()
        .split("\n## Ports\n")[1]
        .strip()
        .split("\n\n")[0]
    )
    rows = [row.split("|")[1] for row in table.splitlines()[2:]]
    listed = {int(re.search(r"\d{4,5}", row)[0]) for row in rows}  # type: ignore[index]
    assert listed == shipped


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("scheduler.replicas", "two"),
        ("scheduler.replicaz", 2),
        ("scheduler.extender.config.max_jobs_per_gpu", 0),
        ("scheduler.extender.config.profile", "no-such-profile"),
        ("scheduler.extender.config.admission.runtime_class", "docker"),
        ("scheduler.extender.config.stale_after_s", -1),
        ("predictor.config.sandbox.memory_bytes", "lots"),
        ("agent.config.guard.mode", "shoot"),
        ("agent.namespace", "Not A Name"),
        ("agent.port", 70000),
        ("image.digests.extender", "sha256:short"),
        ("image.pullPolicy", "Sometimes"),
        ("webhook.failurePolicy", "Maybe"),
        ("webhook.certManager.issuerRef.nam", "ours"),
        ("monitoring.operator", "on"),
        ("networkPolicies.metricsFrom", "everybody"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(
    helm: Helm, tmp_path: Any, path: str, wrong: object
) -> None:
    values: Any = wrong
    for key in reversed(path.split(".")):
        values = {key: values}
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    answer = helm("template", "tandem", str(CHART), "--values", str(file))
    assert answer.returncode != 0
    parent, _, key = path.replace(".", "/").rpartition("/")
    assert f"at '/{parent}/{key}'" in answer.stderr or (
        f"at '/{parent}': additional properties '{key}' not allowed" in answer.stderr
    ), answer.stderr


@pytest.mark.parametrize(
    "key",
    [
        "namespace",
        "public",
        "verbs",
        "leader",
        "kubeconfig",
        "predictor_url",
        "predictor_token_file",
        "api",
    ],
)
def test_what_follows_from_the_chart_cannot_be_set_as_well(helm: Helm, key: str) -> None:
    answer = helm("template", "tandem", str(CHART), "--set", f"scheduler.extender.config.{key}=x")
    assert f"additional properties '{key}' not allowed" in answer.stderr


def test_a_profile_may_be_spelt_out(helm: Helm, tmp_path: Any) -> None:
    shipped = ROOT / "tandem" / "policy" / "profiles" / "tandem.yaml"
    profile = {**yaml.safe_load(shipped.read_text()), "name": "ours"}
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"scheduler": {"extender": {"config": {"profile": profile}}}}))
    answer = helm("template", "tandem", str(CHART), "--values", str(file))
    assert answer.returncode == 0, answer.stderr
    del profile["constraints"][0]["kind"]
    file.write_text(yaml.safe_dump({"scheduler": {"extender": {"config": {"profile": profile}}}}))
    answer = helm("template", "tandem", str(CHART), "--values", str(file))
    assert "/scheduler/extender/config/profile/constraints/0" in answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("minor", ["1.35", "1.36", "1.37"])
def test_every_object_is_valid_for_three_minors(rendered: list[Object], minor: str) -> None:
    objects = [o for o in rendered if not o["apiVersion"].startswith(FOREIGN)]
    definitions = [yaml.safe_load(path.read_text()) for path in sorted(CHART.glob("crds/*.yaml"))]
    for found in objects + definitions:
        kubernetes_validate.validate(found, minor, strict=True)
    assert len(objects) > 30
    broken = copy.deepcopy(objects[0])
    broken["metadata"]["lables"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, minor, strict=True)


def test_kube_scheduler_is_of_the_clusters_own_version() -> None:
    for kube, tag in (
        ("v1.33.4", "v1.33.4"),
        ("v1.34.2-gke.1000", "v1.34.2"),
        ("v1.35.0+k3s1", "v1.35.0"),
    ):
        (deployment,) = find(render(kube=kube), "Deployment", "tandem-scheduler")
        (scheduler,) = deployment["spec"]["template"]["spec"]["containers"]
        assert scheduler["image"] == f"registry.k8s.io/kube-scheduler:{tag}"


def test_everything_but_the_agent_meets_pod_security_restricted(rendered: list[Object]) -> None:
    judged = {}
    for found in rendered:
        owner = found["spec"]["jobTemplate"] if found["kind"] == "CronJob" else found
        spec = (
            found["spec"]
            if found["kind"] == "Pod"
            else owner.get("spec", {}).get("template", {}).get("spec")
        )
        if spec and "containers" in spec:
            judged[found["metadata"]["name"]] = against_restricted(spec)
    agent = judged.pop("tandem-agent")
    assert agent == [
        "hostPID",
        "hostPort: agent",
    ]
    ours = ("scheduler", "predictor", "retraining", "notifications", "test")
    assert judged == {f"tandem-{name}": [] for name in ours}


def against_restricted(spec: Object) -> list[str]:
    """Return what Pod Security `restricted` refuses in a pod, as its standard lists it."""
    wrong = [key for key in ("hostPID", "hostNetwork", "hostIPC") if spec.get(key)]
    allowed = {"configMap", "emptyDir", "secret", "projected", "downwardAPI",
               "persistentVolumeClaim"}  # fmt: skip
    wrong += [f"volume {v['name']}" for v in spec.get("volumes", ()) if not allowed & v.keys()]
    pod = spec.get("securityContext", {})
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        name, own = container["name"], container["securityContext"]
        checks = {
            "privileged": not own.get("privileged", False),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities": own["capabilities"] == {"drop": ["ALL"]},
            "runAsNonRoot": own.get("runAsNonRoot", pod.get("runAsNonRoot")) is True,
            "runAsUser": own.get("runAsUser", pod.get("runAsUser")) != 0,
            "seccompProfile": own.get("seccompProfile", {}).get("type") == "RuntimeDefault",
            "hostPort": not any("hostPort" in port for port in container.get("ports", ())),
        }
        wrong += [f"{check}: {name}" for check, fine in checks.items() if not fine]
        assert own["readOnlyRootFilesystem"] is True
    return wrong


def test_every_container_says_what_it_needs_and_is_probed(rendered: list[Object]) -> None:
    for found in rendered:
        if found["kind"] not in ("Deployment", "DaemonSet"):
            continue
        spec = found["spec"]["template"]["spec"]
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            ends_by_itself = (
                container in spec.get("initContainers", ()) and "restartPolicy" not in container
            )
            assert ends_by_itself or container["livenessProbe"]
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]
            assert ":" in container["image"]


def test_variables_of_services_do_not_become_settings(rendered: list[Object]) -> None:
    """The Service tandem-predictor would set TANDEM_PREDICTOR_PORT to `tcp://...`."""
    pods = [
        each["spec"]["template"]["spec"] for each in rendered if "template" in each.get("spec", {})
    ]
    assert len(pods) >= 3
    assert all(pod["enableServiceLinks"] is False for pod in pods)


def test_the_services_can_read_the_settings_that_they_are_given(rendered: list[Object]) -> None:
    def settings(name: str, file: str) -> Any:
        (found,) = find(rendered, "ConfigMap", name)
        return yaml.safe_load(found["data"][file])

    extender = ExtenderConfig.model_validate(settings("tandem-scheduler", "extender.yaml"))
    assert extender.public.service_names[0] == "tandem-webhook.tandem-system.svc"
    PredictorConfig.model_validate(settings("tandem-predictor", "predictor.yaml"))
    AgentSettings.model_validate({**settings("tandem-agent", "agent.yaml"), "node": "n0"})
    scheduler = settings("tandem-scheduler", "scheduler.yaml")
    assert scheduler["profiles"] == [{"schedulerName": extender.admission.scheduler_name}]
    assert scheduler["leaderElection"]["resourceName"] == names.LEASE_NAME
    assert scheduler["extenders"][0]["urlPrefix"].endswith(f":{extender.verbs.port}")


def test_trained_models_are_mounted_where_the_predictor_looks_for_them() -> None:
    (deployment,) = find(
        render("--set", "predictor.artifactsClaim=models"), "Deployment", "tandem-predictor"
    )
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert f"--artifacts={mounts['artifacts']}" in container["args"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "artifacts"]
    assert volume["persistentVolumeClaim"]["claimName"] == "models"


def test_another_namespace_is_used_everywhere() -> None:
    text = yaml.safe_dump_all(
        render("--namespace", "gpu-system", "--set", "agent.namespace=gpu-agents")
    )
    assert not re.search(r"tandem-(system|agents)", text)
    assert "system:serviceaccount:gpu-agents:tandem-agent" in text
    assert "tandem-webhook.gpu-system.svc" in text


@pytest.mark.long
def test_cert_manager_makes_the_certificate_where_it_is_asked_to() -> None:
    with_it = ("--set", "webhook.certManager.enabled=true")
    hosts = ("--set", "webhook.serviceNames={localhost,10.0.0.5}")
    objects = render(*with_it, *hosts)
    (certificate,) = find(objects, "Certificate", "tandem-webhook")
    assert certificate["spec"]["dnsNames"] == ["tandem-webhook.tandem-system.svc", "localhost"]
    assert certificate["spec"]["ipAddresses"] == ["10.0.0.5"]
    issuer = certificate["spec"]["issuerRef"]
    assert find(objects, issuer["kind"], issuer["name"])
    (webhook,) = find(objects, "MutatingWebhookConfiguration", "tandem")
    assert webhook["metadata"]["annotations"] == {
        "cert-manager.io/inject-ca-from": "tandem-system/tandem-webhook"
    }
    (config,) = find(objects, "ConfigMap", "tandem-scheduler")
    extender = ExtenderConfig.model_validate(yaml.safe_load(config["data"]["extender.yaml"]))
    (deployment,) = find(objects, "Deployment", "tandem-scheduler")
    pod = deployment["spec"]["template"]["spec"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "tls"]
    assert volume["secret"] == {"secretName": certificate["spec"]["secretName"]}
    (mount,) = [m for m in pod["initContainers"][0]["volumeMounts"] if m["name"] == "tls"]
    for file in (extender.public.tls_cert, extender.public.tls_key):
        assert str(file).startswith(mount["mountPath"])
    # What the extender no longer does it may not do.
    roles = [o for o in objects if o["kind"] in ("Role", "ClusterRole")]
    rules = [rule for role in roles for rule in role["rules"]]
    assert not [rule for rule in rules if "secrets" in rule["resources"]]
    # Readers and agents know the extender by the authority in it; no component writes it.
    assert [r["verbs"] for r in rules if "mutatingwebhookconfigurations" in r["resources"]] == [
        ["get"],
        ["get"],
    ]

    own = render(*with_it, "--set", "webhook.certManager.issuerRef.name=ours")
    assert not [o for o in own if o["kind"] == "Issuer"]
    (certificate,) = find(own, "Certificate", "tandem-webhook")
    assert certificate["spec"]["issuerRef"]["name"] == "ours"
    assert not [o for o in render() if o["apiVersion"].startswith("cert-manager.io/")]


def test_attached_to_a_scheduler_the_extender_stands_alone_and_may_do_less() -> None:
    objects = render("--set", "scheduler.attach.enabled=true")
    (deployment,) = find(objects, "Deployment", "tandem-scheduler")
    spec = deployment["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert (spec["replicas"], spec["strategy"], container["name"]) == (
        1,
        {"type": "Recreate"},
        "extender",
    )
    (config,) = find(objects, "ConfigMap", "tandem-scheduler")
    extender = ExtenderConfig.model_validate(yaml.safe_load(config["data"]["extender.yaml"]))
    assert extender.leader.always
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    for file in (extender.verbs.tls_cert, extender.verbs.tls_key, extender.verbs.client_ca):
        assert str(file).startswith(mounts["verbs"])
    given = yaml.safe_load(config["data"]["attach.yaml"])
    assert given["profiles"] == [{"schedulerName": extender.admission.scheduler_name}]
    (service,) = find(objects, "Service", "tandem-extender")
    (port,) = service["spec"]["ports"]
    assert given["extenders"][0]["urlPrefix"].endswith(f".svc:{port['port']}")
    assert port["port"] == extender.verbs.port
    bound = {o["roleRef"]["name"] for o in objects if o["kind"].endswith("RoleBinding")}
    services, readers = {"tandem-extender", "tandem-agent", "tandem-predictor"}, {"tandem-api"}
    accounts = {"tandem-view", "tandem-edit"}  # for tandem-reader and tandem-editor
    assert bound == services | readers | accounts
    rules = [rule for o in objects if o["kind"].endswith("Role") for rule in o["rules"]]
    assert not [rule for rule in rules if "leases" in rule["resources"]]


def test_objects_of_others_are_made_only_where_they_are_known() -> None:
    assert not [o for o in render() if o["apiVersion"].startswith(FOREIGN)]
    kinds = {o["kind"] for o in render("--set", "monitoring.operator=always")}
    assert kinds >= {"ServiceMonitor", "PodMonitor", "PrometheusRule"}


@pytest.mark.parametrize("overlay", ["registry", "single-replica"])
def test_overlays_change_what_they_say(overlay: str) -> None:
    built = subprocess.run(
        [program("kubectl"), "kustomize", str(ROOT / "deploy" / "kustomize" / overlay)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    objects = list(yaml.safe_load_all(built))
    (deployment,) = find(objects, "Deployment", "tandem-scheduler")
    (daemons,) = find(objects, "DaemonSet", "tandem-agent")
    agent = daemons["spec"]["template"]["spec"]
    if overlay == "registry":
        assert agent["containers"][0]["image"].startswith("registry.example.com/team/tandem-agent:")
    else:
        assert deployment["spec"]["replicas"] == 1
        assert not {"nodeSelector", "runtimeClassName"} & agent.keys()
    assert len(find(objects, "CustomResourceDefinition", "gpujobs.tandem.gpu")) == 1


def find(objects: list[Object], kind: str, name: str, namespace: str | None = None) -> list[Object]:
    return [
        o
        for o in objects
        if (o["kind"], o["metadata"]["name"]) == (kind, name)
        and namespace in (None, o["metadata"].get("namespace"))
    ]


def test_the_install_page_names_what_the_code_names() -> None:
    text = (ROOT / "docs" / "install.md").read_text()
    for name in (names.NAMESPACE, names.AGENT_NAMESPACE, names.ADOPT_LABEL, names.GPU_TAINT):
        assert name in text


def notes(helm: Helm, namespace: str, *args: str) -> str:
    """Return what `helm install` says at its end."""
    options = ("--dry-run=client", "--namespace", namespace, *args)
    answer = helm("install", "tandem", str(CHART), *options)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.partition("\nNOTES:\n")[2]


def test_the_notes_of_an_installation_end_with_the_next_three_steps(helm: Helm) -> None:
    """`tests/cli/test_cli_live.py` carries them out."""
    said = notes(helm, names.NAMESPACE)
    steps = said.partition("The next three steps:")[2]
    assert re.findall(r"(?m)^(\d)\. ", steps) == ["1", "2", "3"]
    commands = re.findall(r"(?m)^ {5}(\S.*)$", steps)
    assert [command.split()[0] for command in commands] == [
        "kubectl", "tandem", "kubectl", "kubectl", "kubectl", "tandem",
    ]  # fmt: skip
    assert steps.rstrip().endswith("tandem top"), "nothing comes after them"
    elsewhere = notes(helm, "gpus", "--set", "agent.namespace=gpu-agents")
    assert "tandem doctor --tandem-namespace gpus --agent-namespace gpu-agents" in elsewhere
    assert elsewhere.rstrip().endswith("tandem top --tandem-namespace gpus")
    assert names.NAMESPACE not in elsewhere
