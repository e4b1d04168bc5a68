"""Names for the shell's completion: from the cluster of the kubeconfig, in a moment or not at all.

A failure prints nothing: a shell that completes has no place for an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from tandem.contracts import names

_READ_TIMEOUT_S = 2.0
_MOST = 500


def job_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return GPUJobs of the namespace that begin with what is there; with `/`, of any namespace."""
    where, slash, _ = incomplete.rpartition("/")
    if slash:
        return [f"{where}/{each}" for each in _listed(context, "gpujobs", where)
                if f"{where}/{each}".startswith(incomplete)]  # fmt: skip
    namespace = context.params.get("namespace") or _own_namespace(context)
    return [each for each in _listed(context, "gpujobs", namespace) if each.startswith(incomplete)]


def gpujob_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return NAMESPACE/GPUJOB of all namespaces, else of the context's own."""
    found = _items(context, names_path("gpujobs", None))
    if found is None:
        own = _own_namespace(context)
        found = _items(context, names_path("gpujobs", own)) or []
    full = [f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in found]
    return [each for each in full if each.startswith(incomplete)]


def pod_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return pods of the namespace that ask for GPUs of ours."""
    where, slash, rest = incomplete.rpartition("/")
    namespace = where or context.params.get("namespace") or _own_namespace(context)
    path = f"/api/v1/namespaces/{namespace}/pods"
    ours = [
        each["metadata"]["name"]
        for each in _items(context, path) or ()
        if (each.get("spec") or {}).get("schedulerName") == names.SCHEDULER_NAME
    ]
    return [f"{where}{slash}{each}" for each in ours if each.startswith(rest)]


def node_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the nodes that have an agent."""
    return [each for each in _listed(context, "gpunodes", None) if each.startswith(incomplete)]


def namespaces(context: typer.Context, incomplete: str) -> list[str]:
    """Return the namespaces."""
    found = _items(context, "/api/v1/namespaces") or ()
    return [n for each in found if (n := each["metadata"]["name"]).startswith(incomplete)]


def model_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the models of the namespace."""
    namespace = context.params.get("namespace") or _own_namespace(context)
    found = _listed(context, "modelprofiles", namespace)
    return [each for each in found if each.startswith(incomplete)]


def context_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the contexts of the kubeconfig."""
    from tandem.kube.kubeconfig import UNUSABLE, Files

    try:
        known = Files(context.params.get("kubeconfig")).names()
    except UNUSABLE:
        return []
    return [name for each in known if (name := str(each)).startswith(incomplete)]


def names_path(plural: str, namespace: str | None) -> str:
    """Return where the API server lists one of our resources."""
    middle = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{names.API_VERSION}{middle}/{plural}"


def _listed(context: typer.Context, plural: str, namespace: str | None) -> list[str]:
    found = _items(context, names_path(plural, namespace)) or ()
    return [str(each["metadata"]["name"]) for each in found]


def _own_namespace(context: typer.Context) -> str:
    from tandem.kube.credentials import context_namespace

    return context_namespace(context.params.get("kubeconfig"), context.params.get("context"))


def _items(context: typer.Context, path: str) -> list[dict[str, Any]] | None:
    """Return up to 500 objects; None where the API server does not show them in time."""
    from tandem.errors import TandemError
    from tandem.kube.client import KubeClient
    from tandem.kube.errors import KubeError

    try:
        client = KubeClient.load(context.params.get("kubeconfig"), context.params.get("context"))
        found = client.request("GET", path, {"limit": _MOST}, read_timeout_s=_READ_TIMEOUT_S)
    except (KubeError, TandemError, OSError, ValueError):
        return None
    items: list[dict[str, Any]] = found.get("items") or []
    return items


def completions(words: list[str]) -> list[str]:
    """Return what may follow `tandem WORDS...`, where the last word is being typed."""
    # Typer's own: its commands are no classes of the library click.
    from typer._completion_classes import BashComplete
    from typer.main import get_command

    from tandem.cli.main import build_app

    *before, incomplete = words or [""]
    complete = BashComplete(get_command(build_app()), {}, "tandem", "_TANDEM_COMPLETE")
    found = complete.get_completions(before, incomplete)
    return [str(each.value) for each in found if each.type == "plain"]


def kubectl(words: Iterable[str] | None = None) -> None:
    """Answer `kubectl_complete-tandem`: one completion a line, then kubectl's directive."""
    given = list(sys.argv[1:] if words is None else words)
    directive = 4  # no names of files
    # What a library prints belongs to no completion.
    stdout = sys.stdout
    with Path(os.devnull).open("w") as nowhere:
        sys.stdout = nowhere
        try:
            found = completions(given)
        except (Exception, SystemExit):
            found = []
        finally:
            sys.stdout = stdout
    sys.stdout.write("".join(f"{each}\n" for each in found) + f":{directive}\n")
