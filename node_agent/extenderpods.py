"""The pods of this node as the extender tells them: names, jobs, GPUs, and how containers ended.

The agent's account may read no pods: a right on pods reaches those of all nodes, and their
environment. The extender knows by the agent's token on which node it runs, and tells no more.
docs/decisions/0037 has the reasons.
"""

from __future__ import annotations

import http.client
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import urlsplit

from pydantic import ValidationError

from node_agent.outofmemory import unix_time
from node_agent.pods import ContainerEnd, PodInfo
from tandem.contracts.nodepods import NodeHolds, NodePod, NodePodList
from tandem.errors import TandemError, UsageError
from tandem.kube.client import KubeClient
from tandem.kube.errors import KubeError
from tandem.kube.tunnel import trusting_webhook

log = logging.getLogger(__name__)

PATH = "/v1/node-pods"
#: Asked so often, and at most so soon again where a pod is looked for.
EVERY_S, SOONEST_S = 30.0, 2.0
JITTER = 0.2
#: How long a pod is looked for, and when it may be looked for again: some are never known, such as
#: static pods, whose UID the API server does not have.
LOOK_S, FORGET_LOOK_S = 30.0, 300.0
#: The agent starts without names where the extender takes longer.
FIRST_LIST_S = 5.0
TIMEOUT_S = 10.0
LARGEST_ANSWER = 4 * 2**20


class AskError(Exception):
    """The extender does not answer, or not what it should; what it said before goes on counting."""


#: Returns the body of the extender's answer; raises AskError.
Ask = Callable[[], bytes]


class Extender:
    """Asks the extender at `url`, each time on a connection of its own.

    It is known by the authority that the API server trusts at the webhook; `token` says who we are.
    """

    def __init__(self, url: str, client: KubeClient, token: Callable[[], str]) -> None:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            raise UsageError(f"--extender {url} is no https address.", "Write https://HOST[:PORT].")
        self._host, self._port = parts.hostname, parts.port or 443
        self._client = client
        self._token = token
        self._context: ssl.SSLContext | None = None

    def __call__(self) -> bytes:
        """Return the body of the answer."""
        try:
            if self._context is None:
                self._context = trusting_webhook(self._client)
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=TIMEOUT_S, context=self._context
            )
            try:
                headers = {"Authorization": f"Bearer {self._token()}", "Connection": "close"}
                connection.request("GET", PATH, headers=headers)
                answer = connection.getresponse()
                body = answer.read(LARGEST_ANSWER + 1)
            finally:
                connection.close()
        except ssl.SSLError as error:
            self._context = None  # the authority may have been replaced
            raise AskError(str(error)) from error
        except (OSError, http.client.HTTPException, KubeError, TandemError) as error:
            raise AskError(str(error)) from error
        if answer.status != 200 or len(body) > LARGEST_ANSWER:
            raise AskError(f"HTTP {answer.status}, {len(body)} bytes: {body[:200]!r}")
        return body


class ExtenderPods:
    """Keeps the extender's latest answer, in a thread of its own. Any thread may look up."""

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self.synced = threading.Event()
        self._ask = ask
        self._clock = clock
        self._random = random.Random()  # noqa: S311 - spreads load, guards no secret
        #: What the extender that leads said last of the GPUs' ways.
        self.holds: NodeHolds | None = None
        self._pods: dict[str, PodInfo] = {}
        self._addresses: dict[str, str] = {}
        self._looked_for: dict[str, float] = {}
        self._soon = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pods", daemon=True)

    def start(self) -> None:
        """Begin to ask; wait a moment for the first answer, so that the first report has names."""
        self._thread.start()
        self.synced.wait(FIRST_LIST_S)

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        self._soon.set()

    def find(self, uid: str) -> PodInfo | None:
        """Return the pod, or None while it is unknown."""
        return self._pods.get(uid)

    def __iter__(self) -> Iterator[str]:
        """Yield the UIDs of the pods that are known."""
        return iter(self._pods)

    def at(self, address: str) -> str | None:
        """Return the UID of the pod of ours whose address this is, or None."""
        return self._addresses.get(address)

    def look_for(self, uids: Iterable[str]) -> None:
        """Ask about these pods soon: they are unknown, or something has happened to them."""
        now = self._clock()
        if any(now - self._looked_for.setdefault(uid, now) < LOOK_S for uid in uids):
            self._soon.set()

    def ask_soon(self) -> None:
        """Ask within a few seconds."""
        self._soon.set()

    def refresh(self) -> bool:
        """Ask once; return whether there was an answer."""
        self._soon.clear()
        now = self._clock()
        self._looked_for = {
            uid: since for uid, since in self._looked_for.items() if now - since < FORGET_LOOK_S
        }
        try:
            answer = NodePodList.model_validate_json(self._ask())
        except (AskError, ValidationError) as error:
            log.warning("pods unknown error=%r", str(error)[:500])
            return False
        listed = answer.pods
        if answer.holds is not None and answer.holds.leads:
            self.holds = answer.holds
        self._pods = {pod.uid: pod_info(pod) for pod in listed}
        self._addresses = {address: pod.uid for pod in listed for address in pod.addresses}
        self.synced.set()
        return True

    def _run(self) -> None:
        retry_s = SOONEST_S
        while not self._stopping.is_set():
            if self.refresh():
                retry_s = SOONEST_S
                self._stopping.wait(self._about(SOONEST_S))
                self._soon.wait(self._about(EVERY_S - SOONEST_S))
            else:
                self._stopping.wait(self._about(retry_s))
                retry_s = min(2 * retry_s, EVERY_S)

    def _about(self, seconds: float) -> float:
        return seconds * self._random.uniform(1 - JITTER, 1 + JITTER)


def pod_info(pod: NodePod) -> PodInfo:
    """Return what is known of a pod."""
    return PodInfo(
        namespace=pod.namespace,
        name=pod.name,
        job=pod.job,
        ours=pod.ours,
        assigned=frozenset(pod.gpus),
        predicted_memory=pod.memory_bytes,
        finished=pod.finished,
        ends=tuple(
            ContainerEnd(one.container, one.exit_code, unix_time(one.finished_at), one.reason)
            for one in pod.ends
        ),
    )
