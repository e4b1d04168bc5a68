"""A kind of workload that Tandem does not ship, and its controller: values of the chart name it."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import httpx
from kind_examples import ENDS, GIVES_WAY, NO_GPUS, RETRIED, TOGETHER, WAITS, Example, Object

from controlplane import ControlPlane

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


class Controller:
    """Makes the pods of experiments, deletes them while one is paused, says when one is done."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Make the kind known to the API server and begin."""
        self._plane.apply(DEFINITION)
        self._plane.await_definitions(DEFINITION["metadata"]["name"])
        self._thread.start()

    def stop(self) -> None:
        """End, once the experiment that is looked at has been."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            with suppress(httpx.TransportError):  # it looks again
                answer = self._plane.http.get(f"/apis/{GROUP}/v1/{PLURAL}")
                for experiment in answer.json()["items"] if answer.is_success else ():
                    self._reconcile(experiment)

    def _reconcile(self, experiment: Object) -> None:
        metadata, spec = experiment["metadata"], experiment["spec"]
        ended = (experiment.get("status") or {}).get("phase")
        if ended or "deletionTimestamp" in metadata:
            return
        pods = f"/api/v1/namespaces/{metadata['namespace']}/pods"
        found = self._plane.http.get(pods).json().get("items", ())
        mine = {
            pod["metadata"]["name"]: pod
            for pod in found
            if metadata["uid"] in (o["uid"] for o in pod["metadata"].get("ownerReferences", ()))
        }
        if spec.get("paused"):
            for name, pod in mine.items():
                if "deletionTimestamp" not in pod["metadata"]:
                    self._plane.http.delete(f"{pods}/{name}")
            return
        wanted = {pod["metadata"]["name"]: pod for pod in _pods(experiment)}
        for name in wanted.keys() - mine.keys():
            self._plane.http.post(pods, json=wanted[name])
        if all(mine.get(name, {}).get("status", {}).get("phase") == "Succeeded" for name in wanted):
            path = f"/apis/{GROUP}/v1/namespaces/{metadata['namespace']}/{PLURAL}"
            self._plane.http.patch(
                f"{path}/{metadata['name']}/status",
                json={"status": {"phase": "Done"}},
                headers={"Content-Type": "application/merge-patch+json"},
            )


def _pods(experiment: Object) -> list[Object]:
    metadata, spec = experiment["metadata"], experiment["spec"]
    owner: dict[str, Any] = {
        "apiVersion": experiment["apiVersion"],
        "kind": experiment["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    roles = [
        {"name": "driver", "replicas": 1, **spec["driver"]},
        *spec["groups"],
    ]
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **role["template"]["metadata"],
                "name": f"{metadata['name']}-{role['name']}-{index}",
                "labels": {ROLE: role["name"]},
                "ownerReferences": [owner],
            },
            "spec": role["template"]["spec"],
        }
        for role in roles
        for index in range(role["replicas"])
    ]
