"""Pods and templates to admit, and the changes applied as the API server applies them."""

import base64
import copy
import json

from scheduler_extender.admission.config import AdmissionConfig
from scheduler_extender.admission.webhook import AdmissionRequest, judge, review_response


def container(name="main", gpus=None, resource="tandem.gpu/gpu", **extra):
    body = {"name": name, "image": "pytorch"}
    if gpus is not None:
        body["resources"] = {"limits": {resource: gpus}, "requests": {resource: gpus}}
    return body | extra


def pod(*containers, annotations=None, **spec):
    """A pod as the API server hands it to a webhook: defaults are filled in."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "train-", "annotations": annotations or {}},
        "spec": {
            "schedulerName": "default-scheduler",
            "restartPolicy": "Never",
            "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}],
            "containers": list(containers) or [container(gpus="1")],
            **spec,
        },
    }


def job(template, **spec):
    template = {"metadata": template["metadata"], "spec": template["spec"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {"template": template, "podReplacementPolicy": "TerminatingOrFailed", **spec},
    }


def review(body, *, operation="CREATE", old=None):
    group, _, version = body["apiVersion"].rpartition("/")
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "review-1",
            "kind": {"group": group, "version": version, "kind": body["kind"]},
            "namespace": "team-a",
            "operation": operation,
            "object": body,
            "oldObject": old,
        },
    }


def ask(body, *, operation="CREATE", old=None, config=None, **options):
    """Return the verdict on a request, through the same parsing as over HTTP."""
    request = AdmissionRequest.model_validate(review(body, operation=operation, old=old)["request"])
    return judge(request, config or AdmissionConfig(), **options)


def admit(body, **options):
    """Return the object after admission."""
    verdict = ask(body, **options)
    assert not verdict.errors, verdict.errors
    response = review_response("u", verdict)["response"]
    operations = json.loads(base64.b64decode(response.get("patch", "W10=")))
    return apply_patch(body, operations)


def apply_patch(document, operations):
    """The part of RFC 6902 that the webhook uses, strictly."""
    document = copy.deepcopy(document)
    for operation in operations:
        *parents, last = (
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        )
        target = document
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        if operation["op"] == "remove":
            del target[last]
        elif operation["op"] == "replace":
            place = int(last) if isinstance(target, list) else last
            assert target[place] is not None
            target[place] = operation["value"]
        elif isinstance(target, list):
            target.insert(len(target) if last == "-" else int(last), operation["value"])
        else:
            target[last] = operation["value"]
    return document


def fields(verdict):
    return [error.field for error in verdict.errors]
