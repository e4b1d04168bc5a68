"""ResourceQuotas of adopted namespaces continue to count GPUs.

In an adopted namespace the webhook turns `nvidia.com/gpu` into Tandem's resource before the API
server checks quotas, so that a quota on `requests.nvidia.com/gpu` no longer counts any new pod. For
each such quota the leader keeps a second one on `requests.tandem.gpu/gpu`, which the API server
enforces like any other. Its bound is what the first one leaves: pods from before the adoption hold
`nvidia.com/gpu` and count there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scheduler_extender.cluster.records import Key
from tandem.contracts import names
from tandem.contracts.quantity import parse_quantity
from tandem.kube.client import KubeClient
from tandem.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from tandem.kube.resource import NAMESPACES, Resource

log = logging.getLogger(__name__)

RESOURCE_QUOTAS = Resource("", "v1", "ResourceQuota", "resourcequotas")
COUNTED, OURS = f"requests.{names.NVIDIA_RESOURCE}", f"requests.{names.RESOURCE}"
#: On the quotas that Tandem keeps.
LABEL = f"{names.GROUP}/adopted-quota"
_LONGEST_NAME = 253
_EVERY_S = 10.0

Object = dict[str, Any]


def counterpart(quota: Mapping[str, Any]) -> Object | None:
    """Return the quota on Tandem's resource that belongs to a quota; None where it counts no GPUs.

    Raises:
        ValueError: a bound is no quantity.
    """
    metadata, spec = quota["metadata"], quota.get("spec") or {}
    hard = (spec.get("hard") or {}).get(COUNTED)
    if hard is None or LABEL in (metadata.get("labels") or {}):
        return None
    used = ((quota.get("status") or {}).get("used") or {}).get(COUNTED, "0")
    left = max(0, int(parse_quantity(hard)) - int(parse_quantity(used)))
    body: Object = {
        "metadata": {
            "name": f"tandem-{metadata['name']}"[:_LONGEST_NAME],
            "namespace": metadata["namespace"],
            "labels": {LABEL: "true"},
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "ResourceQuota",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                }
            ],
        },
        "spec": {"hard": {OURS: str(left)}},
    }
    if spec.get("scopes"):
        body["spec"]["scopes"] = list(spec["scopes"])
    # The webhook gives every pod Tandem's priority class: a bound by class holds for all of them.
    selected = [
        each
        for each in (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
        if each.get("scopeName") != "PriorityClass"
    ]
    if selected:
        body["spec"]["scopeSelector"] = {"matchExpressions": selected}
    return body


def changes(
    quotas: Iterable[Mapping[str, Any]], adopted: frozenset[str]
) -> tuple[list[Object], list[Object], list[Mapping[str, Any]]]:
    """Return which quotas to create, to replace and to delete. Pure.

    `quotas`: all of the cluster; `adopted`: the names of the adopted namespaces.
    """
    wanted: dict[Key, Object] = {}
    present: dict[Key, Mapping[str, Any]] = {}
    for quota in quotas:
        metadata = quota["metadata"]
        if LABEL in (metadata.get("labels") or {}):
            present[metadata["namespace"], metadata["name"]] = quota
        elif metadata["namespace"] in adopted and (made := counterpart(quota)) is not None:
            wanted[metadata["namespace"], made["metadata"]["name"]] = made
    create = [body for key, body in wanted.items() if key not in present]
    replace = []
    for key, body in wanted.items():
        found = present.get(key)
        if found is not None and found.get("spec") != body["spec"]:
            version = found["metadata"]["resourceVersion"]
            replace.append({**body, "metadata": {**body["metadata"], "resourceVersion": version}})
    return create, replace, [quota for key, quota in present.items() if key not in wanted]


def keep_once(api: KubeClient) -> None:
    """Make the quotas what they are to be. Blocks.

    Raises:
        KubeError: the API server refused, or could not be reached.
    """
    selector = f"{names.ADOPT_LABEL}=true"
    adopted = frozenset(
        each["metadata"]["name"] for each in api.list(NAMESPACES, label_selector=selector)
    )
    create, replace, delete = changes(api.list(RESOURCE_QUOTAS), adopted)
    for body in create:
        try:
            api.create(RESOURCE_QUOTAS, body, body["metadata"]["namespace"])
        except AlreadyExists:
            log.warning(
                "quota not kept: another one has its name quota=%s/%s",
                body["metadata"]["namespace"],
                body["metadata"]["name"],
            )
    for body in replace:
        try:
            api.replace(RESOURCE_QUOTAS, body, body["metadata"]["namespace"])
        except (Conflict, NotFound):
            continue  # the next look sees what has changed
    for quota in delete:
        metadata = quota["metadata"]
        try:
            api.delete(
                RESOURCE_QUOTAS, metadata["name"], metadata["namespace"], uid=metadata["uid"]
            )
        except (Conflict, NotFound):
            continue


async def keep(api: KubeClient, leads: Callable[[], bool], every_s: float = _EVERY_S) -> None:
    """Keep the quotas while this replica leads, until cancelled."""
    while True:
        if leads():
            try:
                await asyncio.to_thread(keep_once, api)
            except KubeError as error:
                log.warning("quotas of adopted namespaces not looked at error=%s", error)
            except Exception:
                log.exception("quotas of adopted namespaces not looked at")
        await asyncio.sleep(every_s)
