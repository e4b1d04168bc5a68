"""Settings of admission."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tandem.contracts import names
from tandem.contracts.levels import TopologyLevels
from tandem.settings import Section

#: Folders of data, what makes shared memory and RDMA work, and files that hold no secrets. The
#: chart's policy `tandem-pods` has the same list where an operator chooses none.
DEFAULT_HOST_PATHS = (
    *(f"/{name}/*" for name in ("cache", "checkpoints", "data", "datasets", "models", "scratch")),
    *(f"/{name}/*" for name in ("gpfs", "lustre", "nfs", "raid", "srv")),
    *(f"/mnt/{name}/*" for name in ("cache", "checkpoints", "data", "datasets", "disks", "models")),
    *(f"/mnt/{name}/*" for name in ("nfs", "scratch")),
    "/dev/hugepages",
    "/dev/infiniband/*",
    "/dev/shm",  # noqa: S108 - a path that pods may mount
    "/etc/localtime",
    "/usr/share/zoneinfo/*",
)
#: A path as the API server compares it: no empty part, no `.` or `..`.
HostPathPattern = Annotated[
    str,
    Field(
        pattern=r"^(/([A-Za-z0-9_@+-][A-Za-z0-9._@+-]*|\.[A-Za-z0-9_@+-]+))*(/\*)?$", min_length=2
    ),
]
#: An object's name, as the API server has it; '' for none.
ObjectName = Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$", max_length=253)]


class AdmissionConfig(Section):
    """Settings of admission.

    `priority_class`: given to our pods, empty for none. `runtime_class`: `nvidia` sets that
    runtimeClassName, `none` sets none, `auto` sets it where the cluster has the class.
    `agent_port`: the port of its node at which a job may tell its progress; 0 gives jobs neither
    the address nor a token. `max_termination_grace_s`: the most that a pod with GPUs may take to
    end after its deletion; meanwhile no other job gets its GPUs. `host_paths`: what pods with GPUs
    may mount of their node: `/data` is that path alone, `/data/*` also what lies below it.
    `resource_claims`: whether they may name ResourceClaims, which Tandem cannot look into.
    `gpu_claims`: whether each pod gets a ResourceClaim for its GPUs, which its plan allocates.
    Nodes that hand GPUs over by claims take no other pods.
    `memory_limits`: whether jobs that may share a GPU get the limit of their memory.
    `topology_levels`: the labels of nodes that say where they are, widest first; jobs may require
    or prefer to run in one domain of a level, and what gathers gangs goes by them.
    `topology_from`: the Topology of Kueue whose levels take the place of `topology_levels`, once it
    has been read; empty for none.
    """

    scheduler_name: str = names.SCHEDULER_NAME
    priority_class: str = names.PRIORITY_CLASS
    runtime_class: Literal["auto", "nvidia", "none"] = "auto"
    agent_port: Annotated[int, Field(ge=0, le=65535)] = names.AGENT_PORT
    max_termination_grace_s: Annotated[int, Field(ge=1, le=604_800)] = names.MAX_GRACE_S
    host_paths: tuple[HostPathPattern, ...] = DEFAULT_HOST_PATHS
    resource_claims: Literal["refuse", "allow"] = "refuse"
    gpu_claims: bool = False
    memory_limits: bool = True
    topology_levels: TopologyLevels = names.TOPOLOGY_LEVELS
    topology_from: ObjectName = ""


class Rotation(Section):
    """Lifetime and replacement of certificates that Tandem makes.

    Every `look_s` each replica looks at the Secret (or at the files of `public`).
    """

    valid_days: Annotated[float, Field(gt=0, le=3650)] = 365.0
    look_s: Annotated[float, Field(gt=0)] = 60.0

    @property
    def renew_days(self) -> float:
        """A replacement begins when a quarter of the certificate's life is left, in days."""
        return self.valid_days / 4

    @property
    def overlap_s(self) -> float:
        """The pause before each of the three steps of a replacement, in seconds.

        Every replica has looked by then, also one that missed some looks.
        """
        return 5 * self.look_s
