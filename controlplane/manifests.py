"""The chart as it was rendered last, for those who install parts of it without Helm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

PATH = Path(__file__).resolve().parents[1] / "deploy" / "manifests" / "tandem.yaml"
#: Accounts with their rights, and what they meet in the API server: all but what runs as a pod.
FOUNDATIONS = (
    "Namespace",
    "PriorityClass",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
)

Object = dict[str, Any]


def objects(*kinds: str, name: str = "") -> list[Object]:
    """Return the objects of these kinds, all or those of one name, in the order of `kinds`."""
    found = [document for document in yaml.safe_load_all(PATH.read_text()) if document]
    return [
        document
        for kind in kinds
        for document in found
        if document["kind"] == kind and name in ("", document["metadata"]["name"])
    ]


def policies() -> list[Object]:
    """Return what the API server refuses by itself, whether our webhook is there or not."""
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    first = objects("MutatingWebhookConfiguration", name="tandem-resources")
    return [*objects(*kinds), *first]


def scheduler_config() -> Object:
    """Return the configuration of the kube-scheduler that calls the extender."""
    (settings,) = objects("ConfigMap", name="tandem-scheduler")
    config: Object = yaml.safe_load(settings["data"]["scheduler.yaml"])
    return config
