"""Reads which of our devices an allocated ResourceClaim gives on this node; pure, and validated.

The API server has validated a claim; these checks guard the paths and variables that are made of
its words, and say in which claim something is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from node_agent.dra import DRIVER

_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
#: The API server allows 32 devices in a claim.
_MOST_DEVICES = 32


class ClaimError(Exception):
    """A claim cannot be prepared now; kubelet shows the message at the pod and tries again."""


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """Identifies a claim in kubelet's requests.

    Raises:
        ClaimError: one of the words is none that Kubernetes gives.
    """

    namespace: str
    name: str
    uid: str

    def __post_init__(self) -> None:
        if not _UID.fullmatch(self.uid):
            raise ClaimError(f"the UID {self.uid[:64]!r} of a claim is no UUID")
        for word in (self.namespace, self.name):
            if not _NAME.fullmatch(word):
                raise ClaimError(f"{word[:64]!r} is no name of a claim or its namespace")


@dataclass(frozen=True, slots=True)
class Given:
    """One device that the claim gives: for which request of it, and which share of the device."""

    request: str
    device: str
    share: str | None = None


def given(ref: ClaimRef, claim: Mapping[str, Any], node: str) -> list[Given]:
    """Return our devices in an allocated claim, in the order of the allocation.

    Devices of other drivers are not ours to prepare and are left out.

    Raises:
        ClaimError: it is another claim of the same name, is not allocated, or gives what this node
            does not have.
    """
    if claim["metadata"]["uid"] != ref.uid:
        raise ClaimError(f"the claim {ref.namespace}/{ref.name} is another one by now")
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        raise ClaimError(f"the claim {ref.namespace}/{ref.name} is not allocated")
    results = (allocation.get("devices") or {}).get("results") or []
    ours = [each for each in results if each.get("driver") == DRIVER]
    if len(ours) > _MOST_DEVICES:
        raise ClaimError(f"the claim gives {len(ours)} devices, more than {_MOST_DEVICES}")
    found = []
    for each in ours:
        if each.get("pool") != node:
            raise ClaimError(f"the device {each.get('device')!r} is of {each.get('pool')!r}")
        # `request/subrequest` where the claim has alternatives: containers name the request.
        request = str(each.get("request", "")).partition("/")[0]
        found.append(Given(request, str(each.get("device")), each.get("shareID")))
    return found
