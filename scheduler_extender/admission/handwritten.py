"""Pods that ask for GPUs by a ResourceClaimTemplate that a user has written: read as Tandem's own.

kube-controller-manager would make a claim of such a template for each pod that waits, which no plan
knows. So the webhook puts the claim that the pod's plan makes in its place, and the number of GPUs
that the template asks for: the pod is in the queue like any other. Pure but for `Read`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler_extender.admission.json_patch import Operation, add, escape, replace
from scheduler_extender.admission.podshape import Placed, PodShape
from scheduler_extender.admission.request import MAX_GPUS_PER_POD
from tandem.contracts import names
from tandem.contracts.annotations import FieldError, annotation_field
from tandem.contracts.claims import ENTRY, asks_us, claim_name, entry
from tandem.contracts.quantity import parse_quantity

#: Reads a template by its namespace and name; None where there is none (yet).
Read = Callable[[str, str], Mapping[str, Any] | None]

#: Of the templates that a pod names; each is a question to the API server.
MAX_TEMPLATES = 4
_TEMPLATE = "resourceClaimTemplateName"
_CAPACITIES = ("memory", "shares")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a template asks for: GPUs, and memory of each, "" where it says nothing of it."""

    gpus: int
    memory: str = ""


@dataclass(slots=True)
class Rewriting:
    """The changes that make a pod ask for `tandem.gpu/gpu`; none where no template is ours.

    With errors the rest means nothing.
    """

    patch: list[Operation] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[FieldError] = field(default_factory=list)

    def refuse(self, at: str, value: str, allowed: str) -> None:
        """Keep an error."""
        self.errors.append(FieldError(at, value, allowed))


def names_templates(pod: PodShape) -> bool:
    """Say whether a pod names templates of claims."""
    return any(isinstance(each.get(_TEMPLATE), str) for each in pod.spec.resource_claims)


def rewrite(pod: PodShape, namespace: str, review: str, read: Read) -> Rewriting:
    """Put the queue's claim in the place of a template's that asks for our GPUs.

    `review` is the uid of the request that creates the pod, of which the claim gets its name. The
    first `MAX_TEMPLATES` templates are looked at.
    """
    found = Rewriting()
    named = [
        (index, each) for index, each in enumerate(pod.spec.resource_claims)
        if isinstance(each.get(_TEMPLATE), str)
    ]  # fmt: skip
    ours: list[tuple[int, str, Mapping[str, Any]]] = []
    for index, each in named[:MAX_TEMPLATES]:
        template = read(namespace, each[_TEMPLATE])
        claim = ((template or {}).get("spec") or {}).get("spec") or {}
        if asks_us({"spec": claim}):
            ours.append((index, str(each.get("name")), claim))
    if not ours:
        return found
    (index, name, claim), *more = ours
    at = f"spec.resourceClaims[{index}].{_TEMPLATE}"
    value = str(pod.spec.resource_claims[index][_TEMPLATE])
    if more:
        second = f"spec.resourceClaims[{more[0][0]}]"
        found.refuse(
            second, more[0][1], f"{value} asks for GPUs already; one template says how many"
        )
        return found
    try:
        asked = read_claim(claim)
    except ValueError as error:
        found.refuse(at, value, str(error))
        return found
    placed = _container(pod, name, found)
    if placed is not None:
        found.patch.append(replace(f"/spec/resourceClaims/{index}", entry(claim_name(review))))
        found.patch += _resources(placed, name, asked)
        _remember(pod, at, asked, found)
    return found


def read_claim(claim: Mapping[str, Any]) -> Asked:
    """Return what the spec of a claim asks the queue for.

    Raises:
        ValueError: it asks for what the queue does not decide on; the text says what to write.
    """
    devices = claim.get("devices") or {}
    requests = devices.get("requests") or []
    if len(requests) != 1 or "exactly" not in requests[0]:
        raise ValueError(f"a claim of {names.QUEUE_CLASS} has one request, under `exactly`")
    if devices.get("constraints") or devices.get("config"):
        raise ValueError("the queue takes neither `constraints` nor `config`; remove them")
    exactly = requests[0]["exactly"]
    if exactly.get("allocationMode", "ExactCount") != "ExactCount":
        raise ValueError("write allocationMode: ExactCount, and a count")
    for wrong, instead in (
        ("selectors", "select the GPU's type by spec.nodeSelector of the pod"),
        ("tolerations", "remove them: the queue decides which GPUs take jobs"),
        ("adminAccess", "remove it"),
    ):
        if exactly.get(wrong):
            raise ValueError(f"the queue does not take `{wrong}` of a claim; {instead}")
    count = exactly.get("count", 1)
    if not isinstance(count, int) or not 1 <= count <= MAX_GPUS_PER_POD:
        raise ValueError(f"its count must be from 1 to {MAX_GPUS_PER_POD}")
    return Asked(count, _memory((exactly.get("capacity") or {}).get("requests") or {}))


def _memory(capacity: Mapping[str, Any]) -> str:
    """Return the memory of each GPU that a request asks for; "" where it does not say."""
    if unknown := sorted(set(capacity) - set(_CAPACITIES)):
        raise ValueError(f"a GPU has the capacities memory and shares, and no {unknown[0][:64]}")
    shares = capacity.get("shares", "1")
    if parse_quantity(str(shares)) != 1:
        raise ValueError(
            "the queue gives one share, or the whole GPU to a pod with the annotation"
            f' {names.EXCLUSIVE}: "true"; remove `shares`'
        )
    return str(capacity.get("memory", ""))


def _container(pod: PodShape, name: str, found: Rewriting) -> Placed | None:
    """Return the one ordinary container that names the claim; else refuse the pod."""
    users = [
        placed
        for placed in pod.containers()
        if any(each.get("name") == name for each in placed.body.resources.claims)
    ]
    for placed in users:
        if placed.kind != "containers" or len(users) > 1:
            at = f"{placed.field('spec')}.resources.claims"
            found.refuse(at, name, "one ordinary container of a pod gets the GPUs; remove it here")
    if not users:
        found.refuse("spec.containers", name, f"no container names the claim {name}")
    return users[0] if users and not found.errors else None


def _resources(placed: Placed, name: str, asked: Asked) -> list[Operation]:
    """Return the changes of the container: the claim by the queue's name, and the resource."""
    at, body = f"{placed.pointer}/resources", placed.body
    patch = [
        replace(f"{at}/claims/{index}", {"name": ENTRY})
        for index, each in enumerate(body.resources.claims)
        if each.get("name") == name
    ]
    sections = {"limits"} | ({"requests"} & body.resources.model_fields_set)
    for section in sorted(sections):
        present = section in body.resources.model_fields_set
        key, amount = escape(names.RESOURCE), str(asked.gpus)
        patch.append(
            add(f"{at}/{section}/{key}", amount)
            if present
            else add(f"{at}/{section}", {names.RESOURCE: amount})
        )
    return patch


def _remember(pod: PodShape, at: str, asked: Asked, found: Rewriting) -> None:
    """Annotate the memory that the template asks for; the pod's own annotation counts for more."""
    if not asked.memory:
        return
    present = pod.metadata.annotations
    kept = present.get(names.MEMORY, asked.memory)
    if not present:
        found.patch.append(add("/metadata/annotations", {names.MEMORY: kept}))
    elif names.MEMORY not in present:
        found.patch.append(add(f"/metadata/annotations/{escape(names.MEMORY)}", kept))
    if kept != asked.memory:
        found.warnings.append(
            f'{at}: {annotation_field(names.MEMORY)} takes the place of its memory: "{kept[:64]}"'
        )
