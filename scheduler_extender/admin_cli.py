"""`tandem hold | resume | prioritize`: commands of administrators for one job in the queue."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tandem.cli.complete import gpujob_names
from tandem.cli.forms import Form, printed, shows
from tandem.cli.output import out
from tandem.cli.reach import ContextOption, KubeconfigOption
from tandem.cli.views import OwnNamespaceOption
from tandem.errors import TandemError, UsageError

Job = Annotated[
    str,
    typer.Argument(
        metavar="[NAMESPACE/]JOB",
        help="A GPUJob, or the workload that it stands for.",
        autocompletion=gpujob_names,
    ),
]


@shows
def hold(
    job: Job,
    namespace: OwnNamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    form: Form = Form.TABLE,
) -> None:
    """Keep a job from being started; one that runs goes on."""
    name = _patch(job, namespace, kubeconfig, context, {"hold": True}, form)
    _say(form, f"{name} is held: it will not be started until it is resumed")


@shows
def resume(
    job: Job,
    namespace: OwnNamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    form: Form = Form.TABLE,
) -> None:
    """Let a held job be started again."""
    name = _patch(job, namespace, kubeconfig, context, {"hold": False}, form)
    _say(form, f"{name} is in the queue again")


@shows
def prioritize(
    job: Job,
    namespace: OwnNamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    form: Form = Form.TABLE,
) -> None:
    """Move a job to the front of the queue.

    It goes behind those that were moved there before it.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    name = _patch(job, namespace, kubeconfig, context, {"prioritizedAt": now}, form)
    _say(form, f"{name} is at the front of the queue, behind those that were moved there before")


def _say(form: Form, words: str) -> None:
    if form is Form.TABLE:
        out.print(words, highlight=False, soft_wrap=True)


def _patch(
    job: str,
    namespace: str | None,
    kubeconfig: Path | None,
    context: str | None,
    spec: dict[str, Any],
    form: Form,
) -> str:
    """Change a GPUJob and return NAMESPACE/GPUJOB, which is printed where `form` wants it."""
    from tandem.kube.client import KubeClient
    from tandem.kube.credentials import context_namespace
    from tandem.kube.errors import Forbidden, NotFound
    from tandem.kube.resource import GPU_JOBS

    where, slash, name = job.rpartition("/")
    if not name or "/" in where or (slash and not where):
        raise UsageError(f"{job!r} names no job", "write NAMESPACE/JOB, such as team-a/train")
    where = where or namespace or context_namespace(kubeconfig, context)
    client = KubeClient.load(kubeconfig, context)
    try:
        try:
            changed = client.patch(GPU_JOBS, name, {"spec": spec}, where)
        except NotFound:
            # A GPUJob has the name of its workload after the workload's kind.
            named = [
                each["metadata"]["name"]
                for each in client.list(GPU_JOBS, where)
                if each["spec"]["workload"]["name"] == name
            ]
            if len(named) != 1:
                raise
            changed = client.patch(GPU_JOBS, named[0], {"spec": spec}, where)
    except NotFound as error:
        raise TandemError(
            f"there is no job {where}/{name}, or more than one of that name",
            f"`tandem jobs -n {where}` lists them; another namespace: -n NAMESPACE",
        ) from error
    except Forbidden as error:
        raise TandemError(
            f"you may not change the job {where}/{name}",
            "ask for the right to patch gpujobs.tandem.gpu",
        ) from error
    finally:
        client.close()
    full = f"{where}/{changed['metadata']['name']}"
    printed(form, full, changed)
    return full
