"""A pod, trimmed to the fields that Tandem uses."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from scheduler_extender.cluster.selectors import (
    ANYWHERE,
    NodeRequirements,
    node_requirements,
    with_claim,
)
from tandem.contracts import names
from tandem.contracts.claims import claim_of
from tandem.contracts.gangs import with_pod_group
from tandem.contracts.placement import PlacedWith, parse_placed_with
from tandem.contracts.quantity import parse_quantity
from tandem.contracts.resources import WorkloadRef
from tandem.contracts.values import MAX_INTEGER
from tandem.progress import says_out_of_memory
from tandem.reasons.causes import Cause, Reason

_TERMINAL = ("Succeeded", "Failed")
_GATES_NAMED = 4
_LONGEST_REASON = 64  # characters of a kubelet's word for why a container waits
#: Characters of a termination message that are read, from its end: the kubelet keeps 4096 bytes.
_MESSAGE_READ = 4096
_NOTHING: Mapping[str, Any] = {}  # one for all: a pod of others needs none of its own
#: Resources apart from CPU, memory and GPUs, by name: whole numbers, storage in bytes.
Amounts = tuple[tuple[str, int], ...]
#: What a pod takes of a node: its name, CPU in cores, memory in bytes, then the other resources.
Use = tuple[str, float, int, *Amounts]
#: What a pod asks of a node apart from GPUs; equal for pods that ask the same.
Shape = tuple[float, int, str, Amounts]
#: Other resources of one pod that are counted by name. A kubelet runs no pod that asks for what its
#: node does not offer, and no node offers as many.
_MOST_AMOUNTS = 64
_TOO_MANY: Amounts = ((f"more than {_MOST_AMOUNTS} kinds of resources", 1),)
#: Resources that are not among the `Amounts`: those with a column of their own, and our GPUs.
OWN_COLUMNS = frozenset(("cpu", "memory", "pods", names.RESOURCE))
#: The annotations that somebody here reads; the others are dropped before anything keeps a pod.
_KEPT_ANNOTATIONS = frozenset((*names.USER_ANNOTATIONS, *names.OWN_ANNOTATIONS)) - {
    names.PYTORCH_ALLOC_CONF  # of its container alone
}


@dataclass(frozen=True, slots=True)
class PodInfo:
    """One pod. Of one that asks for none of our GPUs, only what it takes of its node is read."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    node_name: str = ""
    nominated_node: str = ""  # which kube-scheduler tries first and alone
    phase: str = "Pending"
    gates: tuple[str, ...] = ()
    deleting: bool = False
    ends_by: str = ""  # of a pod that is being deleted: its deletionTimestamp
    grace_s: int = 0  # of a pod that is being deleted: from the first request to `ends_by`
    created_at: str = ""
    bound_at: str = ""  # when its Binding was written, by the API server's clock
    started_at: str = ""
    prepared_at: str = (
        ""  # of a pod whose containers have not started: the last start of an init one
    )
    pulling: bool = False  # an image is being pulled for it
    waits_for: str = ""  # what its containers wait for, in words
    finished_at: str = ""
    failures: tuple[tuple[str, str], ...] = ()  # containers that failed, and when they ended
    out_of_memory: tuple[tuple[str, str], ...] = ()  # those that said so
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    foreign_annotation_bytes: int = 0  # of the annotations that Tandem does not write
    owner: WorkloadRef | None = None  # its controller
    #: GPUJob and role as they were known first, where what the pod says now leads to others.
    known_as: tuple[str, str] | None = None
    gpus: int = 0
    cpu: float = 0.0  # cores
    memory_bytes: int = 0
    amounts: Amounts = ()
    requires: NodeRequirements = ANYWHERE
    #: Those of its own, where it asks for GPUs of ours.
    addresses: tuple[str, ...] = ()
    #: Of its containers that ended and were not asked to: name, exit code, when, reason.
    ends: tuple[tuple[str, int, str, str], ...] = ()
    #: The name of the ResourceClaim by which it gets its GPUs, '' where it has none.
    gpu_claim: str = ""
    fingerprint: str = ""  # of the container that asks for GPUs: image, command and resources

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def gated(self) -> bool:
        """True while our gate holds it back."""
        return names.SCHEDULING_GATE in self.gates

    @property
    def shape(self) -> Shape:
        """Its node requirements apart from GPUs."""
        return self.cpu, self.memory_bytes, self.requires.key, self.amounts

    @property
    def takes(self) -> Use | None:
        """The resources that it takes of its node; None where it takes nothing."""
        return self.on(self.node_name) if self.node_name and not self.finished else None

    def on(self, node: str) -> Use:
        """Return what it takes of a node that it is put on."""
        return node, self.cpu, self.memory_bytes, *self.amounts

    @property
    def blocked(self) -> Cause | None:
        """Why a plan for the pod could not take effect, None where it could.

        While another gate remains, kube-scheduler does not look at the pod, and the plan would
        expire. A pod without room for Tandem's annotations cannot be stamped, nor run: the API
        server refuses each later update of it, the kubelet's included.
        """
        others = sorted(gate for gate in self.gates if gate != names.SCHEDULING_GATE)
        if others:
            more = f" and {len(others) - _GATES_NAMED} more" if len(others) > _GATES_NAMED else ""
            gates = f"{', '.join(others[:_GATES_NAMED])}{more}"
            return Cause(Reason.OTHER_GATES, pod=self.name, detail=gates)
        if self.foreign_annotation_bytes > names.FOREIGN_ANNOTATION_BYTES:
            return Cause(
                Reason.ANNOTATIONS_TOO_LARGE,
                pod=self.name,
                value=self.foreign_annotation_bytes,
                bound=names.FOREIGN_ANNOTATION_BYTES,
            )
        return None

    @property
    def placed_with(self) -> PlacedWith | None:
        """Its placement, as its Binding says; None without one."""
        return parse_placed_with(self.annotations.get(names.PLACED_WITH, ""))

    @property
    def finished(self) -> bool:
        """True when it has ended and holds nothing any more."""
        return self.phase in _TERMINAL

    @property
    def devices(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that it was given; empty before it is bound."""
        text = self.annotations.get(names.VISIBLE_DEVICES, "")
        return tuple(part for part in text.split(",") if part)


def pod_info(
    pod: Mapping[str, Any], before: PodInfo | None = None, *, kept: bool = False
) -> PodInfo:
    """Return what Tandem uses of a pod object; `before` is what was read of it earlier.

    Of what is `kept`, requirements are left out where they can matter no more: it is settled where
    the pod may run, and it is never moved.
    Every event of every pod of the cluster comes here. Every user who may run a pod causes them.
    """
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    status = pod.get("status") or {}
    gpus = gpus_wanted(spec)
    if gpus == 0:
        return _without_gpus(metadata, spec, status)
    cpu, memory_bytes, amounts = _requests(spec)
    annotations = metadata.get("annotations") or _NOTHING
    stays = kept and spec.get("nodeName") and annotations.get(names.CHECKPOINT) != "true"
    failures, out_of_memory = _failures(status, before)
    gpu_claim = claim_of(spec)
    required = ANYWHERE if stays else node_requirements(
        spec.get("nodeSelector") or {},
        spec.get("tolerations") or (),
        spec.get("affinity") or {},
    )  # fmt: skip
    return PodInfo(
        namespace=metadata.get("namespace", "default"),
        name=metadata.get("name", ""),
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        node_name=spec.get("nodeName") or "",
        nominated_node=status.get("nominatedNodeName") or "",
        phase=status.get("phase") or "Pending",
        gates=tuple(gate["name"] for gate in spec.get("schedulingGates") or ()),
        deleting="deletionTimestamp" in metadata,
        ends_by=metadata.get("deletionTimestamp") or "",
        grace_s=metadata.get("deletionGracePeriodSeconds") or 0,
        created_at=metadata.get("creationTimestamp") or "",
        bound_at=_bound_at(status),
        started_at=_first_time(status, "startedAt", min),
        **_preparation(spec, status),
        finished_at=_first_time(status, "finishedAt", max),
        failures=failures,
        out_of_memory=out_of_memory,
        labels=with_pod_group(metadata.get("labels") or {}, _pod_group(spec)),
        annotations=_kept(annotations),
        foreign_annotation_bytes=_foreign_bytes(annotations),
        owner=_controller(metadata.get("ownerReferences") or ()),
        gpus=gpus,
        cpu=cpu,
        memory_bytes=memory_bytes,
        amounts=amounts,
        addresses=tuple(_addresses(spec, status)),
        ends=tuple(_ends(status)) if "deletionTimestamp" not in metadata else (),
        fingerprint=next(
            (
                _fingerprint(c)
                for c in spec.get("containers") or ()
                if gpus_wanted({"containers": [c]})
            ),
            "",
        ),
        gpu_claim=gpu_claim,
        requires=with_claim(required) if gpu_claim else required,
    )


def _without_gpus(
    metadata: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any]
) -> PodInfo:
    """Return what a pod without GPUs of ours takes of its node, and nothing else about it."""
    node_name, phase = spec.get("nodeName") or "", status.get("phase") or "Pending"
    takes = bool(node_name) and phase not in _TERMINAL
    cpu, memory_bytes, amounts = _requests(spec) if takes else (0.0, 0, ())
    return PodInfo(
        namespace=metadata.get("namespace", "default"),
        name=metadata.get("name", ""),
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        node_name=node_name,
        phase=phase,
        labels=_NOTHING,
        annotations=_NOTHING,
        cpu=cpu,
        memory_bytes=memory_bytes,
        amounts=amounts,
    )


def _pod_group(spec: Mapping[str, Any]) -> str:
    group = spec.get("schedulingGroup")
    return (group.get("podGroupName") or "") if group else ""


def gpus_wanted(spec: Mapping[str, Any]) -> int:
    """Return how many GPUs (shares of different ones) a pod spec asks for.

    The API server accepts any quantity that is a whole number, such as `1k`.
    """
    wanted = 0
    for container in spec.get("containers") or ():
        limits = (container.get("resources") or _NOTHING).get("limits") or _NOTHING
        asked = limits.get(names.RESOURCE)
        if asked:
            wanted += int(parse_quantity(asked))
    return min(wanted, MAX_INTEGER)  # the sum of several may be more than a GPUJob can state


def _addresses(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the addresses that a pod alone has: not the node's, and none once it has ended."""
    if not spec.get("hostNetwork") and status.get("phase") not in _TERMINAL:
        yield from (one["ip"] for one in status.get("podIPs") or () if one.get("ip"))


def _ends(status: Mapping[str, Any]) -> Iterator[tuple[str, int, str, str]]:
    """Yield the last end of each container that has ended."""
    for container in status.get("containerStatuses") or ():
        states = [container.get(key) or {} for key in ("state", "lastState")]
        ended = next((state["terminated"] for state in states if state.get("terminated")), None)
        if ended and ended.get("finishedAt"):
            yield (
                container["name"],
                int(ended.get("exitCode") or 0),
                ended["finishedAt"],
                ended.get("reason") or "",
            )


def _kept(annotations: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in annotations.items() if key in _KEPT_ANNOTATIONS}


def _foreign_bytes(annotations: Mapping[str, str]) -> int:
    """Return the size of the annotations that Tandem does not write, keys and values, in UTF-8."""
    return sum(
        len(key.encode()) + len(value.encode())
        for key, value in annotations.items()
        if key not in names.OWN_ANNOTATIONS
    )


def _requests(spec: Mapping[str, Any]) -> tuple[float, int, Amounts]:
    """Return CPU cores, memory bytes and the other resources as the scheduler counts them.

    The sum over containers and sidecars, or what an init container takes with the sidecars that
    start before it where that is more; in place of it what the pod as a whole asks for, and the
    overhead of its runtime in any case.
    """
    total: dict[str, float] = {}
    for container in spec.get("containers") or ():
        _add(total, _asked(container))
    if spec.get("initContainers"):
        _with_init(total, spec["initContainers"])
    total |= _amounts((spec.get("resources") or _NOTHING).get("requests") or _NOTHING)
    _add(total, _amounts(spec.get("overhead") or _NOTHING))
    cpu, memory = total.pop("cpu", 0.0), total.pop("memory", 0.0)
    return cpu, int(memory), _whole_amounts(total) if total else ()


def _with_init(total: dict[str, float], init: Iterable[Mapping[str, Any]]) -> None:
    """Raise `total`, that of the containers, to what the pod takes at most while it starts."""
    sidecars: dict[str, float] = {}
    most: dict[str, float] = {}
    for container in init:
        asked = _asked(container)
        if container.get("restartPolicy") == "Always":
            _add(total, asked)
            _add(sidecars, asked)
            continue
        for name, amount in asked.items():
            most[name] = max(most.get(name, 0.0), amount + sidecars.get(name, 0.0))
    for name, amount in most.items():
        total[name] = max(total.get(name, 0.0), amount)


def _add(total: dict[str, float], asked: Mapping[str, float]) -> None:
    for name, amount in asked.items():
        total[name] = total.get(name, 0.0) + amount


def _asked(asks: Mapping[str, Any]) -> dict[str, float]:
    """Return what a container, or a pod as a whole, asks for: a limit is a request, too."""
    resources = asks.get("resources")
    if not resources:
        return {}
    limits, requests = resources.get("limits"), resources.get("requests")
    if limits and requests:
        return _amounts({**limits, **requests})
    return _amounts(limits or requests or _NOTHING)


def _amounts(resources: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(parse_quantity(value))
        for name, value in resources.items()
        if name != names.RESOURCE
    }


def _whole_amounts(total: Mapping[str, float]) -> Amounts:
    found = tuple((name, math.ceil(total[name])) for name in sorted(total) if total[name] > 0)
    return found if len(found) <= _MOST_AMOUNTS else found[:_MOST_AMOUNTS] + _TOO_MANY


_SORTED = json.JSONEncoder(sort_keys=True)  # json.dumps would make one for each pod


def _fingerprint(container: Mapping[str, Any]) -> str:
    """Return what stands for a container's image, command and resources.

    By the image's tag, not its content: another image under the same tag is recognised by what is
    observed of it.
    """
    parts = [container.get(part) for part in ("image", "command", "args", "resources")]
    text = hashlib.sha256(_SORTED.encode(parts).encode()).hexdigest()[:32]
    return sys.intern(text)  # one object for all pods that are alike


def _controller(references: Iterable[Mapping[str, Any]]) -> WorkloadRef | None:
    for reference in references:
        if reference.get("controller"):
            return WorkloadRef(
                api_version=reference["apiVersion"],
                kind=reference["kind"],
                name=reference["name"],
                uid=reference["uid"],
            )
    return None


def _bound_at(status: Mapping[str, Any]) -> str:
    """Return when the API server wrote that the pod is scheduled, in the same write as its node."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return condition.get("lastTransitionTime") or ""
    return ""


#: What a kubelet says of a container that it has not tried to start yet. Until its image is there,
#: it says nothing else.
_BEFORE_START = ("ContainerCreating", "PodInitializing")


class _Preparation(TypedDict, total=False):
    prepared_at: str
    pulling: bool
    waits_for: str


def _preparation(spec: Mapping[str, Any], status: Mapping[str, Any]) -> _Preparation:
    """Return how far a pod on a node is whose containers have not started; of others nothing.

    A kubelet reports no image that it pulls. It has volumes and network first, which a condition
    says, then pulls; an image that it could not pull is the reason why the container waits.
    """
    if not spec.get("nodeName") or status.get("phase", "Pending") != "Pending":
        return {}
    sidecars = {
        container["name"]
        for container in spec.get("initContainers") or ()
        if container.get("restartPolicy") == "Always"
    }
    init = status.get("initContainerStatuses") or ()
    prepared_at = max((_started(each) for each in init), default="")
    for each in init:
        if each["name"] not in sidecars and (each.get("state") or {}).get("running"):
            return {
                "prepared_at": prepared_at,
                "waits_for": f"its init container {each['name']} is running",
            }
    begun = False
    for each in (*init, *(status.get("containerStatuses") or ())):
        waiting = (each.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason") or ""
        begun = begun or reason in _BEFORE_START
        if reason and reason not in _BEFORE_START:
            return {
                "prepared_at": prepared_at,
                "waits_for": f"container {each['name']}: {reason[:_LONGEST_REASON]}",
            }
    if not begun:
        return {"prepared_at": prepared_at, "waits_for": "its kubelet has not started it"}
    if any(
        each.get("type") == "PodReadyToStartContainers" and each.get("status") == "False"
        for each in status.get("conditions") or ()
    ):
        return {"prepared_at": prepared_at, "waits_for": "its volumes or its network are not ready"}
    return {"prepared_at": prepared_at, "pulling": True, "waits_for": "its images are being pulled"}


def _started(container: Mapping[str, Any]) -> str:
    state = container.get("state") or {}
    part = state.get("running") or state.get("terminated") or {}
    return part.get("startedAt") or ""


def _first_time(status: Mapping[str, Any], what: str, choose: Callable[[list[str]], str]) -> str:
    """Return the earliest start or the latest end among the containers' states, or ''.

    RFC 3339 in UTC with seconds sorts as text.
    """
    times = [
        str(part[what])
        for container in status.get("containerStatuses") or ()
        for part in (container.get("state") or {}).values()
        if isinstance(part, dict) and part.get(what)
    ]
    return choose(times) if times else ""


def _failures(
    status: Mapping[str, Any], before: PodInfo | None
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """Return the containers that failed and when, and those of them that lacked GPU memory.

    Their last words say so: the end of the termination message, which a container has written to
    its termination log or which is the end of its output. The words of one end are read once.
    """
    read = frozenset(before.failures) if before is not None else frozenset()
    said = frozenset(before.out_of_memory) if before is not None else frozenset()
    failures, out_of_memory = [], []
    for container in status.get("containerStatuses") or ():
        for state in (container.get("state"), container.get("lastState")):
            ended = (state or {}).get("terminated") or {}
            if not ended.get("exitCode"):
                continue
            failure = container.get("name", ""), ended.get("finishedAt") or ""
            failures.append(failure)
            words = "" if failure in read else (ended.get("message") or "")[-_MESSAGE_READ:]
            if failure in said or (words and says_out_of_memory(words)):
                out_of_memory.append(failure)
    return tuple(failures), tuple(out_of_memory)
