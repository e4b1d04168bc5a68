"""The admission webhook: AdmissionReview in, a verdict on it out; it keeps no state.

Every client that reaches the port can send anything here. The cost of a review is bounded: by its
bytes (`serving.limits`), by the objects and lists in it, and by the errors that are collected.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from scheduler_extender.admission.config import AdmissionConfig
from scheduler_extender.admission.handwritten import Read, Rewriting, names_claims, rewrite
from scheduler_extender.admission.json_patch import patched
from scheduler_extender.admission.patch import NVIDIA_RUNTIME_CLASS, Verdict, admit_pod
from scheduler_extender.admission.podshape import PodShape
from scheduler_extender.admission.request import is_ours
from scheduler_extender.admission.templates import admit_owner, shape_errors
from tandem.contracts.annotations import MAX_ERRORS, FieldError
from tandem.contracts.prediction import ErrorBody
from tandem.kube.api import ClusterApi
from tandem.kube.client import KubeClient
from tandem.kube.errors import KubeError, NotFound
from tandem.kube.resource import RUNTIME_CLASSES, Resource

log = logging.getLogger(__name__)

_UNPROCESSABLE = 422
_AUDITED = 1024  # characters
_LOGGED = 256  # characters of a name that a caller has chosen
#: Objects and lists in one review. A decoded object takes up to 40 times its bytes, so that 4 MiB
#: could take 160 MiB. An object that the API server stores has fewer than 100,000 of them.
MAX_PARTS = 200_000

_HEAD_BYTES = 4096
_CLAIM_S = 2.0
_NAMESPACE = re.compile(rb'"namespace":"([^"\\]{1,63})"')

#: Judges the body of a review: returns the status and the body of the answer.
Judge = Callable[[bytes], tuple[int, bytes]]
#: Returns the levels of topology that are in use; None: those of the settings.
Levels = Callable[[], tuple[str, ...] | None]
#: Runs a judge on a request's body outside of the event loop.
Run = Callable[[Request, Judge], Awaitable[tuple[int, bytes]]]


class _Message(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


class GroupKind(_Message):
    """The kind of an object under review."""

    group: str = ""
    kind: str


class UserInfo(_Message):
    """The user who sent the request."""

    username: str = ""


class AdmissionRequest(_Message):
    """The part of admission.k8s.io/v1 AdmissionRequest that we read."""

    uid: Annotated[str, Field(max_length=128)]
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
    run: Run | None = None,
    claims: Read | None = None,
    levels: Levels = lambda: None,
) -> APIRouter:
    """Return the routes `/mutate` and, for adopted namespaces, `/mutate-adopted`.

    Both take pods at their creation and the owners of pods whose templates we know. The API server
    distinguishes adopted namespaces from others by the selectors of the two webhooks.
    `has_runtime_class` answers whether the cluster has the runtime class `nvidia`; `count` is
    called with each verdict: `refused`, `changed` or `as it is`; `run` says where the work is done,
    a thread where it is not given. `claims` reads the ResourceClaims and templates that pods
    name, None: they are not looked at. `levels` returns the levels of topology where they are not
    those of the settings.
    """
    router = APIRouter(tags=["admission"])
    run = run or _in_a_thread
    for path, adopt, words in (
        ("/mutate", False, "Admit a pod or an owner of pods"),
        ("/mutate-adopted", True, "Admit in an adopted namespace: nvidia.com/gpu becomes ours"),
    ):
        judge_body = partial(
            answer_review,
            config,
            has_runtime_class,
            count,
            adopt=adopt,
            claims=claims,
            levels=levels,
        )
        router.add_api_route(
            path,
            _endpoint(run, judge_body),
            methods=["POST"],
            summary=words,
            openapi_extra=_SCHEMAS,
        )
    return router


def _endpoint(run: Run, judge_body: Judge) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        status, content = await run(request, judge_body)
        return Response(content, status, media_type="application/json")

    return endpoint


async def _in_a_thread(request: Request, judge_body: Judge) -> tuple[int, bytes]:
    return await asyncio.to_thread(judge_body, await request.body())


def answer_review(
    config: AdmissionConfig,
    has_runtime_class: Callable[[], bool],
    count: Callable[[str], None],
    body: bytes,
    *,
    adopt: bool,
    claims: Read | None = None,
    levels: Levels = lambda: None,
) -> tuple[int, bytes]:
    """Return the status and the body of the answer to a review. Pure but for log and `count`.

    Status 422 says that the body is no AdmissionReview, 413 that it has too many parts, 503 that
    the API server did not answer what the pod's claims ask for.
    """
    if body.count(b"{") + body.count(b"[") > MAX_PARTS:
        return 413, _error(f"the review has over {MAX_PARTS} objects and lists")
    try:
        request = AdmissionReview.model_validate_json(body).request
    except ValidationError as error:
        return _UNPROCESSABLE, _error("; ".join(map(str, shape_errors(error))))
    if (known := levels()) is not None:
        config = config.model_copy(update={"topology_levels": known})
    try:
        verdict = judge(
            request,
            config,
            adopt=adopt,
            has_runtime_class=has_runtime_class(),
            claims=claims,
        )
    except KubeError as error:
        log.warning("claims not read object=%s error=%s", request.namespace[:_LOGGED], error)
        return 503, _error("the API server does not say what the pod's claims ask for")
    if verdict.errors:
        _log_refusal(request, verdict)
    outcome = "changed" if verdict.patch else "as it is"
    count("refused" if verdict.errors else outcome)
    return 200, json.dumps(review_response(request.uid, verdict)).encode()


def _error(words: str) -> bytes:
    return json.dumps(ErrorBody(error=words).wire()).encode()


def _body_of(schema: object) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


_SCHEMAS: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": _body_of(
            {
                "type": "object",
                "required": ["request"],
                "properties": {"request": AdmissionRequest.model_json_schema()},
            }
        ),
    },
    "responses": {
        "200": {"description": "The answer", "content": _body_of({"type": "object"})},
        "422": {"description": "No AdmissionReview", "content": _body_of({"type": "object"})},
        "408": {"description": "The body came too slowly"},
        "413": {"description": "The body is too large, or has too many parts"},
        "503": {"description": "The caller has more requests here than it may have"},
    },
}


def namespace_of(body: bytes) -> str:
    """Return the namespace that a review is for, from its first bytes; "" where they do not say.

    The API server writes it before the object, so that nothing in the object counts. It only
    decides in which order reviews of one client are judged, so a client that lies gains nothing
    over other clients.
    """
    found = _NAMESPACE.search(body, 0, _HEAD_BYTES)
    return found[1].decode("ascii", "replace") if found else ""


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


def claims_of(api: KubeClient) -> Read:
    """Return what reads claims and templates for reviews: at once or not, since pods wait."""

    def read(resource: Resource, namespace: str, name: str) -> Mapping[str, Any] | None:
        try:
            return api.request("GET", resource.path(namespace, name), read_timeout_s=_CLAIM_S)
        except NotFound:
            return None

    return read


def _log_refusal(request: AdmissionRequest, verdict: Verdict) -> None:
    """Log who was refused what, and which fields were wrong; not what was written in them."""
    log.info(
        "refused user=%r kind=%s object=%s/%s fields=%s dry_run=%s",
        request.user_info.username[:_LOGGED],
        request.kind.kind[:_LOGGED],
        request.namespace[:_LOGGED],
        request.name[:_LOGGED],  # empty where the API server has yet to make one up
        ",".join(error.shown_field for error in verdict.errors[:MAX_ERRORS]),
        bool(request.dry_run),
    )


def judge(
    request: AdmissionRequest,
    config: AdmissionConfig,
    *,
    adopt: bool = False,
    has_runtime_class: bool = False,
    claims: Read | None = None,
) -> Verdict:
    """Return the verdict on a request; what is not for us is let through as it is.

    `claims` reads the ResourceClaims and templates that a pod names; what it raises goes through.
    """
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
    rewriting = Rewriting()
    if config.gpu_claims and claims and names_claims(pod) and not is_ours(pod, adopt=adopt):
        rewriting = rewrite(pod, request.namespace, request.uid, claims)
        if rewriting.errors:
            return Verdict(errors=rewriting.errors)
        if rewriting.patch:
            pod = PodShape.model_validate(patched(body, rewriting.patch))
    verdict = admit_pod(
        pod, config, adopt=adopt, has_runtime_class=has_runtime_class, review=request.uid
    )
    verdict.patch[:0] = rewriting.patch
    verdict.warnings[:0] = rewriting.warnings
    return verdict


def review_response(uid: str, verdict: Verdict) -> dict[str, Any]:
    """Return the AdmissionReview that answers the request `uid`."""
    response: dict[str, Any] = {"uid": uid, "allowed": not verdict.errors}
    if verdict.errors:
        shown = verdict.errors[:MAX_ERRORS]
        message = "; ".join(map(str, shown))
        if len(verdict.errors) >= MAX_ERRORS:
            message += "; there may be more errors"
        response["status"] = {
            "code": _UNPROCESSABLE,
            "reason": "Invalid",
            "message": message,
            "details": {"causes": list(_causes(shown))},
        }
        # The API server writes it to its audit log, with the user who asked.
        response["auditAnnotations"] = {"refused": message[:_AUDITED]}
    elif verdict.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(verdict.patch).encode()).decode()
    if verdict.warnings:
        response["warnings"] = verdict.warnings
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def _causes(errors: Iterable[FieldError]) -> Iterable[dict[str, str]]:
    # kubectl shows the causes of what is Invalid in place of the message.
    for error in errors:
        yield {"reason": "FieldValueInvalid", "field": error.shown_field, "message": error.detail}
