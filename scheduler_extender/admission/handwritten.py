"""Pods that ask for GPUs by ResourceClaims that users have written: read as Tandem's own requests.

A pod names a ResourceClaimTemplate, or a ResourceClaim. Of a template kube-controller-manager would
make a claim for each pod that waits, which no plan knows: the claim that the pod's plan makes takes
its place. A claim by hand stays, and the plan allocates it. The pod gets the number of GPUs that
its claim asks for, and is in the queue like any other. Pure but for `Read`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler_extender.admission.json_patch import Operation, add, escape, replace
from scheduler_extender.admission.podshape import Placed, PodShape
from tandem.contracts import names
from tandem.contracts.annotations import FieldError, annotation_field
from tandem.contracts.claims import (
    ENTRY,
    Asked,
    asks_us,
    claim_name,
    entry,
    is_made,
    read_claim,
)
from tandem.kube.resource import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Resource

#: Reads a claim or template by its namespace and name; None where there is none (yet).
Read = Callable[[Resource, str, str], Mapping[str, Any] | None]

#: Of those that a pod names; each is a question to the API server.
MAX_READ = 4
_KINDS = {
    "resourceClaimTemplateName": RESOURCE_CLAIM_TEMPLATES,
    "resourceClaimName": RESOURCE_CLAIMS,
}


@dataclass(frozen=True, slots=True)
class _Named:
    """A claim or template that a pod names: the place in its list, the field, both names."""

    index: int
    field: str
    entry: str
    name: str

    @property
    def at(self) -> str:
        """Its field in the pod."""
        return f"spec.resourceClaims[{self.index}].{self.field}"


@dataclass(slots=True)
class Rewriting:
    """The changes that make a pod ask for `tandem.gpu/gpu`; none where no claim is ours.

    With errors the rest means nothing.
    """

    patch: list[Operation] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[FieldError] = field(default_factory=list)

    def refuse(self, at: str, value: str, allowed: str) -> None:
        """Keep an error."""
        self.errors.append(FieldError(at, value, allowed))


def names_claims(pod: PodShape) -> bool:
    """Say whether a pod names templates, or claims that Tandem has not made."""
    return bool(_named(pod))


def _named(pod: PodShape) -> list[_Named]:
    found = []
    for index, each in enumerate(pod.spec.resource_claims):
        for field_, resource in _KINDS.items():
            name = each.get(field_)
            made = resource is RESOURCE_CLAIMS and isinstance(name, str) and is_made(name)
            if isinstance(name, str) and name and not made:
                found.append(_Named(index, field_, str(each.get("name")), name))
    return found


def rewrite(pod: PodShape, namespace: str, review: str, read: Read) -> Rewriting:
    """Return what makes a pod ask for `tandem.gpu/gpu` that asks for our GPUs by a claim.

    `review` is the uid of the request that creates the pod, of which the claim that takes a
    template's place gets its name. The first `MAX_READ` claims and templates are looked at.
    """
    found = Rewriting()
    ours: list[tuple[_Named, Mapping[str, Any]]] = []
    for each in _named(pod)[:MAX_READ]:
        known = read(_KINDS[each.field], namespace, each.name) or {}
        claim = known.get("spec") or {} if each.field == "resourceClaimTemplateName" else known
        if asks_us(claim):
            ours.append((each, claim))
    if not ours:
        return found
    (named, claim), *more = ours
    if more:
        allowed = f"{named.name} asks for GPUs already; one claim says how many"
        found.refuse(f"spec.resourceClaims[{more[0][0].index}]", more[0][0].entry, allowed)
        return found
    try:
        asked = read_claim(claim)
        if (claim.get("status") or {}).get("reservedFor"):
            raise ValueError(
                "another pod has it, and a claim is one pod's at a time;"
                " name a ResourceClaimTemplate in its place"
            )
    except ValueError as error:
        found.refuse(named.at, named.name, str(error))
        return found
    placed = _container(pod, named.entry, found)
    if placed is not None:
        by_hand = named.field == "resourceClaimName"
        wanted = entry(named.name if by_hand else claim_name(review))
        found.patch.append(replace(f"/spec/resourceClaims/{named.index}", wanted))
        found.patch += _resources(placed, named.entry, asked)
        _remember(pod, named.at, asked, found)
    return found


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
    """Annotate the memory that the claim asks for; the pod's own annotation counts for more."""
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
