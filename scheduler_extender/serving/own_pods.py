"""Tandem's own pods as their kubelets see them: which agents, predictors and replicas are silent.

Kubelets ask each of them every few seconds (readiness probes), and the API server tells only of
what changes. So it costs next to nothing in a cluster of any size to hear of a service that does
not answer. docs/decisions/0057 compares other ways.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Gauge

from tandem.kube.client import KubeClient, Object
from tandem.kube.memory import MemoryCluster
from tandem.kube.reflector import EventType, Reflector, Selector
from tandem.kube.resource import PODS

#: The label app.kubernetes.io/component of the chart's pods that answer others.
COMPONENTS = ("agent", "predictor", "scheduler")
_SELECTOR = Selector(
    f"app.kubernetes.io/name=tandem,app.kubernetes.io/component in ({','.join(COMPONENTS)})"
)
#: A pod that has never answered, and none of whose containers has failed, may still be starting:
#: the image of a new node takes a while. Counted from when this process first saw the pod, since
#: the API server's clock may differ from ours.
STARTS_WITHIN_S = 300.0

Key = tuple[str, str]  # (namespace, name)


@dataclass(frozen=True, slots=True)
class OwnPod:
    """What counts of a pod. `deaf`: the container that does not answer, "" where none is known."""

    key: Key
    uid: str
    component: str
    node: str
    ready: bool
    deaf: str = ""
    restarted: bool = False
    going: bool = False  # ends or has ended

    def __str__(self) -> str:
        """Return its name, and which of its containers does not answer."""
        return f"{self.key[1]} ({self.deaf})" if self.deaf else self.key[1]


def own_pod(raw: Object) -> OwnPod:
    """Read one of our pods. One that ends or has ended counts as ready: another takes its place."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    going = "deletionTimestamp" in metadata or status.get("phase") in ("Succeeded", "Failed")
    ready = going or conditions.get("Ready") == "True"
    statuses = (*(status.get("initContainerStatuses") or ()),
                *(status.get("containerStatuses") or ()))  # fmt: skip
    deaf = () if ready else (one["name"] for one in statuses if not one.get("ready"))
    restarted = not ready and any(one.get("restartCount") for one in statuses)
    return OwnPod(
        key=(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        component=(metadata.get("labels") or {}).get("app.kubernetes.io/component", ""),
        node=(raw.get("spec") or {}).get("nodeName") or "",
        ready=ready,
        deaf=next(iter(deaf), ""),
        restarted=restarted,
        going=going,
    )


class OwnPods:
    """Follows our pods, on the event loop. `changed` gets nodes whose agents may differ."""

    def __init__(
        self, clock: Callable[[], float], changed: Callable[[str], None] = lambda _: None
    ) -> None:
        self._clock = clock
        self._changed = changed
        self._unready: dict[Key, OwnPod] = {}
        self._first_seen_s: dict[str, float] = {}  # by UID
        self._answered: set[str] = set()  # UIDs of pods that have been ready
        self._agents: dict[str, dict[Key, OwnPod]] = {}  # by node

    def take(self, event: EventType, pod: OwnPod) -> None:
        """Take in what has become of a pod."""
        gone = event is EventType.DELETED
        self._first_seen_s.setdefault(pod.uid, self._clock())
        if gone:
            del self._first_seen_s[pod.uid]
            self._answered.discard(pod.uid)
        elif pod.ready:
            self._answered.add(pod.uid)
        if gone or pod.ready:
            self._unready.pop(pod.key, None)
        else:
            self._unready[pod.key] = pod
        if pod.component == "agent" and pod.node:
            agents = self._agents.setdefault(pod.node, {})
            agents.pop(pod.key, None)
            if not gone and not pod.going:
                agents[pod.key] = pod
            if not agents:
                del self._agents[pod.node]
            self._changed(pod.node)

    def silent(self, *components: str) -> list[OwnPod]:
        """Return the pods of these components that do not answer, by name."""
        found = (pod for pod in self._unready.values() if pod.component in components)
        return sorted(filter(self._is_silent, found), key=lambda pod: pod.key)

    def agent_answers(self, node: str) -> bool:
        """Say whether the agent of a node answers its kubelet; True where that is not known."""
        agents = self._agents.get(node)
        return not agents or not all(map(self._is_silent, agents.values()))

    def _is_silent(self, pod: OwnPod) -> bool:
        if pod.ready:
            return False
        seen_for_s = self._clock() - self._first_seen_s[pod.uid]
        return pod.restarted or pod.uid in self._answered or seen_for_s > STARTS_WITHIN_S

    def count(self, registry: CollectorRegistry) -> None:
        """Tell Prometheus how many do not answer."""
        gauge = Gauge(
            "tandem_extender_silent_pods",
            "Pods of Tandem that do not answer their kubelet, by component.",
            ["component"],
            registry=registry,
        )
        for component in COMPONENTS:
            gauge.labels(component).set_function(partial(self._count, component))

    def _count(self, component: str) -> float:
        return len(self.silent(component))

    def follow(self, api: KubeClient | MemoryCluster, namespaces: Iterable[str]) -> list[Reflector]:
        """Start to watch our pods in these namespaces, for the running loop; none in memory."""
        if isinstance(api, MemoryCluster):
            return []
        loop = asyncio.get_running_loop()

        def tell(event: EventType, pod: OwnPod) -> None:
            loop.call_soon_threadsafe(self.take, event, pod)

        reflectors = [
            Reflector(api, PODS, tell, namespace=each, selector=_SELECTOR, trim=_trim)
            for each in sorted(set(namespaces))
        ]
        for reflector in reflectors:
            reflector.start()
        return reflectors


def _trim(raw: Object, known: OwnPod | None) -> OwnPod:
    pod = own_pod(raw)
    return known if known == pod else pod
