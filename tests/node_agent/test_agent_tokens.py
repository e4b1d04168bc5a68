"""Tokens of jobs: which of them the API server is asked about, and who waits for whom."""

import base64
import contextlib
import json

import pytest

from node_agent import tokens
from node_agent.pods import PodInfo
from node_agent.progress import Progress, Steps
from node_agent.tokens import TokenReviewer
from tandem.contracts import names
from tandem.kube.errors import Unavailable


def token(uid, serial=0, audience=names.AGENT_AUDIENCE):
    """Return what looks like a token of a pod; the signature is its number."""
    claims = {"aud": [audience], "kubernetes.io": {"pod": {"name": "p", "uid": uid}}}
    return jwt(json.dumps(claims).encode(), serial)


def jwt(claims, serial=0):
    return f"head.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.{serial}"


class Api:
    """Accepts tokens with an even signature as those of the pod that they claim; counts."""

    def __init__(self):
        self.reviewed = []
        self.away = False

    def create(self, _resource, body):
        given = body["spec"]["token"]
        self.reviewed.append(given)
        if self.away:
            raise Unavailable(0, "away")
        uid = tokens._claimed_uid(given)
        return {
            "status": {
                "authenticated": int(given.rpartition(".")[2]) % 2 == 0,
                "audiences": [names.AGENT_AUDIENCE],
                "user": {"extra": {tokens.POD_UID: [uid]}},
            }
        }


class Pods(dict):
    """Pods by UID; the pod `a` has the address 10.0.0.1 for itself, and so on."""

    addresses = {}

    def find(self, uid):
        return self.get(uid)

    def at(self, address):
        return self.addresses.get(address)


class Site:
    def __init__(self, *uids):
        self.now_s = 1000.0
        self.api = Api()
        self.pods = Pods({uid: PodInfo("team", uid) for uid in uids})
        self.pods.addresses = {f"10.0.0.{i}": uid for i, uid in enumerate(uids)}
        self.reviewer = TokenReviewer(self.api, self.pods, lambda: self.now_s)

    def ask(self, uid, serial=0, address=None, **claims):
        if address is None:
            address = next(ip for ip, owner in self.pods.addresses.items() if owner == uid)
        return self.reviewer.pod_uid(token(uid, serial, **claims), address)


def test_a_token_is_reviewed_once_and_again_after_a_while():
    site = Site("a")
    assert [site.ask("a") for _ in range(5)] == ["a"] * 5
    assert len(site.api.reviewed) == 1
    site.now_s += tokens.TRUST_S
    assert site.ask("a") == "a"
    assert len(site.api.reviewed) == 2


def test_invented_tokens_of_one_pod_take_no_other_pod_s_turn():
    """19,655 tokens in 12 s kept 96 honest pods from being heard, and each was reviewed."""
    honest = [f"pod-{i}" for i in range(96)]
    site = Site("mallory", *honest)
    heard = set()
    for step in range(19_655):
        site.now_s += 12 / 19_655
        # An own address and the own UID; another pod's UID; the UID of no pod; no token at all.
        site.ask("mallory", 2 * step + 1)
        site.ask(honest[step % 96], 2 * step + 1, address="10.0.0.0")
        site.ask("nowhere", 2 * step, address="10.0.0.0")
        site.reviewer.pod_uid(f"invented-{step}", "10.0.0.0")
        if step % 200 == 0 and step // 200 < 96:
            heard.add(site.ask(honest[step // 200]))
    assert heard == set(honest)
    of_mallory = len(site.api.reviewed) - 96
    assert of_mallory <= 4, "the pause doubles: 1, 2, 4, 8 s"


def test_a_flood_costs_the_api_server_one_review_in_five_minutes_in_the_end():
    site = Site("mallory")
    for step in range(4 * 3600):
        site.now_s += 1
        site.ask("mallory", 2 * step + 1)
    at_last = 4 * 3600 / tokens.PAUSE_MAX_S
    assert len(site.api.reviewed) <= at_last + 10


def test_a_pod_that_was_heard_goes_on_whatever_is_sent_in_its_name():
    """Where a network hides the pods' addresses, the UID alone tells them apart."""
    site = Site("a")
    hidden = "192.168.0.1"
    assert site.ask("a", 0, address=hidden) == "a"
    for step in range(1000):
        site.now_s += 1
        site.ask("a", 2 * step + 1, address=hidden)
        assert site.ask("a", 0, address=hidden) == "a"
    assert site.ask("a", 2, address="10.0.0.0") == "a", "its own address has reviews of its own"


def test_the_containers_of_a_pod_may_have_a_token_each():
    site = Site("a")
    serials = range(0, 2 * tokens.TOKENS_PER_POD, 2)
    for _ in range(3):
        assert [site.ask("a", serial) for serial in serials] == ["a"] * tokens.TOKENS_PER_POD
    assert len(site.api.reviewed) == tokens.TOKENS_PER_POD


@pytest.mark.parametrize(
    "sent",
    [
        "", "x", "a.b.c", "." * 100_000, "a." + "[" * 3000 + ".c", token("a", audience="other"),
        token(None), token(["a"]), token("gone"), token("theirs"), token("a" * 9000),
        jwt(b'{"aud": "tandem-agent", "kubernetes.io": []}'), jwt(b"[" * 3000),
    ],
    ids=range(13),
)  # fmt: skip
def test_the_api_server_is_not_asked_about_what_claims_to_be_of_no_pod_of_ours(sent):
    site = Site("a", "theirs")
    site.pods["theirs"] = PodInfo("team", "theirs", ours=False)
    for address in ("10.0.0.0", "10.0.0.1", "192.168.0.1"):
        assert site.reviewer.pod_uid(sent, address) is None
    assert site.api.reviewed == []


def test_pods_that_were_heard_longest_ago_are_forgotten_first(monkeypatch):
    monkeypatch.setattr(tokens, "MAX_PODS", 3)
    site = Site(*"abcd")
    for uid in "abcab":
        site.ask(uid)
    assert len(site.api.reviewed) == 3
    site.ask("d")
    for uid in "abd":
        site.ask(uid)
    assert len(site.api.reviewed) == 4, "c went, and not all"
    site.ask("c")
    assert len(site.api.reviewed) == 5


def test_an_api_server_that_is_away_is_asked_once_a_second_for_each_pod():
    site = Site("a")
    site.api.away = True
    for _ in range(30):
        site.now_s += 0.1
        with contextlib.suppress(Unavailable):
            assert site.ask("a") is None
    assert len(site.api.reviewed) <= 4
    site.api.away = False
    site.now_s += 1
    assert site.ask("a") == "a"


def test_the_pace_of_a_pod_is_taken_from_its_own_address_alone():
    site = Site("a", "b")
    progress = Progress(site.reviewer)
    steps = Steps(iterations=10, seconds=1)
    assert not progress.take(token("a"), steps, "10.0.0.1")
    assert progress.take(token("a"), steps, "10.0.0.0")
    assert progress.paces().keys() == {"a"}
