"""What the extender tells the agent of a node of the pods there."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tandem.contracts.base import Message
from tandem.contracts.resources import Bytes
from tandem.contracts.values import GpuId


class EndedContainer(Message):
    """The last end of a container, as kubelet tells it."""

    container: str
    exit_code: int
    finished_at: str
    reason: str = ""


class NodePod(Message):
    """A pod on the node. A pod that asks for none of our GPUs has only its names here.

    `job` names its GPUJob, `gpus` the GPUs that it was given, `memory_bytes` per GPU for what it
    was given its place; absent where that is not known. A pod that is `finished` runs no more.
    """

    namespace: str
    name: str
    uid: str
    ours: bool = False
    job: str = ""
    gpus: list[str] = []
    memory_bytes: Bytes | None = None
    addresses: list[str] = []
    ends: list[EndedContainer] = []
    finished: bool = False


_Gpus = Annotated[list[GpuId], Field(max_length=4096)]


class NodeHolds(Message):
    """By which way pods have the GPUs of a node, and which are planned.

    What the extender decides by: its ledger and its ResourceClaims. `leads`: no other replica
    places pods. `report_s` is when the report was observed that it goes by (Unix time): a GPU that
    a report of then offers to no job has no pod that is missing here.

    `by_environment` and `by_claims` are GPUs of pods that are bound, or whose Binding is under way;
    `unknown` those of pods whose claims are not known. `by_others` are GPUs of claims that the
    queue did not allocate; absent where the extender does not know them.
    """

    leads: bool = False
    report_s: float = 0.0
    by_environment: _Gpus = []
    by_claims: _Gpus = []
    unknown: _Gpus = []
    planned: _Gpus = []
    by_others: _Gpus | None = None


class NodePodList(Message):
    """The pods of one node, sorted by namespace and name."""

    pods: Annotated[list[NodePod], Field(max_length=4096)]
    holds: NodeHolds | None = None
