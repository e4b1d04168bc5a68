"""Reads from a Node's label how its GPUs are handed over, again and again."""

from __future__ import annotations

import logging
import random
import threading

from node_agent.handover import WAYS, HandOver
from tandem.contracts import names
from tandem.errors import TandemError
from tandem.kube.api import ClusterApi
from tandem.kube.errors import KubeError
from tandem.kube.resource import NODES

log = logging.getLogger(__name__)

#: One small request each half minute and node: 5,000 nodes ask 170 times a second.
EVERY_S, JITTER = 30.0, 0.2


class UnknownWayError(TandemError):
    """The label says what is no way of handing GPUs over."""


def labelled(api: ClusterApi, node: str) -> str:
    """Return what the label says; a Node without it has `environment`.

    Raises:
        TandemError: the Node cannot be read, or says something else. By a guess, its GPUs could be
            handed over in two ways.
    """
    try:
        labels = api.get(NODES, node)["metadata"].get("labels") or {}
    except KubeError as error:
        raise TandemError(f"How node {node} hands its GPUs over is not known: {error}") from error
    way = str(labels.get(names.HAND_OVER_LABEL, WAYS[0]))
    if way not in WAYS:
        raise UnknownWayError(
            f"Node {node} has the label {names.HAND_OVER_LABEL}={way}.",
            f"Write {', '.join(WAYS[:-1])} or {WAYS[-1]}.",
        )
    return way


class LabelReader:
    """Keeps the target of a `HandOver` as the Node's label says, in a thread of its own.

    What cannot be read, or is no way, changes nothing.
    """

    def __init__(self, api: ClusterApi, node: str, hand_over: HandOver) -> None:
        self._api = api
        self._node = node
        self._hand_over = hand_over
        self._hand_over.trouble = ""
        self._random = random.Random()  # noqa: S311 - spreads load, guards no secret
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="label", daemon=True)

    def look(self) -> None:
        """Read the label once."""
        try:
            way = labelled(self._api, self._node)
        except TandemError as error:
            log.warning("label not followed error=%r", error.message)
            if isinstance(error, UnknownWayError):
                self._hand_over.trouble = f"{error.message} {error.hint}"
            return
        if way != self._hand_over.target:
            log.info("label says hand-over=%s before=%s", way, self._hand_over.target)
        self._hand_over.target, self._hand_over.trouble = way, ""

    def start(self) -> None:
        """Begin to read it again and again."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S * self._random.uniform(1 - JITTER, 1 + JITTER)):
            self.look()
