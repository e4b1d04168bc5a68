"""Kinds of workloads as they are written in `kinds.yaml` and in settings: read and checked."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, TypeAdapter, model_validator

from tandem.settings import Section

SHIPPED = Path(__file__).with_name("kinds.yaml")
_MOST = 256
_SUBDOMAIN = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$"

Step = Annotated[str, Field(min_length=1, max_length=253)]
#: The way to a field, step by step; `*` stands for each entry of a list or an object.
Way = Annotated[tuple[Step, ...], Field(min_length=1, max_length=16)]
Word = Annotated[str, Field(max_length=253)]


class RoleKind(Section):
    """Pods that are made of one template; see `kinds.yaml`.

    Without `each` there is one role, called `name`. `pods` is a path to their number, which is
    `otherwise` where nothing stands there; `times` leads to a number that it is multiplied by.
    """

    name: Word = ""
    each: Way | None = None
    named_by: Way | None = None
    template: Way
    pods: Way | None = None
    otherwise: Annotated[int, Field(ge=0)] = 1
    times: Way | None = None


class Ended(Section):
    """The field by which a workload says that it has ended, and what it says then."""

    at: Way
    completed: tuple[Word, ...] = ()
    failed: tuple[Word, ...] = ()


class Scale(Section):
    """How an elastic workload is resized: `replicas` is the path to the number of a role's pods.

    Its controller numbers them from 0 by the label `index`; those beyond the number go.
    """

    replicas: Way
    role: Word
    index: Annotated[str, Field(min_length=1, max_length=253)]


class WorkloadKind(Section):
    """One kind of workload; see `kinds.yaml`."""

    group: Annotated[str, Field(max_length=253, pattern=_SUBDOMAIN)]
    version: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]*$")] = ""
    kind: Annotated[str, Field(max_length=63, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    plural: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]*$")] = ""
    read: bool = True
    reader: Literal["indexed-job", "job-set", "replica-specs", "leader-worker-set"] | None = None
    replicas: Way | None = None
    roles: Annotated[tuple[RoleKind, ...], Field(max_length=_MOST)] = ()
    minimum: Way | None = None
    role_label: Word = ""
    templates: Annotated[tuple[Way, ...], Field(max_length=_MOST)] = ()
    suspend: Way | None = None
    suspend_needs: Way | None = None
    restarts: bool = True
    scale: Scale | None = None
    endless: bool = False
    ended: Ended | None = None
    group_label: Word = ""

    @property
    def name(self) -> str:
        """`KIND.GROUP`, by which it is named in messages."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        reads = {
            "reader": self.reader,
            "roles": self.roles,
            "minimum": self.minimum,
            "suspend": self.suspend,
            "scale": self.scale,
            "ended": self.ended,
        }
        needs = [name for name, value in reads.items() if value]
        if needs and not (self.version and self.plural):
            raise ValueError(f"{self.name}: {needs[0]} needs version and plural: it is read then")
        if needs and not self.read:
            raise ValueError(f"{self.name}: {needs[0]} with read: false")
        if bool(self.version) != bool(self.plural):
            raise ValueError(f"{self.name}: version and plural come together")
        if self.reader and self.roles:
            raise ValueError(f"{self.name}: reader and roles: one of them says which pods it has")
        if (self.reader == "replica-specs") != (self.replicas is not None):
            raise ValueError(f"{self.name}: replicas and the reader replica-specs come together")
        if self.suspend_needs and not self.suspend:
            raise ValueError(f"{self.name}: suspend_needs without suspend")
        if self.scale and not self.minimum:
            raise ValueError(f"{self.name}: scale without minimum: it is never made smaller then")
        for role in self.roles:
            if bool(role.each) == bool(role.name):
                raise ValueError(f"{self.name}: a role has a name, or each leads to several")
        return self


def once_each_kind(kinds: tuple[WorkloadKind, ...]) -> tuple[WorkloadKind, ...]:
    """Return the kinds.

    Raises:
        ValueError: one is there twice.
    """
    seen: set[str] = set()
    for each in kinds:
        if each.name in seen:
            raise ValueError(f"{each.name} is there twice")
        seen.add(each.name)
    return kinds


#: (group, kind) -> the ways to the templates of pods that are checked when one is applied.
TEMPLATES: dict[tuple[str, str], tuple[tuple[str, ...], ...]] = {}


def know_templates(kinds: Iterable[WorkloadKind]) -> None:
    """Check the templates of these kinds from now on; called once at the start of a process."""
    TEMPLATES.clear()
    TEMPLATES.update({(each.group, each.kind): each.templates for each in kinds if each.templates})


@cache
def shipped() -> tuple[WorkloadKind, ...]:
    """Return the kinds that Tandem ships.

    Raises:
        pydantic.ValidationError: the file has a mistake, which is named with its entry.
    """
    document = yaml.safe_load(SHIPPED.read_text())
    return once_each_kind(TypeAdapter(tuple[WorkloadKind, ...]).validate_python(document))


def merged(more: Iterable[WorkloadKind]) -> tuple[WorkloadKind, ...]:
    """Return the shipped kinds with `more`; one of the same group and kind takes their place."""
    return tuple({each.name: each for each in (*shipped(), *more)}.values())


know_templates(shipped())
