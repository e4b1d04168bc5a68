"""The admission webhook: AdmissionReview in, a verdict on it out; it keeps no state."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterable
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from scheduler_extender.admission.patch import (
    NVIDIA_RUNTIME_CLASS,
    AdmissionConfig,
    Verdict,
    admit_pod,
)
from scheduler_extender.admission.podshape import PodShape
from scheduler_extender.admission.templates import admit_owner, shape_errors
from tandem.contracts.annotations import FieldError
from tandem.kube.api import ClusterApi
from tandem.kube.errors import NotFound
from tandem.kube.resource import RUNTIME_CLASSES

log = logging.getLogger(__name__)

_UNPROCESSABLE = 422
_AUDITED = 1024  # characters


class _Message(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


class GroupKind(_Message):
    """What sort of object is to be admitted."""

    group: str = ""
    kind: str


class UserInfo(_Message):
    """Who asks."""

    username: str = ""


class AdmissionRequest(_Message):
    """The part of admission.k8s.io/v1 AdmissionRequest that we read."""

    uid: str
    kind: GroupKind
    namespace: str = ""
    name: str = ""
    operation: Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]
    dry_run: bool | None = None
    user_info: UserInfo = Field(default_factory=UserInfo)
    object_: dict[str, Any] | None = Field(default=None, alias="object")
    old_object: dict[str, Any] | None = None


class AdmissionReview(_Message):
    """The body of a call by the API server."""

    request: AdmissionRequest


def admission_router(
    config: AdmissionConfig,
    has_runtime_class: Callable[[], bool] = lambda: False,
    count: Callable[[str], None] = lambda _: None,
) -> APIRouter:
    """Return the routes `/mutate` and, for adopted namespaces, `/mutate-adopted`.

    Both take pods at their creation and the owners of pods whose templates we know. The API
    server tells adopted namespaces from others by the selectors of the two webhooks.
    `has_runtime_class` tells whether the cluster has the runtime class `nvidia`; `count` is told
    of each verdict: `refused`, `changed` or `as it is`.
    """
    router = APIRouter(tags=["admission"])

    def answer(request: AdmissionRequest, *, adopt: bool) -> dict[str, Any]:
        verdict = judge(request, config, adopt=adopt, has_runtime_class=has_runtime_class())
        if verdict.errors:
            _log_refusal(request, verdict)
        outcome = "changed" if verdict.patch else "as it is"
        count("refused" if verdict.errors else outcome)
        return review_response(request.uid, verdict)

    @router.post("/mutate")
    async def mutate(review: AdmissionReview) -> dict[str, Any]:
        """Admit a pod or an owner of pods."""
        return answer(review.request, adopt=False)

    @router.post("/mutate-adopted")
    async def mutate_adopted(review: AdmissionReview) -> dict[str, Any]:
        """Admit in an adopted namespace: what asks for nvidia.com/gpu becomes ours."""
        return answer(review.request, adopt=True)

    return router


def has_nvidia_runtime_class(api: ClusterApi) -> bool:
    """Ask the cluster whether it has the runtime class `nvidia`. Blocks.

    Raises:
        KubeError: the API server refused, or could not be reached.
    """
    try:
        api.get(RUNTIME_CLASSES, NVIDIA_RUNTIME_CLASS)
    except NotFound:
        return False
    return True


def _log_refusal(request: AdmissionRequest, verdict: Verdict) -> None:
    """Log who was refused what, and which fields were wrong; not what was written in them."""
    log.info(
        "refused user=%r kind=%s object=%s/%s%s fields=%s",
        request.user_info.username,
        request.kind.kind,
        request.namespace,
        request.name or "(not named yet)",
        " (dry run)" if request.dry_run else "",
        ",".join(error.field for error in verdict.errors),
    )


def judge(
    request: AdmissionRequest,
    config: AdmissionConfig,
    *,
    adopt: bool = False,
    has_runtime_class: bool = False,
) -> Verdict:
    """Return the verdict on a request; what is not for us is let through as it is."""
    body = request.object_
    if body is None or request.operation not in ("CREATE", "UPDATE"):
        return Verdict()
    if (request.kind.group, request.kind.kind) != ("", "Pod"):
        before = request.old_object if request.operation == "UPDATE" else None
        return admit_owner(request.kind.group, request.kind.kind, body, before, config, adopt=adopt)
    if request.operation != "CREATE":
        return Verdict()
    try:
        pod = PodShape.model_validate(body)
    except ValidationError as error:
        return Verdict(errors=shape_errors(error))
    return admit_pod(pod, config, adopt=adopt, has_runtime_class=has_runtime_class)


def review_response(uid: str, verdict: Verdict) -> dict[str, Any]:
    """Return the AdmissionReview that answers the request `uid`."""
    response: dict[str, Any] = {"uid": uid, "allowed": not verdict.errors}
    if verdict.errors:
        response["status"] = {
            "code": _UNPROCESSABLE,
            "reason": "Invalid",
            "message": "; ".join(str(error) for error in verdict.errors),
            "details": {"causes": list(_causes(verdict.errors))},
        }
        # The API server puts it into its audit log, beside who has asked.
        response["auditAnnotations"] = {
            "refused": "; ".join(str(error) for error in verdict.errors)[:_AUDITED]
        }
    elif verdict.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(verdict.patch).encode()).decode()
    if verdict.warnings:
        response["warnings"] = verdict.warnings
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def _causes(errors: Iterable[FieldError]) -> Iterable[dict[str, str]]:
    # kubectl shows the causes of what is Invalid in place of the message.
    for error in errors:
        yield {"reason": "FieldValueInvalid", "field": error.field, "message": error.detail}
