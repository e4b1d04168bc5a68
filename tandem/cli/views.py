"""`tandem gpus | jobs | explain`: what the extender knows, for people and programs."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from tandem.cli.complete import namespaces, node_names, pod_names
from tandem.cli.forms import Column, Form, lists, print_list, printed, shows
from tandem.cli.output import clean, err, out, print_json, print_table
from tandem.cli.reach import MissingError, Reader, reads
from tandem.errors import UsageError
from tandem.reasons.counting import counted
from tandem.reasons.predicted import predicted_in_words

NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Only this namespace. [all that you may list]",
        autocompletion=namespaces,
    ),
]
OwnNamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Its namespace. [that of the context]",
        autocompletion=namespaces,
    ),
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", min=0, help="Rows at most, 0 for all. [200 on a terminal, else all]"),
]
_ROWS = 200


def say(line: str) -> None:
    """Print a line in which others may have written."""
    out.print(clean(line), highlight=False, markup=False)


def shown(rows: list[Any], limit: int | None, more: str, form: Form = Form.TABLE) -> list[Any]:
    """Return the rows to print; how many others there are is said, with `more`."""
    if limit is None:
        limit = _ROWS if out.is_terminal else 0
    if limit and len(rows) > limit:
        (err if form is Form.NAME else out).print(
            f"{len(rows) - limit:,} more not shown: {more}", highlight=False
        )
        return rows[:limit]
    return rows


@reads
@lists
def gpus(
    read: Reader,
    node: Annotated[
        str | None,
        typer.Option("--node", help="Only the GPUs of this node.", autocompletion=node_names),
    ] = None,
    idle: Annotated[bool, typer.Option("--idle", help="Only GPUs that nothing holds.")] = False,
    limit: LimitOption = None,
    form: Form = Form.TABLE,
) -> None:
    """List GPUs, what holds them and what is promised of them."""
    found = read.get("/v1/gpus", {"node": node} if node else {})
    if node and not found["gpus"]:
        raise MissingError(
            f"there is no node {node!r} that reports GPUs", "`tandem gpus` lists all of them"
        )
    if idle:
        found["gpus"] = [gpu for gpu in found["gpus"] if state(gpu) == "ready" and not gpu["held"]]
    if form is Form.JSON:
        print_json(found)
        return
    found["gpus"].sort(key=lambda gpu: (gpu["node"], gpu.get("index") or 0))
    rows = shown(found["gpus"], limit, "--limit 0, --node NODE or --idle", form)
    empty = "No GPU is idle." if idle else "No GPU is reported."
    print_list(form, "GPUs", _GPUS, rows, lambda gpu: f"{gpu['node']}/{gpu['gpu']}", empty)


@reads
@lists
def jobs(
    read: Reader,
    namespace: NamespaceOption = None,
    limit: LimitOption = None,
    form: Form = Form.TABLE,
) -> None:
    """List jobs: where they run, or why they wait."""
    found = read.of_namespace("/v1/jobs", namespace)
    if not found["jobs"]:
        read.check_namespace(namespace)
    if form is Form.JSON:
        print_json(found)
        return
    rows = shown(found["jobs"], limit, "--limit 0 or -n NAMESPACE", form)
    empty = "No job asks for GPUs of Tandem."
    print_list(form, "Jobs", _JOBS, rows, lambda job: f"{job['namespace']}/{job['name']}", empty)


@reads
@shows
def explain(
    read: Reader,
    pod: Annotated[
        str,
        typer.Argument(
            metavar="[NAMESPACE/]POD", help="The pod in question.", autocompletion=pod_names
        ),
    ],
    namespace: OwnNamespaceOption = None,
    form: Form = Form.TABLE,
) -> None:
    """Say where a pod is, or what keeps it off each node."""
    where, _, name = pod.rpartition("/")
    if not name or "/" in where:
        raise UsageError(f"{pod!r} names no pod", "write NAMESPACE/POD, such as default/train-0")
    where = where or namespace or read.own_namespace
    found = read.get(f"/v1/explain/{quote(where, safe='')}/{quote(name, safe='')}")
    if printed(form, f"{where}/{name}", found):
        return
    worker = found["worker"]
    peak = worker["memoryPeakGib"]  # 0: nothing is known, and so it has the GPU alone
    needs = (
        counted(worker["gpus"], "GPU")
        + (" of its own" if worker["exclusive"] else "")
        + (f", {peak:.1f} GiB each at its peak" if peak else ", all of the memory")
        + f", {worker['utilisationPercent']:.0f} % utilisation"
    )
    say(f"{where}/{name} of job {found['job']}: needs {needs}")
    if found["node"]:
        gpus = found.get("gpuNames") or found["gpus"]
        say(f"runs on {found['node']}: {', '.join(gpus) or 'no GPUs known'}")
    elif found["message"]:
        say(f"{found['phase']}: {found['message']}")
    if found.get("expectedStart"):
        say(f"expected to start {expected(found)} (as of {found['expectedStart']['asOf']})")
    _print_sharing(found)
    if found["nodes"]:
        print_table(
            "Nodes",
            ("node", "GPU type", "fits", "GPUs that could take it", "reason"),
            [
                (
                    each["node"],
                    ", ".join(each["models"]) or "-",
                    "yes" if each["fits"] else "no",
                    ", ".join(each.get("gpuNames") or each["gpus"]) or "-",
                    each["reason"] or "-",
                )
                for each in found["nodes"]
            ],
        )
    elif found.get("reasons"):
        print_table(
            "GPUs",
            ("what keeps the pod off", "GPUs", "nodes"),
            [
                (each.get("says") or each["reason"], each["gpus"], each["nodes"])
                for each in found["reasons"]
            ],
        )
        out.print("Node names need the right to list gpunodes.tandem.gpu.", highlight=False)
    if found["nodesNotShown"]:
        more = counted(found["nodesNotShown"], "more node")
        out.print(f"{more} not shown", highlight=False)


def _print_sharing(found: dict[str, Any]) -> None:
    """Print what is predicted, what was measured since, and the latest decisions with their why."""
    predicted, seen = found.get("prediction"), found.get("observed")
    lines = []
    if predicted:
        said = predicted_in_words(
            predicted["memoryUpperGib"], predicted["memorySource"],
            predicted["utilisationPercent"], predicted["utilisationSource"],
        )  # fmt: skip
        lines.append(f"predicted: {said}")
    if found.get("memoryLimitGib"):
        lines.append(
            f"limit: {found['memoryLimitGib']:.1f} GiB of each GPU, unless the job sets its own"
            " (docs/limits.md)"
        )
    if seen:
        slower = seen.get("slowdown")
        said = f"measured: {seen.get('memoryPeakBytes', 0) / 2**30:.1f} GiB at most"
        if slower:
            said += (
                f"; {slower['value']:.0%} slower than alone (by {slower['means']},"
                f" against {slower['reference']}{', an estimate' if slower['estimated'] else ''})"
            )
        lines.append(said)
    lines += [f"{each['at']} {each['what']}: {each['why']}" for each in found.get("decisions", ())]
    for line in lines:
        say(line)
    for gpu in found.get("here", ()):
        print_table(
            gpu.get("name") or gpu["gpu"],
            ("what is checked", "allows", "figures"),
            [
                (
                    each.get("topic") or each["constraint"],
                    "yes" if each["allows"] else "no",
                    each["says"] or "-",
                )
                for each in gpu["constraints"]
            ]
            + [
                (kind.replace("_", " ").capitalize(), "score", f"{score:.2f}")
                for kind, score in gpu["scores"].items()
            ],
        )


def expected(found: dict[str, Any]) -> str:
    """Say between which times a start is expected."""
    expected = found.get("expectedStart")
    if not expected:
        return "-"
    latest = expected.get("latest")
    return f"{expected['earliest']} .. {latest}" if latest else f"{expected['earliest']} or later"


def _memory(gpu: dict[str, Any]) -> str:
    """Return in words what is promised of a GPU's memory, and what others hold of it."""
    if gpu.get("memorySource") == "Unknown":
        return f"{gpu['memoryPromisedGib']:.1f} GiB, size unknown"
    held = gpu.get("memoryForeignBytes") or 0
    foreign = f", {held / 2**30:.1f} foreign" if held else ""
    return f"{gpu['memoryPromisedGib']:.1f} of {gpu['memoryCapacityGib']:.1f} GiB{foreign}"


def state(gpu: dict[str, Any]) -> str:
    """Return in words whether new work may go to a GPU."""
    if not gpu["healthy"]:
        return f"quarantined: {gpu['reason']}" if gpu["reason"] else "quarantined"
    if not gpu["shares"]:
        return f"not offered: {gpu['reason']}" if gpu["reason"] else "not offered"
    return "ready" if gpu["fresh"] else "silent agent"


def _gpu_name(gpu: dict[str, Any]) -> str:
    """Return a GPU as people call it; by its UUID where its number is not known."""
    number = gpu.get("number", gpu.get("index"))  # extenders before slices have the index alone
    return f"{gpu['node']}/{gpu['gpu'] if number is None else number}"


def _between(job: dict[str, Any]) -> str:
    """Say between which times of day (UTC) a start is expected, with the date if it is another."""
    found = job.get("expectedStart")
    if not found:
        return "-"
    today = str(found.get("asOf") or "")[:10]
    earliest, latest = (
        each and (f"{each[11:16]}" if each[:10] == today else f"{each[:10]} {each[11:16]}")
        for each in (found["earliest"], found.get("latest"))
    )
    return f"{earliest} .. {latest} UTC" if latest else f"{earliest} UTC or later"


_GPUS = (
    Column("node", lambda gpu: gpu["node"], repeated=True),
    Column("GPU", _gpu_name),
    Column("UUID", lambda gpu: gpu["gpu"], wide=True),
    Column("model", lambda gpu: gpu["model"], may_break=True),
    Column("shares", lambda gpu: f"{gpu['held']}/{gpu['shares']}"),
    Column("memory predicted", _memory),
    Column("memory measured", lambda gpu: _gib(gpu.get("memoryUsedBytes")), wide=True),
    Column("load predicted", lambda gpu: f"{gpu['utilisationPromisedPercent']:.0f} %"),
    Column("load measured", lambda gpu: _percent(gpu.get("utilisationPercent")), wide=True),
    Column("NVLink domain", lambda gpu: _known(gpu.get("nvlinkDomain")), wide=True),
    Column("NUMA node", lambda gpu: _known(gpu.get("numaNode")), wide=True),
    Column("jobs", lambda gpu: ", ".join(gpu["jobs"]) or "-"),
    Column("state", state, may_break=True),
)
_JOBS = (
    Column("namespace", lambda job: job["namespace"]),
    Column("job", lambda job: job["name"]),
    Column("phase", lambda job: job["phase"]),
    Column("#", lambda job: "-" if job["position"] is None else job["position"] + 1),
    Column("expected start", _between),
    Column("queued", lambda job: job.get("queuedAt") or "-", wide=True),
    Column("started", lambda job: job.get("startedAt") or "-", wide=True),
    Column("GPU hours", lambda job: (job.get("attainedGpuSeconds") or 0) / 3600, wide=True),
    Column("model", lambda job: (job.get("demand") or {}).get("model") or "-", wide=True),
    Column("places", lambda job: ", ".join(sorted({p["node"] for p in job["places"]})) or "-"),
    Column("message", lambda job: job.get("short") or job["message"], may_break=True),
)


def _known(number: int | None) -> str:
    return "-" if number is None else str(number)


def _gib(count: float | None) -> str:
    return "-" if count is None else f"{count / 2**30:.1f} GiB"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} %"
