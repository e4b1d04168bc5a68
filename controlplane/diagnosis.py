"""Describes a plane on which something did not happen, for a test's report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import httpx

_EVENTS = 25
_PODS = 40
_SETTLED = ("Running", "Succeeded", "Failed")
_GPU_JOBS = "/apis/tandem.gpu/v1alpha1/gpujobs"

Object = Mapping[str, Any]


def diagnosis(http: httpx.Client) -> str:
    """Return what waits, what is on its way out and why, and the last events.

    `http` speaks to the API server as administrator. Never raises for an API server that is away.
    """
    sections = (
        ("Namespaces on their way out", _namespaces(_items(http, "/api/v1/namespaces"))),
        ("Pods that wait or go", _pods(_items(http, "/api/v1/pods"))),
        ("GPUJobs", _gpu_jobs(_items(http, _GPU_JOBS))),
        ("Last events", _events(_items(http, "/api/v1/events"))),
    )
    return "\n".join(
        f"{title}:\n" + "".join(f"  {line}\n" for line in lines) for title, lines in sections
    )


def _items(http: httpx.Client, path: str) -> list[Object]:
    try:
        answer = http.get(path)
        items: list[Object] = answer.json().get("items", []) if answer.is_success else []
    except (httpx.HTTPError, ValueError, RuntimeError):  # RuntimeError: the client is closed
        return []
    return items


def _key(one: Object) -> str:
    metadata = one["metadata"]
    return "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))


def _conditions(one: Object) -> str:
    said = []
    for each in one.get("status", {}).get("conditions", ()):
        words = (f"{each['type']}={each['status']}", each.get("reason"), each.get("message"))
        said.append(" ".join(filter(None, words)))
    return "; ".join(said)


def _namespaces(items: Iterable[Object]) -> Iterator[str]:
    for one in items:
        if since := one["metadata"].get("deletionTimestamp"):
            yield f"{_key(one)} since {since}: {_conditions(one) or 'no conditions'}"


def _pods(items: Iterable[Object]) -> list[str]:
    found = []
    for one in items:
        phase, going = one["status"].get("phase"), one["metadata"].get("deletionTimestamp")
        if phase in _SETTLED and not going:
            continue
        gates = [gate["name"] for gate in one["spec"].get("schedulingGates", ())]
        found.append(
            f"{_key(one)} {phase} node={one['spec'].get('nodeName', '')} gates={gates} "
            f"going={going} finalizers={one['metadata'].get('finalizers', [])}: {_conditions(one)}"
        )
    return found[:_PODS] + ([f"... of {len(found)}"] if len(found) > _PODS else [])


def _gpu_jobs(items: Iterable[Object]) -> Iterator[str]:
    for one in items:
        status = one.get("status", {})
        if status.get("phase") not in ("Completed", "Failed"):
            words = (status.get(key) for key in ("phase", "reason", "message"))
            yield f"{_key(one)} {' '.join(str(word) for word in words if word)}"


def _events(items: Iterable[Object]) -> list[str]:
    def when(one: Object) -> str:
        return str(one.get("lastTimestamp") or one.get("eventTime") or "")

    return [
        f"{when(one)} {one['involvedObject'].get('kind')} {one['metadata'].get('namespace')}/"
        f"{one['involvedObject'].get('name')} {one.get('reason')}: {one.get('message')}"
        for one in sorted(items, key=when)[-_EVENTS:]
    ]
