"""`tandem hold | resume | prioritize`: commands of administrators for one job in the queue."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tandem.cli.complete import gpujob_names
from tandem.cli.output import out
from tandem.errors import TandemError, UsageError

Job = Annotated[
    str,
    typer.Argument(
        metavar="NAMESPACE/GPUJOB",
        help="As `tandem jobs` shows it.",
        autocompletion=gpujob_names,
    ),
]
# Not by KUBECONFIG as a path: the variable may name several files.
Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", help="An account that may patch GPUJobs. [that of kubectl]"),
]


def hold(job: Job, kubeconfig: Kubeconfig = None) -> None:
    """Keep a job from being started; one that runs goes on."""
    _patch(job, kubeconfig, {"hold": True})
    out.print(f"{job} is held: it will not be started until it is resumed", highlight=False)


def resume(job: Job, kubeconfig: Kubeconfig = None) -> None:
    """Let a held job be started again."""
    _patch(job, kubeconfig, {"hold": False})
    out.print(f"{job} is in its turn again", highlight=False)


def prioritize(job: Job, kubeconfig: Kubeconfig = None) -> None:
    """Move a job to the front, behind those that were moved there before it."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    _patch(job, kubeconfig, {"prioritizedAt": now})
    out.print(f"{job} goes before all that were not moved to the front", highlight=False)


def _patch(job: str, kubeconfig: Path | None, spec: dict[str, Any]) -> None:
    from tandem.kube.client import KubeClient
    from tandem.kube.errors import Forbidden, NotFound
    from tandem.kube.resource import GPU_JOBS

    namespace, _, name = job.partition("/")
    if not namespace or not name:
        raise UsageError(f"{job!r} names no job", "write NAMESPACE/GPUJOB, such as team-a/job-bert")
    client = KubeClient.load(kubeconfig)
    try:
        client.patch(GPU_JOBS, name, {"spec": spec}, namespace)
    except NotFound as error:
        raise TandemError(f"there is no GPUJob {job}", "see `kubectl get gpujobs -A`") from error
    except Forbidden as error:
        raise TandemError(
            f"you may not change GPUJob {job}", "ask for the right to patch gpujobs.tandem.gpu"
        ) from error
    finally:
        client.close()
