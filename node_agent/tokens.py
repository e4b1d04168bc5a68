"""Whose token is it? The API server is asked, and only about pods that run on this node.

Every pod that reaches the node may send any text as a token. What it claims is read first, without
trust: it must name a pod of ours on this node, and not another one than the pod of the address that
it came from. Each pod then has reviews of its own, so that invented tokens take no other pod's
turn, and after each refusal the next review of that pod waits for longer.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from node_agent.pods import PodDirectory
from tandem.contracts import names
from tandem.kube.access import TOKEN_REVIEWS, unverified_audiences, unverified_claims
from tandem.kube.client import KubeClient

POD_UID = "authentication.kubernetes.io/pod-uid"

#: An accepted token is asked about again after this.
TRUST_S = 300.0
#: Tokens that are remembered of a pod: its containers may have one each, and kubelet renews them.
TOKENS_PER_POD = 4
#: After a refused token the next one of the same pod waits for this, twice as long after each.
PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 300.0
#: More pods of ours than a node runs at once; the one that was heard longest ago goes first.
MAX_PODS = 1024
#: Longer than any token of a service account.
LONGEST_TOKEN = 8192


@dataclass(slots=True)
class _Reviews:
    """The reviews of one pod: tokens that were accepted and when, and when the next may come."""

    accepted: OrderedDict[bytes, float] = field(default_factory=OrderedDict)
    next_s: float = float("-inf")
    pause_s: float = PAUSE_MIN_S


class TokenReviewer:
    """Asks the API server, and remembers the answers for a while. Any thread may call."""

    def __init__(
        self, client: KubeClient, pods: PodDirectory, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._pods = pods
        self._clock = clock
        self._lock = threading.Lock()
        # By the pod, and whether its address was known as its own.
        self._reviews: OrderedDict[tuple[str, bool], _Reviews] = OrderedDict()

    def pod_uid(self, token: str, address: str = "") -> str | None:
        """Return the UID of the pod of ours that `token` is bound to, if it is meant for agents.

        `address` is where the token came from.

        Raises:
            KubeError: the API server does not answer.
        """
        uid = _claimed_uid(token)
        info = self._pods.find(uid) if uid else None
        sender = self._pods.at(address)
        if uid is None or info is None or not info.ours or sender not in (None, uid):
            return None
        key = hashlib.sha256(token.encode()).digest()
        with self._lock:
            reviews = self._of((uid, sender == uid))
            now = self._clock()
            since = reviews.accepted.get(key)
            if since is not None and now - since < TRUST_S:
                return uid
            # Of a token that was accepted the API server is asked whatever others have sent since.
            if since is None and now < reviews.next_s:
                return None
            # Whatever becomes of the review: no more than one at a time.
            reviews.accepted.pop(key, None)
            reviews.next_s = now + reviews.pause_s
        valid = self._review(token) == uid
        with self._lock:
            if valid:
                reviews.accepted[key] = now
                while len(reviews.accepted) > TOKENS_PER_POD:
                    reviews.accepted.popitem(last=False)
                reviews.next_s, reviews.pause_s = float("-inf"), PAUSE_MIN_S
            else:
                reviews.pause_s = min(2 * reviews.pause_s, PAUSE_MAX_S)
        return uid if valid else None

    def _of(self, key: tuple[str, bool]) -> _Reviews:
        reviews = self._reviews.setdefault(key, _Reviews())
        self._reviews.move_to_end(key)
        while len(self._reviews) > MAX_PODS:
            self._reviews.popitem(last=False)
        return reviews

    def _review(self, token: str) -> str | None:
        review = {"metadata": {}, "spec": {"token": token, "audiences": [names.AGENT_AUDIENCE]}}
        status: dict[str, Any] = self._client.create(TOKEN_REVIEWS, review).get("status") or {}
        valid = status.get("authenticated") and names.AGENT_AUDIENCE in (
            status.get("audiences") or ()
        )
        uids = ((status.get("user") or {}).get("extra") or {}).get(POD_UID) or [None]
        return uids[0] if valid else None


def _claimed_uid(token: str) -> str | None:
    """Return the pod that a token claims to be of, if it claims to be meant for agents."""
    if len(token) > LONGEST_TOKEN:
        return None
    claims = unverified_claims(token)
    if names.AGENT_AUDIENCE not in unverified_audiences(claims):
        return None
    pod = claims.get("kubernetes.io")
    pod = pod.get("pod") if isinstance(pod, dict) else None
    uid = pod.get("uid") if isinstance(pod, dict) else None
    return uid if isinstance(uid, str) else None
