"""Pods at their creation: what is changed, what is refused."""

import pytest
from admission_cases import admit, ask, container, fields, job, pod
from pydantic import ValidationError

from scheduler_extender.admission.config import AdmissionConfig
from tandem import progress
from tandem.contracts import names

DEVICES = {
    "name": "NVIDIA_VISIBLE_DEVICES",
    "valueFrom": {
        "fieldRef": {
            "apiVersion": "v1",
            "fieldPath": "metadata.annotations['tandem.gpu/visible-devices']",
        }
    },
}
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
STEPS = {
    "name": "TANDEM_ACCUMULATION_STEPS",
    "valueFrom": {
        "fieldRef": {
            "apiVersion": "v1",
            "fieldPath": "metadata.annotations['tandem.gpu/accumulation-steps']",
        }
    },
}
HOST_IP = {
    "name": "TANDEM_HOST_IP",
    "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.hostIP"}},
}
AGENT_URL = {"name": "TANDEM_AGENT_URL", "value": "http://$(TANDEM_HOST_IP):9405"}
PROGRESS = [HOST_IP, AGENT_URL]
SHARING = [
    {"name": "XLA_PYTHON_CLIENT_PREALLOCATE", "value": "false"},
    {"name": "TF_FORCE_GPU_ALLOW_GROWTH", "value": "true"},
    {"name": "XLA_PYTHON_CLIENT_MEM_FRACTION", "value": "$(TANDEM_MEMORY_FRACTION)"},
    {
        "name": "PYTORCH_ALLOC_CONF",
        "valueFrom": {
            "fieldRef": {
                "apiVersion": "v1",
                "fieldPath": "metadata.annotations['tandem.gpu/pytorch-alloc-conf']",
            }
        },
    },
]
PYTORCH_LIMITS = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}
JAX_LIMITS = {"XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"}
LIMIT = {
    "name": "TANDEM_MEMORY_FRACTION",
    "valueFrom": {
        "fieldRef": {
            "apiVersion": "v1",
            "fieldPath": "metadata.annotations['tandem.gpu/memory-fraction']",
        }
    },
}


def test_a_pod_that_asks_for_no_gpu_is_left_as_it_is():
    verdict = ask(pod(container(), annotations={"tandem.gpu/nonsense": "x"}))
    assert (verdict.errors, verdict.patch, verdict.warnings) == ([], [], [])


def test_a_pod_of_ours_is_gated_and_given_to_our_scheduler():
    spec = admit(pod())["spec"]
    assert spec["schedulerName"] == "tandem-scheduler"
    assert spec["schedulingGates"] == [{"name": "tandem.gpu/queue"}]
    assert spec["tolerations"][-1] == {
        "key": "tandem.gpu/gpu",
        "operator": "Exists",
        "effect": "NoSchedule",
    }
    assert spec["priorityClassName"] == "tandem-training"
    assert "priority" not in spec, "the API server derives it from the class anew"
    assert "preemptionPolicy" not in spec
    assert "runtimeClassName" not in spec


def test_every_container_gets_the_variable_of_what_it_may_see():
    spec = admit(
        pod(
            container("sidecar", env=[{"name": "A", "value": "1"}]),
            container("main", gpus="2", env=[{"name": "B", "value": "$(NVIDIA_VISIBLE_DEVICES)"}]),
            initContainers=[container("fetch")],
        )
    )["spec"]
    sidecar, main = spec["containers"]
    assert sidecar["env"] == [VOID, {"name": "A", "value": "1"}]
    own = {"name": "B", "value": "$(NVIDIA_VISIBLE_DEVICES)"}
    assert main["env"] == [DEVICES, LIMIT, *SHARING, *PROGRESS, own]
    assert spec["initContainers"][0]["env"] == [VOID]


@pytest.mark.parametrize("env", [None, [{"name": "B", "value": "1"}]])
def test_accumulation_steps_are_handed_on_where_they_are_wanted(env):
    extra = {"env": env} if env else {}
    wants = {names.ACCUMULATION: "true"}
    spec = admit(pod(container(gpus="1", **extra), annotations=wants))["spec"]
    assert spec["containers"][0]["env"] == [
        DEVICES,
        STEPS,
        LIMIT,
        *SHARING,
        *PROGRESS,
        *(env or []),
    ]
    spec = admit(pod(annotations={names.ACCUMULATION: "false"}))["spec"]
    assert spec["containers"][0]["env"] == [DEVICES, LIMIT, *SHARING, *PROGRESS]


@pytest.mark.parametrize("adopt", [False, True])
def test_admitting_twice_changes_nothing_more(adopt):
    body = pod(
        container(gpus="1", resource=names.NVIDIA_RESOURCE if adopt else names.RESOURCE),
        container("other"),
        annotations={} if adopt else {names.ACCUMULATION: "true"},
    )
    once = admit(body, adopt=adopt)
    verdict = ask(once, adopt=adopt)
    assert (verdict.errors, verdict.patch) == ([], [])


@pytest.mark.parametrize(
    ("mode", "has_class", "expected"),
    [
        ("auto", False, None),
        ("auto", True, "nvidia"),
        ("nvidia", False, "nvidia"),
        ("none", True, None),
    ],
)
def test_runtime_class(mode, has_class, expected):
    config = AdmissionConfig(runtime_class=mode)
    spec = admit(pod(), config=config, has_runtime_class=has_class)["spec"]
    assert spec.get("runtimeClassName") == expected
    own = admit(pod(runtimeClassName="kata"), config=config, has_runtime_class=has_class)["spec"]
    assert own["runtimeClassName"] == "kata"


def test_priority_class_can_be_left_to_others():
    spec = admit(pod(), config=AdmissionConfig(priority_class=""))["spec"]
    assert "priorityClassName" not in spec
    assert spec["priority"] == 0


def test_another_priority_class_gives_way_and_its_owner_is_warned():
    body = pod(priorityClassName="urgent", priority=1000000)
    assert admit(body)["spec"]["priorityClassName"] == "tandem-training"
    (warning,) = ask(body).warnings
    assert "urgent" in warning
    assert "tandem-training" in warning


@pytest.mark.parametrize("own", [{}, {"volumes": [{"name": "data", "emptyDir": {}}]}])
def test_a_job_may_tell_its_progress_to_the_agent_of_its_node(own):
    body = pod(container("sidecar"), container("main", gpus="1"), **own)
    spec = admit(body)["spec"]
    sidecar, main = spec["containers"]
    assert main["volumeMounts"] == [
        {"name": "tandem-token", "mountPath": "/var/run/secrets/tandem.gpu", "readOnly": True}
    ]
    (source,) = spec["volumes"][-1]["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "tandem-agent"
    assert len(spec["volumes"]) == 1 + len(own)
    assert sidecar["env"] == [VOID]
    assert "volumeMounts" not in sidecar


@pytest.mark.parametrize(
    "own",
    [
        {"env": [{"name": "TANDEM_AGENT_URL", "value": ""}]},
        {"volumeMounts": [{"name": "own", "mountPath": "/var/run/secrets/tandem.gpu"}]},
    ],
)
def test_who_has_set_a_part_of_it_is_left_alone(own):
    spec = admit(pod(container(gpus="1", **own)))["spec"]
    assert HOST_IP not in spec["containers"][0]["env"]
    assert "volumes" not in spec


def test_nothing_is_set_for_progress_where_it_is_switched_off():
    spec = admit(pod(), config=AdmissionConfig(agent_port=0))["spec"]
    assert spec["containers"][0]["env"] == [DEVICES, LIMIT, *SHARING]
    assert "volumes" not in spec


def test_the_helper_reads_what_is_set():
    assert (
        names.AGENT_URL_ENV,
        f"{names.TOKEN_FOLDER}/{names.TOKEN_NAME}",
    ) == (progress.AGENT_URL, progress.TOKEN_PATH)


# --- memory that frameworks take at their start ---------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, SHARING),
        ({names.MEMORY: "8Gi"}, SHARING),
        ({names.EXCLUSIVE: "false"}, SHARING),
        ({names.EXCLUSIVE: "true"}, []),
    ],
)
def test_frameworks_leave_memory_to_the_other_jobs_of_a_gpu(annotations, expected):
    body = pod(container(gpus="1"), container("logs"), annotations=annotations)
    main, logs = admit(body)["spec"]["containers"]
    assert [each for each in main["env"] if each in SHARING] == expected
    assert logs["env"] == [VOID], "no GPU, no framework"


def test_a_limit_of_memory_is_named_before_the_variable_that_refers_to_it():
    env = [each["name"] for each in admit(pod())["spec"]["containers"][0]["env"]]
    assert env.index("TANDEM_MEMORY_FRACTION") < env.index("XLA_PYTHON_CLIENT_MEM_FRACTION")


@pytest.mark.parametrize(
    ("annotations", "config"),
    [({names.EXCLUSIVE: "true"}, {}), ({}, {"memory_limits": False})],
)
def test_no_limit_of_memory_where_the_job_is_alone_or_limits_are_switched_off(annotations, config):
    spec = admit(pod(annotations=annotations), config=AdmissionConfig(**config))["spec"]
    warned = {each["name"] for each in spec["containers"][0]["env"]}
    assert not warned & {"TANDEM_MEMORY_FRACTION", *JAX_LIMITS, *PYTORCH_LIMITS}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9"),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", ".5"),
        ("XLA_CLIENT_MEM_FRACTION", "0.9"),
        ("PYTORCH_ALLOC_CONF", "per_process_memory_fraction:0.9"),
        ("PYTORCH_ALLOC_CONF", ""),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("PYTORCH_HIP_ALLOC_CONF", "expandable_segments:True"),
    ],
)
def test_a_limit_of_the_user_s_own_is_kept_with_a_warning(name, value):
    """Under each name: JAX ends with an error where it finds both of its names set."""
    own = {"name": name, "value": value}
    body = pod(container(gpus="1", env=[own]))
    env = admit(body)["spec"]["containers"][0]["env"]
    same, other = (
        (JAX_LIMITS, PYTORCH_LIMITS) if name in JAX_LIMITS else (PYTORCH_LIMITS, JAX_LIMITS)
    )
    assert [each for each in env if each["name"] in same] == [own]
    assert len([each for each in env if each["name"] in other]) == 1, "the other framework's limit"
    (warning,) = ask(body).warnings
    assert warning.startswith(f"spec.containers[0].env[0]: {name}={value} takes the place")
    assert ("import tandem.progress" in warning) is (name in PYTORCH_LIMITS)
    (warned,) = ask(job(body)).warnings
    assert warned.startswith("spec.template.spec.containers[0].env[0]: "), "at apply, on the Job"
    assert not ask(body, config=AdmissionConfig(memory_limits=False)).warnings
    alone = pod(container(gpus="1", env=[own]), annotations={names.EXCLUSIVE: "true"})
    assert not ask(alone).warnings


def test_a_limit_from_elsewhere_is_kept_as_well():
    own = {"name": "PYTORCH_CUDA_ALLOC_CONF", "valueFrom": {"configMapKeyRef": {}}}
    body = pod(container(gpus="1", env=[own]))
    env = admit(body)["spec"]["containers"][0]["env"]
    assert [each for each in env if each["name"] in PYTORCH_LIMITS] == [own]
    (warning,) = ask(body).warnings
    assert "PYTORCH_CUDA_ALLOC_CONF=(from elsewhere) takes the place" in warning


@pytest.mark.parametrize("value", [{"value": "true"}, {"valueFrom": {"configMapKeyRef": {}}}])
def test_a_value_of_the_user_s_own_takes_precedence_and_causes_a_warning(value):
    own = {"name": "XLA_PYTHON_CLIENT_PREALLOCATE", **value}
    body = pod(container(gpus="1", env=[own]))
    env = admit(body)["spec"]["containers"][0]["env"]
    assert [each for each in env if each["name"] == own["name"]] == [own]
    assert SHARING[1] in env
    (warning,) = ask(body).warnings
    assert warning.startswith("spec.containers[0].env[0]: XLA_PYTHON_CLIENT_PREALLOCATE=")
    (warned,) = ask(job(body)).warnings
    assert warned.startswith("spec.template.spec.containers[0].env[0]: "), "at apply, on the Job"


@pytest.mark.parametrize(
    ("own", "annotations"),
    [
        ({"name": "XLA_PYTHON_CLIENT_PREALLOCATE", "value": "false"}, {}),
        ({"name": "TF_FORCE_GPU_ALLOW_GROWTH", "value": "false"}, {names.EXCLUSIVE: "true"}),
    ],
)
def test_a_harmless_value_causes_no_warning(own, annotations):
    assert ask(pod(container(gpus="1", env=[own]), annotations=annotations)).warnings == []


def host_path(path):
    return {"name": "of-the-node", "hostPath": {"path": path}}


@pytest.mark.parametrize(
    "path",
    ["/dev/shm", "/data", "/data/", "//data/./sets/1", "/mnt/data", "/mnt/disks/ssd0", "/scratch",
     "/srv/checkpoints/a", "/etc/localtime", "/dev/infiniband/uverbs0"],
)  # fmt: skip
def test_folders_of_data_of_the_node_may_be_mounted(path):
    assert not ask(pod(volumes=[host_path(path)])).errors


def test_an_operator_chooses_what_may_be_mounted_of_a_node():
    config = AdmissionConfig(host_paths=("/opt/tools", "/var/lib/team/*"))

    def refused(path):
        return fields(ask(pod(volumes=[host_path(path)]), config=config))

    for path in ("/opt/tools", "/var/lib/team", "/var/lib/team/a/b"):
        assert refused(path) == [], path
    for path in ("/opt/tools/a", "/opt", "/var/lib", "/var/lib/teams", "/data",
                 "/var/lib/team/../kubelet"):  # fmt: skip
        assert refused(path) == ["spec.volumes[0].hostPath.path"], path
    everything = AdmissionConfig(host_paths=("/*",))
    assert not ask(pod(volumes=[host_path("/"), host_path("/opt/x")]), config=everything).errors


@pytest.mark.parametrize(
    "path", ["data", "/", "", "/a/", "/a//b", "/a/../b", "/a/*/b", '/a"', "/."]
)
def test_a_path_that_the_policy_would_not_compare_is_refused(path):
    with pytest.raises(ValidationError):
        AdmissionConfig(host_paths=(path,))


@pytest.mark.parametrize(
    ("body", "field", "allowed"),
    [
        (
            pod(container(gpus="1"), container("b", gpus="1")),
            "spec.containers[1].resources.limits[tandem.gpu/gpu]",
            "only one container",
        ),
        (
            pod(container("b"), initContainers=[container("a", gpus="1")]),
            "spec.initContainers[0].resources.limits[tandem.gpu/gpu]",
            "only an ordinary container",
        ),
        (
            pod(container(gpus="65")),
            "spec.containers[0].resources.limits[tandem.gpu/gpu]",
            "from 1 to 64",
        ),
        (
            pod(container(gpus="500m")),
            "spec.containers[0].resources.limits[tandem.gpu/gpu]",
            "whole number",
        ),
        (
            pod(container(resources={"requests": {names.RESOURCE: "1"}})),
            "spec.containers[0].resources.requests[tandem.gpu/gpu]",
            "under resources.limits",
        ),
        (
            pod(
                container(
                    resources={"limits": {names.RESOURCE: "2"}, "requests": {names.RESOURCE: 1}}
                )
            ),
            "spec.containers[0].resources.limits[tandem.gpu/gpu]",
            "the same in limits and requests",
        ),
        (
            pod(container(gpus="1"), container("b", gpus="1", resource=names.NVIDIA_RESOURCE)),
            "spec.containers[1].resources.limits[nvidia.com/gpu]",
            "no GPUs another way",
        ),
        (
            pod(container(gpus="1", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])),
            "spec.containers[0].env[0]",
            "Tandem alone",
        ),
        (
            pod(container(gpus="1", env=[{"name": "TANDEM_MEMORY_FRACTION", "value": "1"}])),
            "spec.containers[0].env[0]",
            "Tandem alone",
        ),
        (
            pod(container(gpus="1", env=[{"name": "TANDEM_ACCUMULATION_STEPS", "value": "1"}])),
            "spec.containers[0].env[0]",
            "Tandem alone",
        ),
        (
            pod(container(gpus="1"), container("b", env=[DEVICES])),
            "spec.containers[1].env[0]",
            "Tandem alone",
        ),
        (
            pod(container(gpus="1"), initContainers=[container("a", env=[DEVICES])]),
            "spec.initContainers[0].env[0]",
            "Tandem alone",
        ),
        (
            pod(container(gpus="1", securityContext={"privileged": True})),
            "spec.containers[0].securityContext.privileged",
            "sees every GPU",
        ),
        (
            pod(volumes=[{"name": "x", "emptyDir": {}}, host_path("//dev/./nvidia0")]),
            "spec.volumes[1].hostPath.path",
            "an administrator has allowed",
        ),
        (pod(volumes=[host_path("/")]), "spec.volumes[0].hostPath.path", "admission.host_paths"),
        (
            pod(volumes=[host_path("/var/run/nvidia-persistenced/socket")]),
            "spec.volumes[0].hostPath.path",
            "an administrator has allowed",
        ),
        (
            pod(
                container(
                    gpus="1",
                    volumeMounts=[
                        {"name": "x", "mountPath": "/var/run//nvidia-container-devices/all"}
                    ],
                ),
                volumes=[{"name": "x", "emptyDir": {}}],
            ),
            "spec.containers[0].volumeMounts[0].mountPath",
            "not chosen by mounts",
        ),
        (
            pod(annotations={"cdi.k8s.io/gpu": "nvidia.com/gpu=all"}),
            "metadata.annotations[cdi.k8s.io/gpu]",
            "devices are not given by annotations",
        ),
        (pod(nodeName="n0"), "spec.nodeName", "scheduler chooses"),
        (pod(schedulerName="volcano"), "spec.schedulerName", "tandem-scheduler"),
        (
            pod(annotations={names.VISIBLE_DEVICES: "GPU-1"}),
            "metadata.annotations[tandem.gpu/visible-devices]",
            "Tandem alone",
        ),
        (
            pod(annotations={names.EPOCH: "7"}),
            "metadata.annotations[tandem.gpu/epoch]",
            "Tandem alone",
        ),
        (
            pod(annotations={"tandem.gpu/memmory": "1Gi"}),
            "metadata.annotations[tandem.gpu/memmory]",
            "did you mean tandem.gpu/memory",
        ),
        (
            pod(annotations={names.MEMORY: "12 gigs"}),
            "metadata.annotations[tandem.gpu/memory]",
            "such as 12Gi",
        ),
        (
            pod(terminationGracePeriodSeconds=3601),
            "spec.terminationGracePeriodSeconds",
            "write 3600 or less",
        ),
        (
            pod(terminationGracePeriodSeconds=2**31 - 1),
            "spec.terminationGracePeriodSeconds",
            "keeps them until it has ended",
        ),
    ],
)
def test_refused_with_field_and_what_is_allowed(body, field, allowed):
    verdict = ask(body)
    assert fields(verdict) == [field]
    assert allowed in verdict.errors[0].allowed
    assert verdict.patch == []


def test_the_time_to_end_is_bounded_by_what_is_set_and_for_pods_with_gpus_alone():
    longer, config = (
        pod(terminationGracePeriodSeconds=7200),
        AdmissionConfig(max_termination_grace_s=7200),
    )
    assert fields(ask(longer, config=config)) == []
    assert fields(ask(pod(terminationGracePeriodSeconds=3600))) == []
    assert fields(ask(pod(container(), terminationGracePeriodSeconds=7200))) == []


SECURITY = [
    ({"privileged": True}, "privileged"),
    ({"capabilities": {"add": ["IPC_LOCK", "SYS_ADMIN"]}}, "capabilities.add[1]"),
    ({"capabilities": {"add": ["cap_sys_admin"]}}, "capabilities.add[0]"),
    ({"capabilities": {"add": ["ALL"]}}, "capabilities.add[0]"),
    ({"procMount": "Unmasked"}, "procMount"),
]


@pytest.mark.parametrize(("security", "field"), SECURITY)
@pytest.mark.parametrize(
    ("body", "at"),
    [
        (lambda c: pod(container(gpus="1"), c), "spec.containers[1]"),
        (lambda c: pod(initContainers=[c]), "spec.initContainers[0]"),
        (lambda c: pod(ephemeralContainers=[c]), "spec.ephemeralContainers[0]"),
    ],
    ids=["sidecar", "init", "ephemeral"],
)
def test_no_container_next_to_gpus_leaves_its_isolation(body, at, security, field):
    verdict = ask(body(container("other", securityContext=security)))
    assert fields(verdict) == [f"{at}.securityContext.{field}"]
    assert "leave it out" in verdict.errors[0].allowed


@pytest.mark.parametrize(
    "capability",
    ["ALL", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "DAC_READ_SEARCH", "BPF", "SYS_BOOT",
     "MAC_ADMIN", "CAP_SYS_RAWIO", "cap_bpf", "all"],
)  # fmt: skip
def test_each_capability_with_which_a_container_reaches_devices_is_refused(capability):
    body = pod(container(gpus="1", securityContext={"capabilities": {"add": [capability]}}))
    assert fields(ask(body)) == ["spec.containers[0].securityContext.capabilities.add[0]"]


@pytest.mark.parametrize(
    "name",
    ["cdi.k8s.io", "cdi.k8s.io/gpu", "cdi.k8s.io/vendor_gpu", "nvidia.cdi.k8s.io/container.main",
     "devices.nri.io", "devices.nri.io/pod", "devices.nri.io/container.main", "mounts.nri.io/pod",
     "cdi-devices.nri.io/container.main", "cdi.nri.io/pod", "devices.noderesource.dev/pod",
     "cdi-devices.noderesource.dev", "devices.gke.io/container.main", "io.kubernetes.cri-o.Devices",
     "io.kubernetes.cri-o.Devices/main", "devices.crio.io", "devices.crio.io/main"],
)  # fmt: skip
@pytest.mark.parametrize("gpus", [{"annotations": {}}, {"annotations": {names.MEMORY: "1Gi"}}])
def test_gpus_are_not_taken_by_annotations(name, gpus):
    notes = gpus["annotations"] | {name: "nvidia.com/gpu=all"}
    verdict = ask(pod(annotations=notes))
    assert fields(verdict) == [f"metadata.annotations[{name}]"]
    assert verdict.errors[0].value == "nvidia.com/gpu=all"
    assert fields(ask(job(pod(annotations=notes)))) == [
        f"spec.template.metadata.annotations[{name}]"
    ]


@pytest.mark.parametrize(
    ("devices", "fine"),
    [("", True), ("/dev/fuse", True), ("/dev/fuse:/dev/fuse:rwm, /dev/net/tun", True),
     ("/dev/nvidia0", False), ("/dev/fuse,/dev/nvidia0:/dev/fuse", False),
     ("/dev/fuse/../nvidia0", False), ("/dev/char/195:0", False), (" " * 200_000 + "!", False)],
    ids=range(8),
)  # fmt: skip
def test_devices_of_cri_o_that_are_no_gpus_are_let_through(devices, fine):
    verdict = ask(pod(annotations={"io.kubernetes.cri-o.Devices": devices}))
    assert (verdict.errors == []) is fine


def test_annotations_of_others_that_only_resemble_those_are_let_through():
    notes = {"example.com/cdi.k8s.io": "x", "sidecar.istio.io/inject": "false",
             "net-devices.nri.io/pod": "eth1", "io.kubernetes.cri-o.ShmSize": "1Gi"}  # fmt: skip
    assert not ask(pod(annotations=notes)).errors


@pytest.mark.parametrize(
    "resource",
    ["nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb.shared",
     "nvidia.com/a100.shared", "nvidia.com/gpumem",
     "deviceclass.resource.kubernetes.io/gpu.nvidia.com",
     "deviceclass.resource.kubernetes.io/mig.nvidia.com"],
)  # fmt: skip
@pytest.mark.parametrize("section", ["limits", "requests"])
def test_gpus_are_not_taken_by_another_resource(resource, section):
    body = pod(container("other", resources={section: {resource: "1"}}), container(gpus="1"))
    assert fields(ask(body)) == [f"spec.containers[0].resources.{section}[{resource}]"]
    init = pod(initContainers=[container("other", resources={section: {resource: "1"}})])
    assert fields(ask(init)) == [f"spec.initContainers[0].resources.{section}[{resource}]"]
    none = pod(container("other", resources={section: {resource: "0"}}), container(gpus="1"))
    assert ask(none).errors == []


@pytest.mark.parametrize("resource", ["nvidia.com/hostdev", "nvidia.com/mlnxnics", "rdma/hca"])
def test_network_cards_may_be_asked_for(resource):
    assert (
        ask(pod(container("other", gpus="1", resource=resource), container(gpus="1"))).errors == []
    )


def test_devices_are_not_taken_by_claims_unless_an_operator_allows_it():
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    body = pod(resourceClaims=claims)
    assert fields(ask(body)) == ["spec.resourceClaims[0]"]
    assert fields(ask(job(body))) == ["spec.template.spec.resourceClaims[0]"]
    assert ask(body, config=AdmissionConfig(resource_claims="allow")).errors == []
    assert ask(pod(container(), resourceClaims=claims)).errors == [], "no pod of ours"


@pytest.mark.parametrize("zero", ["0", 0, "0k", "0.0"])
@pytest.mark.parametrize("resource", [names.RESOURCE, names.NVIDIA_RESOURCE])
@pytest.mark.parametrize("adopt", [False, True])
@pytest.mark.parametrize("sections", [("limits",), ("limits", "requests"), ("requests",)])
def test_a_count_of_0_asks_for_nothing(zero, resource, adopt, sections):
    nothing = container("launcher", resources={name: {resource: zero} for name in sections})
    launcher = pod(nothing)
    verdict = ask(launcher, adopt=adopt)
    assert (verdict.errors, verdict.patch) == ([], [])
    assert ask(job(launcher), adopt=adopt).errors == []
    for body in (
        pod(nothing, container(gpus="1")),
        pod(container(gpus="1"), nothing),
        pod(initContainers=[nothing]),
    ):
        spec = admit(body, adopt=adopt)["spec"]
        of_each = {c["name"]: c for c in spec["containers"] + spec.get("initContainers", [])}
        assert of_each["launcher"]["resources"] == nothing["resources"]
        assert of_each["launcher"]["env"] == [VOID]
        assert of_each["main"]["env"][0] == DEVICES
    sidecar = pod(nothing, schedulerName="tandem-scheduler")
    assert fields(ask(sidecar, adopt=adopt)) == ["spec.schedulerName"]


def test_an_amount_without_a_value_asks_for_nothing():
    """`nvidia.com/gpu:` as a chart renders an empty value; the API server reads null as 0."""
    empty = container("other", resources={"limits": {names.RESOURCE: None, "cpu": "2"}})
    for body in (job(pod(empty)), job(pod(empty, container(gpus="1")))):
        assert ask(body).errors == []
    noted = job(pod(annotations={"example.com/note": None}))
    assert ask(noted).errors == []
    unset = job(pod(annotations={names.MEMORY: None}))
    assert fields(ask(unset)) == [f"spec.template.metadata.annotations[{names.MEMORY}]"]


@pytest.mark.parametrize("ours", [names.RESOURCE, names.NVIDIA_RESOURCE])
def test_a_count_of_0_with_the_other_resource_of_the_same_container(ours):
    (other,) = {names.RESOURCE, names.NVIDIA_RESOURCE} - {ours}
    amounts = {ours: "2", other: "0"}
    body = pod(container(resources={"limits": dict(amounts), "requests": dict(amounts)}))
    resources = admit(body, adopt=True)["spec"]["containers"][0]["resources"]
    for section in ("limits", "requests"):
        assert resources[section][names.RESOURCE] == "2"
        assert resources[section].get(names.NVIDIA_RESOURCE, "0") == "0"


@pytest.mark.parametrize(
    "path",
    [
        "/var/run/nvidia-container-devices",
        "/x/nvidia-container-devices/all",
        "/./nvidia-container-devices",
    ],
)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_gpus_are_not_chosen_by_mounts_in_any_container(path, kind):
    mounts = container("other", volumeMounts=[{"name": "x", "mountPath": path}])
    body = (
        pod(container(gpus="1"), mounts) if kind == "containers" else pod(initContainers=[mounts])
    )
    index = 1 if kind == "containers" else 0
    assert fields(ask(body)) == [f"spec.{kind}[{index}].volumeMounts[0].mountPath"]


def test_everything_that_is_wrong_with_a_pod_is_said_at_once():
    body = pod(
        container(gpus="1", securityContext={"privileged": True}),
        annotations={"cdi.k8s.io/x": "a"},
        volumes=[host_path("/dev"), host_path("/data"), host_path("/proc")],
        hostPID=True,
        nodeName="n0",
    )
    assert sorted(fields(ask(body))) == sorted(
        ["spec.nodeName", "metadata.annotations[cdi.k8s.io/x]", "spec.hostPID",
         "spec.containers[0].securityContext.privileged", "spec.volumes[0].hostPath.path",
         "spec.volumes[2].hostPath.path"]
    )  # fmt: skip


def test_what_no_pod_with_gpus_may_is_nothing_to_a_pod_without():
    body = pod(
        container(securityContext={"privileged": True}),
        annotations={"cdi.k8s.io/x": "a"},
        volumes=[host_path("/dev")],
        hostPID=True,
    )
    assert ask(body).errors == []


@pytest.mark.parametrize(
    ("count", "fits"),
    [
        ("1", True),
        ("64", True),
        ("65", False),
        ("1k", False),
        ("-1", False),
        ("1e0", True),
        ("1.5", False),
        ("two", False),
    ],
)
def test_a_pod_asks_for_a_whole_number_of_gpus_from_1_to_64(count, fits):
    assert (fields(ask(pod(container(gpus=count)))) == []) is fits


def test_capabilities_that_reach_no_device_are_let_through():
    security = {"capabilities": {"add": ["IPC_LOCK", "SYS_PTRACE", "NET_ADMIN"], "drop": ["ALL"]}}
    assert not ask(pod(container(gpus="1", securityContext=security))).errors


def test_a_pod_with_gpus_does_not_share_the_processes_of_its_node():
    assert fields(ask(pod(hostPID=True))) == ["spec.hostPID"]
    assert not ask(pod(hostPID=False)).errors


@pytest.mark.parametrize(
    "path",
    [
        "/", "//", "/.", "/dev", "/etc", "/run", "/var", "/var/run", "/var/lib", "/usr", "/boot",
        "/root", "/dev/", "/./dev/.", "/proc", "/proc/1/root", "/sys", "/sys/fs/cgroup",
        "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-caps/nvidia-cap1",
        "/dev/char", "/dev/block", "/dev/dri", "/dev/dri/renderD128", "/dev/vfio/1", "/dev/mem",
        "/dev/kmem", "/dev/port", "/run/nvidia", "/var/run/nvidia", "/run/cdi", "/var/run/cdi",
        "/run/containerd/containerd.sock", "/var/run/crio/crio.sock", "/run/docker.sock",
        "/var/run/docker.sock", "/run/k3s/containerd", "/run/cri-dockerd.sock",
        "/run/systemd/private", "/run/dbus/system_bus_socket", "/etc/cdi", "/etc/nvidia",
        "/etc/nvidia-container-runtime", "/etc/containerd/config.toml", "/etc/crio",
        "/etc/docker/daemon.json", "/etc/kubernetes/manifests", "/etc/systemd/system",
        "/etc/cron.d", "/etc/ld.so.preload", "/var/lib/kubelet", "/var/lib/kubelet/pods",
        "/var/lib/kubelet/device-plugins/kubelet.sock", "/var/lib/containerd",
        "/var/lib/containers", "/var/lib/docker", "/var/lib/rancher/k3s", "/usr/local/nvidia",
        "/run/k0s", "/run/nri", "/var/lib/k0s", "/opt/cni/bin", "/opt/nri/plugins", "/usr/bin",
        "/home/kubernetes/bin", "/mnt/stateful_partition", "/lib/modules", "/var/log", "/tmp",
        "/data/../etc", "/database",
    ],
)  # fmt: skip
def test_other_ways_to_the_node_s_devices_are_refused(path):
    assert fields(ask(pod(volumes=[host_path(path)]))) == ["spec.volumes[0].hostPath.path"]


# --- our scheduler without GPUs ---------------------------------------------------------------


@pytest.mark.parametrize("adopt", [False, True])
def test_our_scheduler_is_refused_to_pods_without_gpus(adopt):
    body = pod(container(), schedulerName="tandem-scheduler")
    for asked, field in ((body, "spec"), (job(body), "spec.template.spec")):
        verdict = ask(asked, adopt=adopt)
        assert fields(verdict) == [f"{field}.schedulerName"]
        assert "only pods that request tandem.gpu/gpu" in verdict.errors[0].allowed
    assert not ask(pod(schedulerName="tandem-scheduler"), adopt=adopt).errors


def test_an_annotation_of_256_kib_is_refused_shortly():
    verdict = ask(pod(annotations={names.MEMORY: "9" * 256 * 1024}))
    assert len(str(verdict.errors[0])) < 300


def test_what_is_not_a_pod_is_refused_with_its_field():
    body = pod()
    body["spec"]["containers"] = [{"env": "x"}]
    assert fields(ask(body)) == ["spec.containers.0.env"]


# --- adopted namespaces -----------------------------------------------------------------------


def stock(gpus="2", **options):
    return pod(container(gpus=gpus, resource=names.NVIDIA_RESOURCE), **options)


def test_a_stock_pod_is_left_alone_outside_adopted_namespaces():
    assert ask(stock()).patch == []


def test_a_stock_pod_in_an_adopted_namespace_gets_whole_gpus():
    adopted = admit(stock(), adopt=True)
    resources = adopted["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {names.RESOURCE: "2"}, "requests": {names.RESOURCE: "2"}}
    assert adopted["metadata"]["annotations"] == {names.EXCLUSIVE: "true"}
    assert adopted["spec"]["schedulerName"] == "tandem-scheduler"
    assert adopted["spec"]["containers"][0]["env"] == [DEVICES, *PROGRESS]


def test_a_stock_pod_without_any_annotations():
    body = stock()
    del body["metadata"]["annotations"]
    assert admit(body, adopt=True)["metadata"]["annotations"] == {names.EXCLUSIVE: "true"}
    body["metadata"]["annotations"] = None
    assert admit(body, adopt=True)["metadata"]["annotations"] == {names.EXCLUSIVE: "true"}


def test_a_stock_pod_keeps_the_annotations_of_others():
    annotations = admit(stock(annotations={"team": "a"}), adopt=True)["metadata"]["annotations"]
    assert annotations == {"team": "a", names.EXCLUSIVE: "true"}


def test_a_stock_pod_that_says_what_it_needs_may_share():
    annotations = {names.MEMORY: "8Gi"}
    adopted = admit(stock(annotations=annotations), adopt=True)
    assert adopted["metadata"]["annotations"] == annotations


def test_an_adopted_pod_with_gpus_in_two_containers_is_refused():
    body = pod(
        container(gpus="1", resource=names.NVIDIA_RESOURCE),
        container("b", gpus="1", resource=names.NVIDIA_RESOURCE),
    )
    assert fields(ask(body, adopt=True)) == ["spec.containers[1].resources.limits[nvidia.com/gpu]"]


def test_our_resource_needs_no_adoption():
    adopted = admit(pod(), adopt=True)
    assert adopted["metadata"]["annotations"] == {}
    assert adopted["spec"]["containers"][0]["resources"]["limits"] == {names.RESOURCE: "1"}


OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}


def in_job(**metadata):
    body = pod(annotations=metadata.pop("annotations", None))
    body["metadata"] |= metadata
    return body


def in_group(group, **metadata):
    """Return a pod that is in a group of Kubernetes' own."""
    body = in_job(**metadata)
    body["spec"]["schedulingGroup"] = {"podGroupName": group}
    return body


@pytest.mark.parametrize(
    ("body", "gpujob"),
    [
        (in_job(ownerReferences=[OWNER]), "job-train"),
        (in_job(ownerReferences=[OWNER | {"controller": False}]), None),
        (in_job(name="alone"), "pod-alone"),
        (in_job(), None),  # the API server makes up its name after this
        (
            in_job(ownerReferences=[OWNER], labels={names.JOBSET_LABEL: "set"}),
            "jobset-set",
        ),
        (
            in_job(annotations={names.GANG: "g", names.GANG_SIZE: "2"}, ownerReferences=[OWNER]),
            "gang-g",
        ),
        (in_group("own", ownerReferences=[OWNER]), "podgroup-own"),
        (in_group("own", annotations={names.GANG: "g", names.GANG_SIZE: "2"}), "gang-g"),
    ],
)
def test_the_gpujob_of_a_pod_is_fixed_at_its_admission(body, gpujob):
    admitted = admit(body)
    assert admitted["metadata"]["annotations"].get(names.GPU_JOB) == gpujob
    assert ask(admitted).patch == []


def test_the_name_of_the_gpujob_follows_what_later_webhooks_change():
    group = {names.LEADER_WORKER_SET_LABEL: "serve"}
    body = admit(in_job(labels=group))
    assert body["metadata"]["annotations"][names.GPU_JOB] == "leaderworkerset-serve-0"
    body["metadata"]["labels"][names.LEADER_WORKER_SET_GROUP_LABEL] = "3"
    verdict = ask(body)
    assert "Tandem alone" in verdict.warnings[0]
    assert admit(body)["metadata"]["annotations"][names.GPU_JOB] == "leaderworkerset-serve-3"


def test_no_tenant_chooses_the_gpujob_of_a_pod():
    chosen = {names.GPU_JOB: "job-theirs"}
    body = in_job(annotations=chosen, ownerReferences=[OWNER])
    assert admit(body)["metadata"]["annotations"][names.GPU_JOB] == "job-train"
    assert fields(ask(in_job(annotations=chosen))) == [f"metadata.annotations[{names.GPU_JOB}]"]
    assert fields(ask(job(in_job(annotations=chosen)))) == [
        f"spec.template.metadata.annotations[{names.GPU_JOB}]"
    ]


def test_a_stock_pod_of_an_adopted_namespace_gets_both_annotations():
    body = pod(container(gpus="1", resource=names.NVIDIA_RESOURCE))
    body["metadata"] |= {"ownerReferences": [OWNER]}
    wanted = {names.EXCLUSIVE: "true", names.GPU_JOB: "job-train"}
    assert admit(body, adopt=True)["metadata"]["annotations"] == wanted
    body["metadata"]["annotations"] = {"example.com/note": "x"}
    assert admit(body, adopt=True)["metadata"]["annotations"] == {"example.com/note": "x"} | wanted
