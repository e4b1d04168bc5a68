"""The parts of a pod (or of a template of pods) that admission reads, with their types checked.

Templates inside custom kinds may hold anything, and the API server is not the only one who can
reach the webhook: what has not the shape of a pod is refused before anything is concluded from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator
from pydantic.alias_generators import to_camel

_SECTIONS = ("limits", "requests")

#: Kubernetes accepts a quantity as text or number.
Quantity = Annotated[str, BeforeValidator(lambda value: _text(value))]


def _text(value: object) -> object:
    return str(value) if isinstance(value, int | float) else value


class _Shape(BaseModel):
    """An object of which only some fields matter; null is the same as absent."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore"
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if value is not None}


class Resources(_Shape):
    """What a container asks for."""

    limits: dict[str, Quantity] = {}
    requests: dict[str, Quantity] = {}

    def of(self, resource: str) -> dict[str, str]:
        """Return the amounts of one resource by section, limits first."""
        sections = {"limits": self.limits, "requests": self.requests}
        return {name: sections[name][resource] for name in _SECTIONS if resource in sections[name]}


class SecurityContext(_Shape):
    """Of a container."""

    privileged: bool = False


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

    resources: Resources = Resources()
    env: list[dict[str, Any]] = []
    volume_mounts: list[VolumeMount] = []
    security_context: SecurityContext = SecurityContext()


class Metadata(_Shape):
    """Of a pod or a template."""

    annotations: dict[str, str] = {}


class PodSpec(_Shape):
    """What a pod is to be."""

    containers: list[ContainerShape] = []
    init_containers: list[ContainerShape] = []
    ephemeral_containers: list[ContainerShape] = []
    volumes: list[Volume] = []
    node_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: list[dict[str, Any]] = []
    tolerations: list[dict[str, Any]] = []
    runtime_class_name: str = ""
    priority_class_name: str = ""
    priority: int | None = None
    preemption_policy: str | None = None
    restart_policy: str = ""


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
