"""The reflector against an API server that misbehaves on purpose."""

import threading
import time
from dataclasses import replace
from itertools import count

import pytest
from fake_api import Watch, bookmark, event, pod, pod_list, status

from tandem.kube.client import KubeClient
from tandem.kube.pace import Pace, Rations
from tandem.kube.reflector import EventType, Identified, Reflector
from tandem.kube.resource import PODS

QUICK = Pace(
    read_timeout_s=0.15,
    watch_min_s=1,
    watch_max_s=2,
    backoff_min_s=0.01,
    backoff_max_s=0.05,
    request_interval_s=0.0,
)

#: Where silence is not what a test is about: a loaded machine may answer late.
PATIENT = replace(QUICK, read_timeout_s=60.0)


class Mirror:
    """Collects what a reflector tells, and lets a test wait for it."""

    def __init__(self, host, pace=QUICK, **options):
        self.received = []
        self.changed = threading.Condition()
        self.reflector = Reflector(
            KubeClient.with_token(host, "secret"), PODS, self._take, pace=pace, **options
        )

    def _take(self, kind, item):
        with self.changed:
            self.received.append((kind.value, item["metadata"]["name"], item["metadata"]["uid"]))
            self.changed.notify_all()

    def wait_for(self, *expected):
        with self.changed:
            arrived = self.changed.wait_for(lambda: len(self.received) >= len(expected), 60)
        assert arrived, f"received only {self.received}"
        assert [entry[:2] for entry in self.received] == list(expected)

    def __enter__(self):
        self.reflector.start()
        return self

    def __exit__(self, *error):
        self.reflector.stop()


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "did not happen within 60 s"
        time.sleep(0.01)


def script(*answers, then):
    """Answer with the given answers one after another, and with `then` for ever."""
    remaining = list(answers)
    return lambda request: remaining.pop(0) if remaining else then


SILENCE = Watch(silent=True)


def test_lists_in_pages_then_watches_from_there(serve):
    api = serve(
        script(
            pod_list(10, pod("a", 1), continue_token="more"),
            pod_list(10, pod("b", 2)),
            then=Watch(
                event("MODIFIED", pod("a", 11)), event("DELETED", pod("b", 12)), silent=True
            ),
        )
    )
    with Mirror(api.host, pace=Pace()) as mirror:
        mirror.wait_for(("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b"))
        assert mirror.reflector.synced.is_set()
    first, second, watch = api.requests[:3]
    assert first.query["limit"] == "100"
    assert "resourceVersion" not in first.query, "the list must be consistent"
    assert second.query["continue"] == "more"
    assert watch.query["resourceVersion"] == "10"
    assert watch.query["allowWatchBookmarks"] == "true"
    assert 300 <= int(watch.query["timeoutSeconds"]) <= 600
    assert watch.headers["Authorization"] == "Bearer secret"


def test_objects_are_trimmed_before_anything_keeps_them(serve):
    api = serve(script(pod_list(1, pod("a", 1, spec={"big": "x"})), then=SILENCE))
    kept = []

    def trim(item, known):
        return {"metadata": item["metadata"], "kind": item["kind"]}

    reflector = Reflector(
        KubeClient.with_token(api.host, "t"), PODS, lambda _, item: kept.append(item), trim=trim
    )
    reflector.start()
    assert reflector.synced.wait(60)
    reflector.stop()
    assert set(kept[0]) == {"metadata", "kind"}
    assert kept[0]["kind"] == "Pod", "items of a list come without their kind"


class Named(Identified):
    """What `trim` may make of an object, as the extender does."""

    __slots__ = ("key", "resource_version", "uid")

    def __init__(self, item):
        metadata = item["metadata"]
        self.key = (metadata.get("namespace", ""), metadata["name"])
        self.uid, self.resource_version = metadata["uid"], metadata["resourceVersion"]


def test_objects_that_say_who_they_are_are_reported_like_others(serve):
    api = serve(
        script(
            pod_list(10, pod("a", 1), pod("b", 2)),
            then=Watch(
                event("MODIFIED", pod("a", 1)),  # as it is known: not reported
                event("MODIFIED", pod("a", 11)),
                event("ADDED", pod("a", 12, uid="another")),
                event("DELETED", pod("b", 13)),
                event("DELETED", pod("b", 13)),
                silent=True,
            ),
        )
    )
    received, all_received = [], threading.Event()

    def take(kind, item):
        received.append((kind.value, item.key[1], item.uid, item.resource_version))
        if kind == "DELETED" and item.key[1] == "b":
            all_received.set()

    client = KubeClient.with_token(api.host, "t")
    reflector = Reflector(client, PODS, take, pace=QUICK, trim=lambda item, _: Named(item))
    reflector.start()
    assert all_received.wait(60)
    reflector.stop()
    first, second = (pod(name, 1)["metadata"]["uid"] for name in "ab")
    assert received == [
        ("ADDED", "a", first, "1"),
        ("ADDED", "b", second, "2"),
        ("MODIFIED", "a", first, "11"),
        ("DELETED", "a", first, "11"),
        ("ADDED", "a", "another", "12"),
        ("DELETED", "b", second, "13"),
    ]


def test_managed_fields_are_dropped_by_default(serve):
    api = serve(script(pod_list(1, pod("a", 1)), then=SILENCE))
    kept = []
    reflector = Reflector(
        KubeClient.with_token(api.host, "t"), PODS, lambda _, item: kept.append(item)
    )
    reflector.start()
    assert reflector.synced.wait(60)
    reflector.stop()
    assert "managedFields" not in kept[0]["metadata"]


@pytest.mark.parametrize("how", ["status", "event"])
def test_gone_lists_again_and_tells_the_differences(serve, how):
    gone = (
        status(410, "Expired") if how == "status" else Watch(event("ERROR", status(410, "Gone")[1]))
    )
    api = serve(
        script(
            pod_list(5, pod("stays", 1), pod("changes", 2), pod("goes", 3), pod("reborn", 4)),
            gone,
            pod_list(
                9, pod("stays", 1), pod("changes", 7), pod("reborn", 8, uid="second"), pod("new", 9)
            ),
            then=SILENCE,
        )
    )
    with Mirror(api.host) as mirror:
        mirror.wait_for(
            ("ADDED", "stays"),
            ("ADDED", "changes"),
            ("ADDED", "goes"),
            ("ADDED", "reborn"),
            ("MODIFIED", "changes"),
            ("DELETED", "reborn"),
            ("ADDED", "reborn"),
            ("ADDED", "new"),
            ("DELETED", "goes"),
        )
        assert [entry[2] for entry in mirror.received[5:7]] == ["uid-reborn", "second"]


def test_silent_watch_is_noticed_and_resumed_without_a_list(serve):
    versions = []

    def handler(request):
        if not request.is_watch:
            return pod_list(5)
        versions.append(request.query["resourceVersion"])
        if len(versions) == 1:
            return Watch(bookmark(8), silent=True)
        return Watch(event("ADDED", pod("late", 9)), silent=True)

    api = serve(handler)
    with Mirror(api.host) as mirror:
        mirror.wait_for(("ADDED", "late"))
        assert mirror.reflector.lists == 1
    assert versions[:2] == ["5", "8"], "a bookmark moves the place to resume from"


def test_a_watch_that_is_never_answered_is_given_up_soon(serve):
    versions = []

    def handler(request):
        if not request.is_watch:
            return pod_list(5)
        versions.append(request.query["resourceVersion"])
        if len(versions) == 1:
            api.closing.wait()
        return Watch(event("ADDED", pod("late", 9)), silent=True)

    api = serve(handler)
    patient = Pace(answer_timeout_s=0.2, backoff_min_s=0.01, request_interval_s=0.0)
    with Mirror(api.host, pace=patient) as mirror:
        mirror.wait_for(("ADDED", "late"))
        assert mirror.reflector.failures == 1
    assert versions == ["5", "5"]


def test_errors_of_the_server_neither_stop_nor_empty_the_mirror(serve):
    answers = [
        status(500),
        pod_list(5, pod("a", 1)),
        status(500),
        status(503),
        Watch(event("ERROR", status(500, "InternalError")[1])),
        Watch(),  # closed at once, nothing reported
        Watch(event("MODIFIED", pod("a", 6)), silent=True),
    ]
    api = serve(script(*answers, then=SILENCE))
    with Mirror(api.host, pace=PATIENT) as mirror:
        mirror.wait_for(("ADDED", "a"), ("MODIFIED", "a"))
        assert mirror.reflector.failures == 5
        assert mirror.reflector.lists == 2


@pytest.mark.long
def test_a_storm_of_errors_is_met_with_few_requests(serve):
    """410 to every watch: at most one request per interval, two at the start."""
    interval_s = 0.3
    numbers = count(1)

    def handler(request):
        return status(410, "Gone") if request.is_watch else pod_list(next(numbers))

    api = serve(handler)
    pace = Pace(backoff_min_s=0.001, backoff_max_s=0.002, request_interval_s=interval_s)
    with Mirror(api.host, pace=pace):
        began = time.monotonic()
        wait_until(lambda: len(api.requests) >= 6)
        elapsed_s = time.monotonic() - began
        made = len(api.requests)
    assert made <= elapsed_s / interval_s + 2.5, "more than the ration"


def test_rations_allow_a_list_and_its_watch_then_one_each_interval():
    rations = Rations(4.0)
    assert rations.wait_s(100.0, is_list=True) == 0
    rations.spend(100.0, is_list=True)
    assert rations.wait_s(100.0, is_list=False) == 0
    rations.spend(100.0, is_list=False)
    assert rations.wait_s(100.0, is_list=False) == pytest.approx(4.0)
    assert rations.wait_s(103.0, is_list=True) == pytest.approx(1.0)
    # After a long quiet time: two at once again, never more; lists never two.
    rations.spend(1000.0, is_list=True)
    assert rations.wait_s(1000.0, is_list=True) == pytest.approx(4.0)
    assert rations.wait_s(1000.0, is_list=False) == 0


def test_unreadable_events_lead_to_a_new_list(serve):
    api = serve(
        script(
            pod_list(5),
            Watch({"no": "type"}),
            pod_list(6, pod("a", 6)),
            then=SILENCE,
        )
    )
    with Mirror(api.host) as mirror:
        mirror.wait_for(("ADDED", "a"))


def test_a_bug_in_the_receiver_does_not_blind_it_to_other_objects(serve):
    api = serve(script(pod_list(5, pod("strange", 1), pod("fine", 2)), then=SILENCE))
    received = []

    def take(kind, item):
        if item["metadata"]["name"] == "strange":
            raise LookupError("bug")
        received.append((kind, item["metadata"]["name"]))

    reflector = Reflector(KubeClient.with_token(api.host, "t"), PODS, take)
    reflector.start()
    assert reflector.synced.wait(60)
    reflector.stop()
    assert received == [(EventType.ADDED, "fine")]
    assert reflector.failures == 1


def test_stop_wakes_a_watch_that_waits(serve):
    api = serve(script(pod_list(5, pod("a", 1)), then=SILENCE))
    with Mirror(api.host, pace=Pace()) as mirror:
        mirror.wait_for(("ADDED", "a"))
        wait_until(lambda: len(api.requests) == 2)
        mirror.reflector.stop(timeout_s=30)
        assert not mirror.reflector._thread.is_alive()
        assert mirror.reflector.failures == 0


def test_unreachable_server_is_waited_for(serve):
    mirror = Mirror("http://127.0.0.1:9")
    with mirror:
        wait_until(lambda: mirror.reflector.failures >= 3)
        assert not mirror.reflector.synced.is_set()
        assert mirror.reflector.last_activity_age_s > 0
