"""Which pods belong to one GPUJob, and how many of them must start together."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from scheduler_extender.cluster.kinds import Ended, Scale, WorkloadKind, know_templates, shipped
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.roles import NO_ROLES, Raw, Roles, at, reader_of, whole
from tandem.contracts import gangs, names
from tandem.contracts.resources import WorkloadRef
from tandem.contracts.values import MAX_INTEGER
from tandem.kube.resource import Resource


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of workload, as its definition names it.

    `roles` reads off the object which pods start together (none: each alone), `least` with how many
    of them it starts where not all are needed, `suspend` is the path of the field by which its
    owner lets it rest, `suspend_needs` of the one that has to be true then, `restarts` says that
    its owner makes new pods for those evicted, `scale` how it gets fewer pods.
    """

    resource: Resource | None = None
    group: str | None = None  # None: whatever its group is
    roles: Callable[[Raw], Roles] = lambda _: NO_ROLES
    least: tuple[str, ...] = ()
    role_label: str = ""
    suspend: tuple[str, ...] = ()
    suspend_needs: tuple[str, ...] = ()
    restarts: bool = True
    ended: Ended | None = None
    endless: bool = False
    scale: Scale | None = None


def _kind(known: WorkloadKind) -> Kind:
    resource = Resource(known.group, known.version, known.kind, known.plural)
    return Kind(
        resource if known.plural and known.read else None,
        known.group if known.plural else None,
        reader_of(known),
        known.minimum or (),
        known.role_label,
        known.suspend or (),
        known.suspend_needs or (),
        known.restarts,
        known.ended,
        known.endless,
        known.scale,
    )


#: Bare pods, and kinds whose controllers are not known to make pods anew: their work would be lost.
_OTHER = Kind(restarts=False)
#: By the kind of the workload, and as KIND.GROUP where another group has it too. Pods of kinds that
#: are not here start one by one; none is evicted.
KINDS: dict[str, Kind] = {}
#: Kinds whose pods do not end by themselves: services and notebooks; see `has_no_end`.
ENDLESS: set[str] = set()
#: By the label of pods that names such an object: it says how many of them start together.
_GROUPS: dict[str, Resource] = {}


def know(kinds: Collection[WorkloadKind]) -> None:
    """Use these kinds from now on; called once at the start, before any object is read."""
    know_templates(kinds)
    for table in (KINDS, ENDLESS, _GROUPS):
        table.clear()
    for known in kinds:
        kind = _kind(known)
        if known.group_label:
            assert kind.resource is not None
            _GROUPS[known.group_label] = kind.resource
        KINDS[known.name if known.kind in KINDS else known.kind] = kind
        if known.endless:
            ENDLESS.add(known.kind)


know(shipped())

#: Kinds that stand above the controllers of their pods, by the label that names them.
_ABOVE = {names.JOBSET_LABEL: "JobSet", names.LEADER_WORKER_SET_LABEL: "LeaderWorkerSet"}


def kind_of(workload: WorkloadRef) -> Kind:
    """Return what we know of the kind of a workload; of the same name in another group, nothing."""
    return _find(workload.api_version.rpartition("/")[0], workload.kind)


def _find(group: str, kind: str) -> Kind:
    found = KINDS.get(f"{kind}.{group}") or KINDS.get(kind, _OTHER)
    return found if found.group in (None, group) else _OTHER


def resource_of(workload: WorkloadRef) -> Resource | None:
    """Return how the API serves a workload: at the version by which its pods refer to it."""
    resource = kind_of(workload).resource
    version = workload.api_version.rpartition("/")[2]
    return replace(resource, version=version) if resource is not None else None


def topmost(owner: Raw, workload: WorkloadRef) -> WorkloadRef | None:
    """Return the workload that makes `workload`, where it rests in its place or has no end.

    `owner` is the object of `workload`. What is suspended below it would be written back.
    """
    for reference in (owner.get("metadata") or {}).get("ownerReferences") or ():
        if reference.get("controller"):
            above = WorkloadRef(
                api_version=reference["apiVersion"],
                kind=reference["kind"],
                name=reference["name"],
                uid=reference["uid"],
            )
            kind = kind_of(above)
            counts = kind.suspend or kind.endless
            return above if counts and above.uid != workload.uid else None
    return None


def gpujob_name(pod: PodInfo) -> str:
    """Return the name of the GPUJob, in the pod's namespace, that the pod belongs to."""
    if pod.known_as is not None:
        return pod.known_as[0]
    return pod.annotations.get(names.GPU_JOB) or _derived_name(pod)


def _derived_name(pod: PodInfo) -> str:
    return gangs.derived_name(pod.name, pod.annotations, pod.labels, _owner(pod))


def earlier_name(pod: PodInfo) -> str:
    """Return the name of the pod's GPUJob if it is from before names depended on the API group."""
    return gangs.earlier_name(pod.name, pod.annotations, pod.labels, _owner(pod))


def is_renamed(pod: PodInfo, name: str) -> bool:
    """Say whether the GPUJob `name` is that of the pod's owner, by its name then or now."""
    return name == _derived_name(pod) or name == earlier_name(pod)


def _owner(pod: PodInfo) -> tuple[str, str] | None:
    owner = pod.owner
    if owner is None:
        return None
    return gangs.qualified_kind(owner.api_version, owner.kind), owner.name


def _has_moved(pod: PodInfo) -> bool:
    """Return True where labels and owner lead to another GPUJob than the pod's: they are void."""
    return not is_renamed(pod, gpujob_name(pod))


def above(pod: PodInfo) -> tuple[str, str] | None:
    """Return kind and name of the workload above the pod's controller, where there is one."""
    for label, kind in _ABOVE.items():
        if pod.labels.get(label) and not _has_moved(pod):
            return kind, pod.labels[label]
    launches = gangs.mpi_job(pod.labels, _owner(pod))
    if launches and gpujob_name(pod) == _derived_name(pod) and not _names_gang(pod):
        return "MPIJob", launches
    return None


def _names_gang(pod: PodInfo) -> bool:
    return gangs.names_group(pod.annotations, pod.labels)


def workload_of(pod: PodInfo) -> WorkloadRef:
    """Return the object that controls the pod; a bare pod and a step of a workflow is its own.

    A pod that was given another owner or other labels since its GPUJob was fixed is its own, too.
    """
    own = WorkloadRef(api_version="v1", kind="Pod", name=pod.name, uid=pod.uid)
    if pod.owner is None or _has_moved(pod):
        return own
    kind = gangs.qualified_kind(pod.owner.api_version, pod.owner.kind)
    alone = gangs.derived_name(pod.name, {}, {}, None)
    return own if gangs.owns_steps(kind) and gpujob_name(pod) == alone else pod.owner


def has_no_end(workload: WorkloadRef) -> bool:
    """Say whether a workload is of a kind that has no end of its own."""
    # Another group may have the kind too. The name alone distinguishes most, which costs less.
    return workload.kind in ENDLESS and kind_of(workload).endless


def is_endless(pod: PodInfo) -> bool:
    """Say whether a pod is of a kind that has no end of its own."""
    return pod.owner is not None and has_no_end(pod.owner) and not _has_moved(pod)


def role_of(pod: PodInfo) -> str:
    """Return the role of a pod in its workload, '' where the kind has one role only.

    The role by which it was placed counts, else the one that it had first.
    """
    placed = pod.placed_with
    if placed is not None:
        return placed.role or ""
    return _labelled_role(pod) if pod.known_as is None else pod.known_as[1]


def _labelled_role(pod: PodInfo) -> str:
    labels = pod.labels
    if names.LEADER_WORKER_SET_WORKER_LABEL in labels:
        leads = labels[names.LEADER_WORKER_SET_WORKER_LABEL] == "0"
        return "leader" if leads else "worker"
    for label in (names.REPLICATED_JOB_LABEL, names.REPLICA_TYPE_LABEL, names.JOB_ROLE_LABEL):
        if labels.get(label):
            return labels[label] if label == names.REPLICATED_JOB_LABEL else labels[label].lower()
    return labels.get(kind_of(pod.owner).role_label, "") if pod.owner is not None else ""


def roles_now(workload: Raw, present: Collection[str]) -> Roles:
    """Return the roles of a workload whose pods ask for GPUs and can exist now.

    Roles without GPUs never join the gang. A role that is created later counts once it is
    `present`, with all its pods; until then those before it start without it.
    """
    roles = _kind_as_read(workload).roles(workload)
    return {
        name: role
        for name, role in roles.items()
        if role.gpus and role.pods > 0 and (name in present or not role.later)
    }


def _kind_as_read(workload: Raw) -> Kind:
    """Return the kind of an object as the API server has it."""
    kind, version = str(workload.get("kind")), workload.get("apiVersion")
    if version is None:
        return KINDS.get(kind, _OTHER)
    return _find(str(version).rpartition("/")[0], kind)


def size_of(workload: Raw, present: Collection[str]) -> int:
    """Return how many pods of a workload must start together now; see `roles_now`.

    Where it says with how many pods it may start, those without GPUs are among them.
    """
    kind = _kind_as_read(workload)
    pods = min(MAX_INTEGER, sum(role.pods for role in roles_now(workload, present).values()))
    stated = at(workload, kind.least) if kind.least else None
    if stated is None:
        return max(1, pods)
    least = whole(stated, 1)
    roles = kind.roles(workload)
    if not roles:
        return max(1, least)  # a group: it knows no templates
    others = sum(role.pods for role in roles.values() if not role.gpus)
    return max(1, min(pods, least - others))


def knows_roles(workload: Raw) -> bool:
    """Say whether an object says which of its pods start together."""
    return bool(_kind_as_read(workload).roles(workload))


def group_of(pod: PodInfo) -> tuple[Resource, str] | None:
    """Return the object by which other schedulers group a pod, None where it has none."""
    if pod.annotations.get(names.GANG) or _has_moved(pod):
        return None
    for label, resource in _GROUPS.items():
        if label == names.POD_GROUP_FIELD and gpujob_name(pod) != _derived_name(pod):
            continue  # its GPUJob is from before this field was read, and is that of its owner
        if pod.labels.get(label):
            return resource, pod.labels[label]
    return None


_DIGITS = 19  # of a size that are read


def explicit_size(pod: PodInfo) -> int | None:
    """Return the size of the gang that a pod states, None where it states none that is valid."""
    stated = pod.annotations.get(names.GANG_SIZE, "")
    if not stated.isdecimal():
        return None
    # Python refuses to read thousands of digits; no cluster has so many pods.
    return min(int(stated[:_DIGITS]), MAX_INTEGER) or None


def gang_size(pod: PodInfo, workload: Raw | None) -> int:
    """Return how many pods must start together.

    `workload` is the object they belong to as the API server has it, where we know its kind. An
    explicit size takes precedence.
    """
    stated = explicit_size(pod)
    if stated is not None or workload is None:
        return stated or 1
    return size_of(workload, {role_of(pod)})
