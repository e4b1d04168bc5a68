"""What the extender tells the agent of a node of the pods there."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tandem.contracts.base import Message
from tandem.contracts.resources import Bytes


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


class NodePodList(Message):
    """The pods of one node, sorted by namespace and name."""

    pods: Annotated[list[NodePod], Field(max_length=4096)]
