"""A kind of workload that Tandem does not ship, and its controller: values of the chart name it."""

from __future__ import annotations

from kind_examples import ENDS, GIVES_WAY, NO_GPUS, RETRIED, TOGETHER, WAITS, Example, Object

from controlplane import ControlPlane
from controlplane.players import Player, phase

GROUP, PLURAL = "ml.example.com", "experiments"
ROLE = f"{GROUP}/role"
#: As `scheduler.extender.config.kinds` of values.yaml has it.
KIND: Object = {
    "group": GROUP,
    "version": "v1",
    "kind": "Experiment",
    "plural": PLURAL,
    "roles": [
        {"name": "driver", "template": ["spec", "driver", "template"]},
        {
            "each": ["spec", "groups"],
            "named_by": ["name"],
            "template": ["template"],
            "pods": ["replicas"],
        },
    ],
    "role_label": ROLE,
    "templates": [["spec", "driver", "template"], ["spec", "groups", "*", "template"]],
    "suspend": ["spec", "paused"],
    "ended": {"at": ["status", "phase"], "completed": ["Done"], "failed": ["Broken"]},
}
_ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITION: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{PLURAL}.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": PLURAL, "singular": "experiment", "kind": "Experiment"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": _ANYTHING, "status": _ANYTHING},
                    }
                },
            }
        ],
    },
}


def _template(gpus: int) -> Object:
    limits = {"tandem.gpu/gpu": gpus} if gpus else {}
    container = {"name": "main", "image": "train:1", "resources": {"limits": limits}}
    annotations = {"tandem.gpu/memory": "8Gi", "tandem.gpu/checkpoint": "true"} if gpus else {}
    return {
        "metadata": {"annotations": annotations},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


_WORKLOAD: Object = {
    "apiVersion": f"{GROUP}/v1",
    "kind": "Experiment",
    "metadata": {"name": "new"},
    "spec": {
        "driver": {"template": _template(1)},
        "groups": [
            {"name": "trainers", "replicas": 2, "template": _template(1)},
            {"name": "loaders", "replicas": 1, "template": _template(0)},
        ],
    },
}
EXAMPLE = Example(
    "Experiment",
    PLURAL,
    "",
    controller="one of the tests' own, for a kind that they add by `values.yaml`",
    suspend=("spec", "paused"),
    given=(_WORKLOAD,),
    without=dict.fromkeys((WAITS, TOGETHER, RETRIED), "shown by the kinds that are shipped"),
)
assert not {ENDS, GIVES_WAY, NO_GPUS} & set(EXAMPLE.without)


class Controller(Player):
    """Makes the pods of experiments, deletes them while one is paused, says when one is done."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane, f"{GROUP}/v1", PLURAL)

    def start(self) -> None:
        """Make the kind known to the API server and begin."""
        self._plane.apply(DEFINITION)
        self._plane.await_definitions(DEFINITION["metadata"]["name"])
        super().start()

    def is_over(self, workload: Object) -> bool:
        """Say whether an experiment is done."""
        return bool((workload.get("status") or {}).get("phase"))

    def reconcile(self, workload: Object, pods: dict[str, Object]) -> None:
        """Make the pods that are missing, delete those of one that is paused, end what is done."""
        if workload["spec"].get("paused"):
            self.delete(workload, pods)
            return
        wanted = {pod["metadata"]["name"]: pod for pod in _pods(workload)}
        for name in wanted.keys() - pods.keys():
            self.create(workload, wanted[name])
        if all(phase(pods.get(name, {})) == "Succeeded" for name in wanted):
            self.write_status(workload, {"phase": "Done"})


def _pods(experiment: Object) -> list[Object]:
    spec = experiment["spec"]
    roles = [{"name": "driver", "replicas": 1, **spec["driver"]}, *spec["groups"]]
    return [
        {
            "metadata": {
                **role["template"]["metadata"],
                "name": f"{experiment['metadata']['name']}-{role['name']}-{index}",
                "labels": {ROLE: role["name"]},
            },
            "spec": role["template"]["spec"],
        }
        for role in roles
        for index in range(role["replicas"])
    ]
