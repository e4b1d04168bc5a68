"""The parts of a pod (or of a template of pods) that admission reads, with their types checked.

Templates inside custom kinds may hold anything, and the API server is not the only one who can
reach the webhook: what has not the shape of a pod is refused before anything is concluded from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from tandem.contracts.gangs import derived_name, qualified_kind, with_pod_group
from tandem.contracts.quantity import is_zero

_SECTIONS = ("limits", "requests")

#: Kubernetes accepts a quantity as text or number.
Quantity = Annotated[str, BeforeValidator(lambda value: _text(value))]


#: More than any pod has. Each entry costs memory and time before its pod can be judged.
MAX_CONTAINERS = 1000
MAX_ENTRIES = 10_000


def _text(value: object) -> object:
    if value is None:  # as a chart renders an empty value; the API server reads it as 0
        return "0"
    return str(value) if isinstance(value, int | float) else value


def _at_most(most: int) -> BeforeValidator:
    """Refuse a longer list or object before any entry of it is read."""

    def check(value: object) -> object:
        if isinstance(value, list | dict) and len(value) > most:
            raise PydanticCustomError(
                "too_many", "at most {most} entries are allowed", {"most": most}
            )
        return value

    return BeforeValidator(check)


def _texts(value: object) -> object:
    """Refuse an object of texts with its first entry that is no text.

    pydantic would name all of them, each with a copy of its path.
    """
    if isinstance(value, dict):
        if None in value.values():  # the API server reads null as an empty text
            value = {key: "" if each is None else each for key, each in value.items()}
        wrong = next((key for key, each in value.items() if not isinstance(each, str)), None)
        if wrong is not None:
            raise PydanticCustomError("text", "{key} must be a string", {"key": str(wrong)[:64]})
    return value


def _named(value: object) -> object:
    """Refuse an entry whose name is no text: names are looked up in sets."""
    if isinstance(value, dict) and not isinstance(value.get("name", ""), str):
        raise PydanticCustomError("text", "name must be a string")
    return value


_Entry = TypeVar("_Entry")
#: Lists stop at their first wrong entry: pydantic would keep about 1 KiB for each of them.
Few = Annotated[list[_Entry], FailFast(), _at_most(MAX_ENTRIES)]
FewContainers = Annotated[list[_Entry], FailFast(), _at_most(MAX_CONTAINERS)]
Texts = Annotated[dict[str, str], BeforeValidator(_texts), _at_most(MAX_ENTRIES)]
Variable = Annotated[dict[str, Any], BeforeValidator(_named)]
Quantities = Annotated[dict[str, Quantity], _at_most(100)]


class _Shape(BaseModel):
    """An object of which only some fields matter; null is the same as absent.

    A list or object that is absent is made by a factory: pydantic would copy a default, which takes
    more time than all the rest where a pod has thousands of terms.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore"
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: object) -> object:
        if not isinstance(data, dict) or None not in data.values():
            return data
        return {key: value for key, value in data.items() if value is not None}


class Resources(_Shape):
    """The resources that a container requests."""

    limits: Quantities = Field(default_factory=dict)
    requests: Quantities = Field(default_factory=dict)
    claims: Few[dict[str, Any]] = Field(default_factory=list)

    def of(self, resource: str) -> dict[str, str]:
        """Return the amounts of one resource by section, limits first; none where all are 0."""
        sections = {"limits": self.limits, "requests": self.requests}
        found = {name: sections[name][resource] for name in _SECTIONS if resource in sections[name]}
        return {} if all(map(is_zero, found.values())) else found

    def asked(self) -> Iterator[str]:
        """Yield the resources of which a container asks for more than 0."""
        for resource in self.limits | self.requests:
            if self.of(resource):
                yield resource


class Capabilities(_Shape):
    """Capabilities of Linux that a container gets beyond its runtime's own."""

    add: Few[str] = Field(default_factory=list)


class SecurityContext(_Shape):
    """Of a container."""

    privileged: bool = False
    proc_mount: str = ""
    capabilities: Capabilities = Capabilities()


class VolumeMount(_Shape):
    """Where a container sees a volume."""

    mount_path: str = ""


class HostPath(_Shape):
    """A folder or file of the node."""

    path: str = ""


class Volume(_Shape):
    """A volume, of which only those of the node matter, and the names."""

    name: str = ""
    host_path: HostPath | None = None


class ContainerShape(_Shape):
    """A container of any of the three kinds."""

    name: str = ""
    resources: Resources = Resources()
    env: Few[Variable] = Field(default_factory=list)
    volume_mounts: Few[VolumeMount] = Field(default_factory=list)
    security_context: SecurityContext = SecurityContext()
    termination_message_policy: str = ""


class OwnerReference(_Shape):
    """An object whose pod it is."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    controller: bool = False


class Metadata(_Shape):
    """Of a pod or a template; a pod whose name the API server makes up has none yet."""

    name: str = ""
    annotations: Texts = Field(default_factory=dict)
    labels: Texts = Field(default_factory=dict)
    owner_references: Few[OwnerReference] = Field(default_factory=list)


class Requirement(_Shape):
    """A requirement on a label or a field of a node."""

    values: Few[str] = Field(default_factory=list)


class NodeSelectorTerm(_Shape):
    """Requirements of which all must hold."""

    match_expressions: Few[Requirement] = Field(default_factory=list)
    match_fields: Few[Requirement] = Field(default_factory=list)


class NodeSelector(_Shape):
    """Terms of which one must hold."""

    node_selector_terms: Annotated[list[NodeSelectorTerm], FailFast()] = Field(default_factory=list)


class NodeAffinity(_Shape):
    """The part of a node affinity that decides where a pod may run."""

    required: NodeSelector = Field(
        NodeSelector(), alias="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(_Shape):
    """The part of a pod's affinity that Tandem evaluates."""

    node_affinity: NodeAffinity = NodeAffinity()


class SchedulingGroup(_Shape):
    """The group of Kubernetes' own that a pod is in."""

    pod_group_name: str = ""


class PodSpec(_Shape):
    """The required shape of a pod."""

    containers: FewContainers[ContainerShape] = Field(default_factory=list)
    init_containers: FewContainers[ContainerShape] = Field(default_factory=list)
    ephemeral_containers: FewContainers[ContainerShape] = Field(default_factory=list)
    volumes: Few[Volume] = Field(default_factory=list)
    resource_claims: Few[dict[str, Any]] = Field(default_factory=list)
    node_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: Few[dict[str, Any]] = Field(default_factory=list)
    tolerations: Few[dict[str, Any]] = Field(default_factory=list)
    node_selector: Texts = Field(default_factory=dict)
    affinity: Affinity = Affinity()
    host_pid: bool = Field(False, alias="hostPID")
    runtime_class_name: str = ""
    priority_class_name: str = ""
    scheduling_group: SchedulingGroup = SchedulingGroup()
    priority: int | None = None
    preemption_policy: str | None = None
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """A container and where it stands, such as `initContainers`, 0."""

    kind: str
    index: int
    body: ContainerShape

    def field(self, spec: str) -> str:
        """Return its place as the API server writes places."""
        return f"{spec}.{self.kind}[{self.index}]"

    @property
    def pointer(self) -> str:
        """Its place in a pod as a JSON pointer."""
        return f"/spec/{self.kind}/{self.index}"


class PodShape(_Shape):
    """A pod, or a template of pods."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()

    @property
    def gpujob(self) -> str:
        """The name of the GPUJob of a pod that is being created; '' while it depends on its own."""
        known = self.metadata
        owners = (o for o in known.owner_references if o.controller)
        owner = next(((qualified_kind(o.api_version, o.kind), o.name) for o in owners), None)
        labels = with_pod_group(known.labels, self.spec.scheduling_group.pod_group_name)
        found = derived_name(known.name, known.annotations, labels, owner)
        return found if known.name or found != derived_name("", {}, {}, None) else ""

    def containers(self) -> Iterator[Placed]:
        """Yield the ordinary containers, the init containers, the ephemeral ones."""
        spec = self.spec
        for kind, bodies in (
            ("containers", spec.containers),
            ("initContainers", spec.init_containers),
            ("ephemeralContainers", spec.ephemeral_containers),
        ):
            for index, body in enumerate(bodies):
                yield Placed(kind, index, body)
