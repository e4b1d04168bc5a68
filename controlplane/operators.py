"""The controllers of other projects' workloads, as their projects publish them.

Each is built once from its Go module into a folder of its own, next to the custom resources and the
webhooks that the module ships, and runs as a process with all rights. Its webhooks are reached at
127.0.0.1, by a certificate of the plane's.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from controlplane import binaries, build
from controlplane.binaries import Program
from controlplane.certificates import encode
from controlplane.plane import ControlPlane, Manifest
from tandem.contracts import names
from tandem.errors import TandemError
from tandem.local.processes import Process, free_port
from tandem.local.waiting import wait_until

_MANIFESTS = "manifests"
#: How Kueue's quotas call the GPUs that a workload asks for by claims.
CLAIMED_GPUS = "claimed-gpus"
_DEFINITION = "CustomResourceDefinition"
#: Where controller-runtime looks for a certificate that no setting names, below the folder for
#: temporary files.
_CERTIFICATES = "k8s-webhook-server/serving-certs"


@dataclass(frozen=True)
class Place:
    """The ports at which an operator answers on 127.0.0.1, and the folder of its certificate."""

    health: int
    webhooks: int
    certificates: Path


@dataclass(frozen=True)
class Operator:
    """One operator: its program, and how it is started.

    `manifests` are patterns of files in its module that hold custom resources and webhooks,
    `settings` is its configuration file, where it has one, `arguments` are its flags. `namespace`,
    `objects` and `file`, which it does not read, have to be there when it starts. It says at
    `ready`, by HTTP, that it is at work; at `port`, if it is one that the program has chosen. A
    folder of its choice, `certificates`, gets a certificate that it serves nothing with here.
    Of one that is `definitions_only` no program is built: somebody plays it.
    """

    program: Program
    manifests: tuple[str, ...]
    settings: Callable[[Place], Manifest] = lambda _: {}
    arguments: Callable[[Place], Sequence[str]] = lambda _: ()
    namespace: str = ""
    ready: str = "/readyz"
    port: int | None = None
    objects: tuple[Manifest, ...] = ()
    file: str = ""
    certificates: str = ""
    definitions_only: bool = False

    @property
    def name(self) -> str:
        """By which it is asked for."""
        return self.program.name


def _program(name: str, module: str, package: str = "") -> Program:
    return Program(name, name, module, f"{module}/{package}" if package else module)


def _configuration(group: str) -> Callable[[Place], Manifest]:
    """Return what makes the settings that operators of one family share."""

    def settings(place: Place) -> Manifest:
        return {
            "apiVersion": f"config.{group}/v1alpha1",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{place.health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {
                "host": "127.0.0.1",
                "port": place.webhooks,
                "certDir": str(place.certificates),
            },
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "clientConnection": {"qps": 500, "burst": 500},
        }

    return settings


def _kuberay(place: Place) -> Sequence[str]:
    return (
        "--metrics-addr=0",
        f"--health-probe-bind-address=127.0.0.1:{place.health}",
        "--enable-leader-election=false",
        "--qps=500",
        "--burst=500",
    )


def _trainer(place: Place) -> Manifest:
    settings = dict(_configuration("trainer.kubeflow.org")(place))
    del settings["internalCertManagement"]
    webhook = {"host": "127.0.0.1", "port": place.webhooks}
    return {**settings, "webhook": webhook, "certManagement": {"enable": False}}


def _kueue(place: Place) -> Manifest:
    settings = dict(_configuration("kueue.x-k8s.io")(place))
    mappings = [{"name": CLAIMED_GPUS, "deviceClassNames": [names.QUEUE_CLASS]}]
    return {
        **settings,
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "namespace": "kueue-system",
        "integrations": {"frameworks": ["batch/job"]},
        "resources": {"deviceClassMappings": mappings},
        # It would serve an API of its own, at a port of its choice.
        "featureGates": {"VisibilityOnDemand": False},
    }


def _training_operator(place: Place) -> Sequence[str]:
    # Not its MPIJob of version v1, whose definition has the name of the MPI operator's.
    kinds = ("pytorchjob", "tfjob", "xgboostjob", "paddlejob", "jaxjob")
    return (
        "--metrics-bind-address=0",
        f"--health-probe-bind-address=127.0.0.1:{place.health}",
        f"--webhook-server-port={place.webhooks}",
        "--kube-api-qps=500",
        "--kube-api-burst=500",
        *(f"--enable-scheme={kind}" for kind in kinds),
    )


#: The training operator rotates a certificate in a Secret, which no program mounts here, and writes
#: its CA into webhooks of this name, of which there are none.
_OF_ITS_ROTATION: tuple[Manifest, ...] = (
    {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "training-operator-webhook-cert", "namespace": "kubeflow"},
    },
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "validator.training-operator.kubeflow.org"},
        "webhooks": [],
    },
)


OPERATORS: tuple[Operator, ...] = (
    Operator(
        _program("jobset", "sigs.k8s.io/jobset"),
        ("config/components/crd/bases/*.yaml", "config/components/webhook/manifests.yaml"),
        _configuration("jobset.x-k8s.io"),
    ),
    Operator(
        _program("lws", "sigs.k8s.io/lws", "cmd"),
        ("config/crd/bases/*.yaml", "config/webhook/manifests.yaml"),
        _configuration("lws.x-k8s.io"),
    ),
    Operator(
        _program("kuberay", "github.com/ray-project/kuberay/ray-operator"),
        ("config/crd/bases/*.yaml",),
        arguments=_kuberay,
    ),
    Operator(
        _program("mpi-operator", "github.com/kubeflow/mpi-operator", "cmd/mpi-operator"),
        ("manifests/base/kubeflow.org_mpijobs.yaml",),
        arguments=lambda _: ("-kube-api-qps=500", "-kube-api-burst=500"),
        namespace="mpi-operator",
        ready="/healthz",
        port=8080,
    ),
    Operator(
        _program(
            "training-operator", "github.com/kubeflow/training-operator", "cmd/training-operator.v1"
        ),
        ("manifests/base/crds/kubeflow.org_[!m]*.yaml", "manifests/base/webhook/manifests.yaml"),
        arguments=_training_operator,
        namespace="kubeflow",
        objects=_OF_ITS_ROTATION,
        file="/tmp/k8s-webhook-server/serving-certs/tls.crt",  # noqa: S108 - its own choice
    ),
    Operator(
        _program("trainer", "github.com/kubeflow/trainer/v2", "cmd/trainer-controller-manager"),
        ("manifests/base/crds/trainer*.yaml", "manifests/base/webhook/manifests.yaml"),
        _trainer,
    ),
    Operator(
        _program("kueue", "sigs.k8s.io/kueue", "cmd/kueue"),
        ("config/components/crd/bases/*.yaml", "config/components/webhook/manifests.yaml"),
        _kueue,
        namespace="kueue-system",
        certificates="/etc/kueue/metrics/certs",
    ),
    # Modules that its program needs cannot be had.
    Operator(
        _program("volcano", "volcano.sh/volcano", "cmd/controller-manager"),
        ("config/crd/volcano/bases/batch.volcano.sh_jobs.yaml",),
        definitions_only=True,
    ),
)


def by_name(name: str) -> Operator:
    """Return an operator.

    Raises:
        TandemError: there is none of that name.
    """
    for operator in OPERATORS:
        if operator.name == name:
            return operator
    known = ", ".join(operator.name for operator in OPERATORS)
    raise TandemError(f"no operator is called {name!r}", f"There are {known}.")


def chosen(names: Iterable[str]) -> list[Operator]:
    """Return the operators of these names, each once."""
    return [by_name(name) for name in dict.fromkeys(names)]


def folder(operator: Operator) -> Path:
    """Return where an operator is built to."""
    return binaries.build_folder((operator.program,))


def missing(operators: Iterable[Operator]) -> list[Operator]:
    """Return the operators that are not built yet."""
    return [
        each
        for each in operators
        if not (folder(each) / _MANIFESTS).is_dir()
        or (not each.definitions_only and build.outstanding((each.program,)))
    ]


def build_one(operator: Operator, report: build.Report) -> None:
    """Build an operator, and keep what its module says of its objects.

    Raises:
        TandemError: there is no Go, or with the end of its output.
    """
    place = folder(operator)
    if not operator.definitions_only:
        build.build(report, (operator.program,))
    kept = place / _MANIFESTS
    if kept.is_dir():
        return
    partial = place / f".{_MANIFESTS}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    module = build.module_folder(operator.program)
    for pattern in operator.manifests:
        files = sorted(module.glob(pattern))
        if not files:
            raise TandemError(f"{operator.program.module} has no {pattern}")
        for file in files:
            shutil.copyfile(file, partial / file.name)
    partial.replace(kept)


def start(plane: ControlPlane, names: Iterable[str]) -> None:
    """Start operators on a plane, and wait until they are at work.

    Raises:
        TandemError: one is not built or does not come up.
    """
    operators = chosen(names)
    if absent := missing(operators):
        listed = ",".join(each.name for each in absent)
        raise TandemError(
            f"not built on this machine: {listed}",
            f"Run `{binaries.BUILD_COMMAND} --operators {listed}` (some minutes each, once).",
        )
    for operator in operators:
        _start_one(plane, operator)


def _start_one(plane: ControlPlane, operator: Operator) -> None:
    objects = _objects(folder(operator) / _MANIFESTS)
    definitions = [each for each in objects if each["kind"] == _DEFINITION]
    # By the server: kubectl would keep a copy in an annotation, and some are too large for that.
    plane.kubectl(
        *("apply", "--server-side", "--force-conflicts", "-f", "-"),
        stdin="\n---\n".join(json.dumps(each) for each in definitions),
    )
    plane.await_definitions(*(each["metadata"]["name"] for each in definitions))
    if operator.definitions_only:
        return
    if operator.namespace:
        namespace = {"kind": "Namespace", "metadata": {"name": operator.namespace}}
        plane.apply({"apiVersion": "v1", **namespace})
    if operator.objects:
        plane.apply(operator.objects)
    if operator.file:
        Path(operator.file).parent.mkdir(parents=True, exist_ok=True)
        Path(operator.file).touch()
    if operator.certificates:
        shutil.rmtree(operator.certificates, ignore_errors=True)  # of an earlier plane
        plane.write_serving_certificate(Path(operator.certificates))
    scratch = plane.folder / f"{operator.name}-tmp"
    place = Place(operator.port or free_port(), free_port(), scratch / _CERTIFICATES)
    plane.write_serving_certificate(place.certificates)
    environment = {"KUBECONFIG": str(plane.kubeconfig()), "TMPDIR": str(scratch)}
    process = plane.run(operator.name, _command(plane, operator, place), env=environment)
    _await_ready(process, operator, place)
    webhooks = [each for each in objects if each["kind"].endswith("WebhookConfiguration")]
    if webhooks:
        wait_until(lambda: _listens(process, place.webhooks), f"{operator.name} has its webhooks")
        plane.apply([_reached_at(operator, each, place, plane.ca_file) for each in webhooks])


def _objects(place: Path) -> list[dict[str, Any]]:
    texts = (file.read_text() for file in sorted(place.glob("*.yaml")))
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def _command(plane: ControlPlane, operator: Operator, place: Place) -> list[str]:
    argv = [str(folder(operator) / operator.name), *operator.arguments(place)]
    if settings := operator.settings(place):
        path = plane.folder / f"{operator.name}.yaml"
        path.write_text(yaml.safe_dump(dict(settings)))
        argv.append(f"--config={path}")
    return argv


def _await_ready(process: Process, operator: Operator, place: Place) -> None:
    url = f"http://127.0.0.1:{place.health}{operator.ready}"

    def ready() -> bool:
        _must_run(process)
        try:
            return httpx.get(url, timeout=2.0, trust_env=False).is_success
        except httpx.TransportError:
            return False

    wait_until(ready, f"{operator.name} is ready")


def _listens(process: Process, port: int) -> bool:
    _must_run(process)
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _must_run(process: Process) -> None:
    if not process.running:
        raise process.failure(f"ended with status {process.exit_code}")


def _reached_at(
    operator: Operator, configuration: dict[str, Any], place: Place, ca_file: Path
) -> dict[str, Any]:
    """Return the webhooks of a module, led to the process instead of to a Service."""
    authority = encode(ca_file.read_bytes())
    for webhook in configuration["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {
            "url": f"https://127.0.0.1:{place.webhooks}{path}",
            "caBundle": authority,
        }
    # Modules give theirs the same name.
    configuration["metadata"]["name"] = f"{operator.name}-{configuration['kind'].lower()}"
    return configuration
