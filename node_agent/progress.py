"""Progress reports of jobs: each counts for the pod that sends it, and for nothing else."""

from __future__ import annotations

import logging
import threading
import time
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from node_agent.tokens import TokenReviewer
from tandem.kube.errors import KubeError

log = logging.getLogger(__name__)

#: A rate that is older says nothing any more.
FRESH_S = 60.0


#: The longest phase that is reported, and the highest rate: what the contract of a GPUNode allows.
LONGEST_S, HIGHEST_RATE = 86_400.0, 1e6
Seconds = Annotated[float, Field(ge=0, le=LONGEST_S)]


class Steps(BaseModel):
    """Iterations done in the `seconds` since the job's last report.

    Of `iterations_recorded` of them CUDA's events say for how long the GPU was active and idle.
    """

    model_config = ConfigDict(
        extra="ignore", alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )

    iterations: Annotated[float, Field(ge=0, le=1e9)]
    seconds: Annotated[float, Field(ge=1e-3, le=LONGEST_S)]
    iterations_recorded: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    active_seconds: Seconds = 0.0
    idle_seconds: Seconds = 0.0


class Pace(NamedTuple):
    """The speed of a pod, and an iteration's active and idle seconds where known."""

    iterations_per_s: float
    activity: tuple[float, float] | None = None


def pace_of(steps: Steps) -> Pace:
    """Return what a pod's own figures say of it, within the bounds of what is reported.

    The quotient of two numbers that are within their bounds may be an infinity.
    """
    count, activity = steps.iterations_recorded, None
    if count >= 1 and steps.active_seconds + steps.idle_seconds > 0:
        activity = (round(steps.active_seconds / count, 4), round(steps.idle_seconds / count, 4))
    return Pace(round(min(steps.iterations / steps.seconds, HIGHEST_RATE), 4), activity)


class Progress:
    """Iterations per second of the pods that tell them. Any thread may call."""

    def __init__(self, authenticator: TokenReviewer | None) -> None:
        self._authenticator = authenticator
        self._lock = threading.Lock()
        self._paces: dict[str, tuple[float, Pace]] = {}

    def take(self, token: str, steps: Steps, address: str = "") -> bool:
        """Take the report of a pod at `address`; return whether its token is one of a pod."""
        uid = None
        if self._authenticator is not None and token:
            try:
                uid = self._authenticator.pod_uid(token, address)
            except KubeError as error:
                log.warning("token not reviewed error=%r", str(error))
        if uid is None:
            return False
        with self._lock:
            self._paces[uid] = (time.monotonic(), pace_of(steps))
        return True

    def paces(self) -> dict[str, Pace]:
        """Return how fast each pod goes, by UID; pods without a recent report are left out."""
        oldest = time.monotonic() - FRESH_S
        with self._lock:
            self._paces = {uid: each for uid, each in self._paces.items() if each[0] >= oldest}
            return {uid: pace for uid, (_, pace) in self._paces.items()}
