"""`tandem what-if JOB`: when it would start and end if it asked for something else."""

from __future__ import annotations

import re
from time import sleep
from typing import Annotated, Any
from urllib.parse import quote

import typer

from tandem.cli.complete import job_names
from tandem.cli.forms import Form, reports
from tandem.cli.output import print_json, print_table
from tandem.cli.questions import job_of, named
from tandem.cli.reach import MisdirectedError, Reader, reads_once
from tandem.cli.screen import starts_in
from tandem.cli.views import OwnNamespaceOption, say
from tandem.contracts.quantity import parse_quantity
from tandem.errors import UsageError

Document = dict[str, Any]

#: A request goes to any replica, and the one that leads has the queue: one of two, as a rule.
_TRIES, _AGAIN_S = 20, 0.1
_QUOTA = re.compile(
    r"(gpus|max_gpus|endless_gpus)=\d{1,6}(,(gpus|max_gpus|endless_gpus)=\d{1,6}){0,2}"
)
_LOADS = ("memory", "use", "iteration")


@reads_once
@reports
def what_if(
    read: Reader,
    job: Annotated[
        str,
        typer.Argument(
            metavar="[NAMESPACE/]JOB",
            help="A job that waits: a GPUJob, or the Job or pod that it stands for.",
            autocompletion=job_names,
        ),
    ],
    namespace: OwnNamespaceOption = None,
    gpus: Annotated[int | None, typer.Option("--gpus", min=1, help="GPUs in all.")] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", help="GPU memory at most, such as 20Gi.")
    ] = None,
    share: Annotated[
        bool | None, typer.Option("--share/--no-share", help="Whether it may share its GPUs.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Items a GPU and iteration.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="Another profile of the cluster (operators).")
    ] = None,
    quota: Annotated[
        str | None,
        typer.Option(
            "--quota",
            metavar="gpus=N,max_gpus=N",
            help="Another quota of its namespace (operators).",
        ),
    ] = None,
    add_nodes: Annotated[
        str | None,
        typer.Option("--add-nodes", metavar="N:TYPE", help="More nodes, as 2:A100 (operators)."),
    ] = None,
    form: Form = Form.TABLE,
) -> None:
    """Say when a job would start if it asked for something else.

    Four times in five, each of them lies between the two times. A forecast is no promise.
    """
    where, name = named(job)
    if add_nodes is not None and not re.fullmatch(r"[1-9]\d{0,2}:[\w .-]{1,64}", add_nodes):
        raise UsageError(f"--add-nodes {add_nodes!r} is no N:TYPE", "such as 2:A100")
    if quota is not None and not _QUOTA.fullmatch(quota):
        raise UsageError(f"--quota {quota!r} is no quota", "such as gpus=8,max_gpus=16")
    query = {
        option: str(value)
        for option, value in (
            ("gpus", gpus),
            ("memory", _bytes(memory)),
            ("batch_size", batch_size),
            ("share", None if share is None else str(share).lower()),
            ("profile", profile),
            ("quota", quota),
            ("add_nodes", add_nodes),
        )
        if value is not None
    }
    if not query:
        raise UsageError(
            "Nothing would change.",
            "name --gpus, --memory, --batch-size, --no-share, --profile, --quota or --add-nodes",
        )
    view = job_of(read, where or namespace or read.own_namespace, name)["view"]
    path = f"/v1/status/jobs/{quote(view['namespace'], safe='')}/{quote(view['name'], safe='')}"
    found = _asked(read, f"{path}/what-if", query)
    if form is Form.JSON:
        print_json(found | {"namespace": view["namespace"], "name": view["name"]})
        return
    at = str(found["asOf"])
    cases = {"now": "as it is", "then": "with the change"}
    cells = [
        (
            words,
            found[case]["gpus"],
            *_load(found[case]),
            *(_in(found[case], what, at) for what in ("start", "end")),
        )
        for case, words in cases.items()
    ]
    loads = _LOADS if batch_size is not None else ()
    heads = ("", "GPUs", *loads, "starts in", "ends in")
    print_table(f"{view['namespace']}/{view['name']}", heads, cells)
    if batch_size is not None:
        say("Memory, use and iteration are those of one GPU; there are as many items in all.")
    for case, words in cases.items():
        if "never" in found[case]:
            say(f"{words.capitalize()}: {found[case]['never']}.")
    say(f"As of {at[:19]}Z; four times in five, each lies between the two times.")


def _load(case: Document) -> tuple[str, ...]:
    """Return what a worker uses, in the order of `_LOADS`; nothing where the batch is as it is."""
    if "iterationSeconds" not in case:
        return ()
    return (
        f"{case['memoryBytes'] / 2**30:.1f} GiB",
        f"{case['utilisationPercent']:.0f} %",
        f"{case['iterationSeconds']:.3g} s",
    )


def _bytes(memory: str | None) -> int | None:
    if memory is None:
        return None
    try:
        found = int(parse_quantity(memory))
    except ValueError as error:
        raise UsageError(f"--memory {memory!r} is no quantity", "such as 20Gi") from error
    if found < 1:
        raise UsageError(f"--memory {memory!r} is too little", "such as 20Gi")
    return found


def _asked(read: Reader, path: str, query: dict[str, str]) -> Document:
    """Ask until the replica that leads answers."""
    for _ in range(_TRIES):
        try:
            return dict(read.get(path, query))
        except MisdirectedError:
            sleep(_AGAIN_S)
    return dict(read.get(path, query))


def _in(case: Document, what: str, at: str) -> str:
    if "never" in case:
        return "never"
    if case[what]["earliest"] is None:
        return "not within 48h"
    return starts_in(case[what], at)
