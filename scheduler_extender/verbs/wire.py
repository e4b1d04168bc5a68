"""The extender protocol, v1, as kube-scheduler speaks it: keys are Go field names.

Requests are validated from bytes, and only the fields that we use are kept. Answers with a line
per node are put together from ready-made pieces: they are the larger part of a verb's time.
Source: k8s.io/kube-scheduler/extender/v1/types.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

MAX_SCORE = 10  # extenderv1.MaxExtenderPriority

Text = Annotated[str, Field(max_length=4096)]
Pairs = dict[str, str]
#: A part of an answer.
Buffer = bytes | memoryview


class Owner(TypedDict, total=False):
    """metav1.OwnerReference."""

    apiVersion: str
    kind: str
    name: str
    uid: str
    controller: bool | None


class Metadata(TypedDict, total=False):
    """metav1.ObjectMeta, as far as a verb reads it."""

    name: str
    namespace: str
    uid: str
    resourceVersion: str
    labels: Pairs | None
    annotations: Pairs | None
    ownerReferences: list[Owner] | None


class Resources(TypedDict, total=False):
    """corev1.ResourceRequirements."""

    limits: dict[str, str | int | float] | None
    requests: dict[str, str | int | float] | None


class Container(TypedDict, total=False):
    """corev1.Container."""

    name: str
    resources: Resources | None


class PodResourceClaim(TypedDict, total=False):
    """corev1.PodResourceClaim."""

    name: str
    resourceClaimName: str | None
    resourceClaimTemplateName: str | None


class PodSpec(TypedDict, total=False):
    """corev1.PodSpec."""

    nodeName: str
    resourceClaims: list[PodResourceClaim] | None
    containers: list[Container] | None


class Pod(TypedDict, total=False):
    """corev1.Pod."""

    metadata: Metadata
    spec: PodSpec


class Named(TypedDict, total=False):
    """An object of which only the metadata matters."""

    metadata: Metadata


class NodeList(TypedDict, total=False):
    """corev1.NodeList."""

    items: list[Named] | None


class ExtenderArgs(TypedDict, total=False):
    """What filter and prioritize are asked. NodeNames where `nodeCacheCapable`, else Nodes."""

    Pod: Pod
    NodeNames: list[str] | None
    Nodes: NodeList | None


class ExtenderBindingArgs(TypedDict):
    """What bind is asked."""

    PodName: Text
    PodNamespace: Text
    PodUID: Text
    Node: Text


class Victims(TypedDict, total=False):
    """Victims as whole pods: what is sent where not `nodeCacheCapable`."""

    Pods: list[Named] | None
    NumPDBViolations: int


class MetaPod(TypedDict):
    """A victim by uid."""

    UID: str


class MetaVictims(TypedDict, total=False):
    """Victims by uid."""

    Pods: list[MetaPod] | None
    NumPDBViolations: int


class ExtenderPreemptionArgs(TypedDict, total=False):
    """What preempt is asked: per node, who would have to go."""

    Pod: Pod
    NodeNameToVictims: dict[str, Victims] | None
    NodeNameToMetaVictims: dict[str, MetaVictims] | None


class HostPriority(TypedDict):
    """One line of prioritize's answer; the score is a whole number from 0 to 10."""

    Host: str
    Score: Annotated[int, Field(ge=0, le=MAX_SCORE)]


class ExtenderFilterResult(TypedDict):
    """What filter answers. A null NodeNames says that no node fits."""

    Nodes: None
    NodeNames: list[str] | None
    FailedNodes: dict[str, str]
    FailedAndUnresolvableNodes: dict[str, str]
    Error: str


FILTER = TypeAdapter(ExtenderArgs)
BIND = TypeAdapter(ExtenderBindingArgs)
PREEMPT = TypeAdapter(ExtenderPreemptionArgs)


def asked_nodes(args: ExtenderArgs) -> list[str]:
    """Return the names of the nodes in question, whichever way they were sent."""
    names = args.get("NodeNames")
    if names is not None:
        return names
    nodes = args.get("Nodes") or {}
    return [item.get("metadata", {}).get("name", "") for item in nodes.get("items") or ()]


def asked_victims(args: ExtenderPreemptionArgs) -> dict[str, MetaVictims]:
    """Return the proposed victims per node by uid, whichever way they were sent."""
    named = args.get("NodeNameToMetaVictims")
    if named is not None:
        return named
    whole = args.get("NodeNameToVictims") or {}
    return {
        node: {
            "Pods": [
                {"UID": pod.get("metadata", {}).get("uid", "")} for pod in victims.get("Pods") or ()
            ],
            "NumPDBViolations": victims.get("NumPDBViolations", 0),
        }
        for node, victims in whole.items()
    }


def filter_answer(
    fitting: bytes, failed: Iterable[Buffer] = (), unresolvable: bytes = b""
) -> bytes:
    """Return filter's answer from names (`"a","b"`) and members (`"c":"why"`) that are JSON.

    `failed` are parts with members. They are a megabyte, so that all is copied once.
    """
    names = (b"[", fitting, b"]") if fitting else (b"null",)
    return b"".join(
        (
            b'{"Nodes":null,"NodeNames":',
            *names,
            b',"FailedNodes":{',
            *_with_commas(failed),
            b'},"FailedAndUnresolvableNodes":{',
            unresolvable,
            b'},"Error":""}',
        )
    )


def prioritize_answer(*parts: Buffer) -> bytes:
    """Return prioritize's answer from parts with its lines."""
    return b"".join((b"[", *_with_commas(parts), b"]"))


def _with_commas(parts: Iterable[Buffer]) -> list[Buffer]:
    """Return the parts that are not empty, with a comma before each but the first."""
    found = [each for part in parts if part for each in (b",", part)]
    return found[1:]


def encode(answer: Mapping[str, Any]) -> bytes:
    """Return any answer as JSON."""
    return json.dumps(answer, separators=(",", ":")).encode()
