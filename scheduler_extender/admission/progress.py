"""What lets a job tell its progress to the agent of its node, as parts of a JSON patch. Pure.

The agent's address is known from the node's own, and a token for the agent's audience alone says
which pod speaks. Nothing of the node is mounted, so pods stay within Pod Security's `restricted`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scheduler_extender.admission.podshape import Placed, PodSpec
from tandem.contracts import names

VOLUME = "tandem-token"
_TOKEN_LIFE_S = 3600


def tells_progress(placed: Placed, spec: PodSpec) -> bool:
    """Tell whether a container is to be given what it takes; who has set a part of it is not."""
    own = {variable.get("name") for variable in placed.body.env}
    return (
        names.AGENT_URL_ENV not in own
        and names.HOST_IP_ENV not in own
        and all(mount.mount_path != names.TOKEN_FOLDER for mount in placed.body.volume_mounts)
        and all(volume.name != VOLUME for volume in spec.volumes)
    )


def variables(port: int) -> list[dict[str, Any]]:
    """Return the environment with which `tandem.progress` finds the agent."""
    address = {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.hostIP"}}
    return [
        {"name": names.HOST_IP_ENV, "valueFrom": address},
        {"name": names.AGENT_URL_ENV, "value": f"http://$({names.HOST_IP_ENV}):{port}"},
    ]


def token(placed: Placed, spec: PodSpec) -> Iterator[dict[str, Any]]:
    """Yield the operations that mount a token which says which pod this is, to agents alone."""
    source = {
        "audience": names.AGENT_AUDIENCE,
        "expirationSeconds": _TOKEN_LIFE_S,
        "path": names.TOKEN_NAME,
    }
    volume = {"name": VOLUME, "projected": {"sources": [{"serviceAccountToken": source}]}}
    mount = {"name": VOLUME, "mountPath": names.TOKEN_FOLDER, "readOnly": True}
    yield _append("/spec/volumes", volume, present=bool(spec.volumes))
    yield _append(f"{placed.pointer}/volumeMounts", mount, present=bool(placed.body.volume_mounts))


def _append(path: str, value: object, *, present: bool) -> dict[str, Any]:
    if present:
        return {"op": "add", "path": f"{path}/-", "value": value}
    return {"op": "add", "path": path, "value": [value]}
