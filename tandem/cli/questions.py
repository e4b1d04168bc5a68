"""`tandem why | queue | sharing | quotas`: answers to what users ask, from /v1/status."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from tandem.cli.complete import job_names
from tandem.cli.forms import Column, Form, lists, print_list, printed, reports, shows
from tandem.cli.output import out, print_json, print_table
from tandem.cli.reach import MissingError, Reader, RefusedError, reads
from tandem.cli.screen import (
    clock,
    gain_in_words,
    in_words,
    place_name,
    sharing_in_words,
    span,
    starts_in,
)
from tandem.cli.shadow import print_shadow_why
from tandem.cli.views import LimitOption, NamespaceOption, OwnNamespaceOption, say
from tandem.contracts.names import PREDICTOR_AWAY
from tandem.errors import TandemError, UsageError
from tandem.reasons.counting import counted
from tandem.reasons.predicted import predicted_in_words

Document = dict[str, Any]

_GIB = 2**30
_PAGES = 1000  # of 100 jobs
#: Names that are tried for a name that is no GPUJob's: those of its workload and pods.
_CANDIDATES = 5


@reads
@lists
def queue(
    read: Reader,
    namespace: NamespaceOption = None,
    limit: LimitOption = 200,
    form: Form = Form.TABLE,
) -> None:
    """List the jobs that wait: when they start, and why not now.

    The next one comes first.
    """
    rows: list[Document] = []
    at, total, page = "", 0, 1
    while page <= _PAGES:
        wanted = {"phase": "Waiting", "sort": "queue", "page": str(page)}
        found = read.of_namespace("/v1/status/jobs", namespace, wanted)
        at, total = str(found["time"]), int(found["view"]["total"])
        rows += found["view"]["rows"]
        if page >= found["view"]["pages"] or (limit and len(rows) >= limit):
            break
        page += 1
    if limit:
        rows = rows[:limit]
    if not rows:
        read.check_namespace(namespace)
    if form is Form.JSON:
        print_json({"time": at, "total": total, "jobs": rows})
        return
    columns = (
        Column("#", lambda row: "-" if row["position"] is None else str(row["position"] + 1)),
        Column("namespace", lambda row: row["namespace"]),
        Column("job", lambda row: row["name"]),
        Column("waits for", lambda row: span(row["waitingSince"] or row["queuedAt"], at)),
        Column("starts in", lambda row: starts_in(row["expectedStart"], at)),
        Column("queued", lambda row: row["queuedAt"] or "-", wide=True),
        Column("why", lambda row: row.get("short") or row["message"] or row["reason"] or "-"),
    )
    name = "{0[namespace]}/{0[name]}".format
    print_list(form, "Queue", columns, rows, name, "No job waits.")
    if total > len(rows) and form is not Form.NAME:
        out.print(f"{total - len(rows):,} more wait: --limit 0 shows all", highlight=False)


@reads
@shows
def why(
    read: Reader,
    job: Annotated[
        str,
        typer.Argument(
            metavar="[NAMESPACE/]JOB",
            help="A GPUJob, or the Job or pod that it stands for.",
            autocompletion=job_names,
        ),
    ],
    namespace: OwnNamespaceOption = None,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="In shadow mode: what Tandem would do with it now.")
    ] = False,
    form: Form = Form.TABLE,
) -> None:
    """Say why a job waits, when it starts, and what slows it down.

    It also says why the job was stopped, what was predicted of it, and what was measured.
    """
    where, name = named(job)
    if shadow:
        print_shadow_why(read, where or namespace or read.own_namespace, name, form)
        return
    found = job_of(read, where or namespace or read.own_namespace, name)
    view = found["view"]
    if printed(form, f"{view['namespace']}/{view['name']}", view | {"time": found["time"]}):
        return
    for line in answers(view, str(found["time"])):
        say(line)


def named(job: str) -> tuple[str, str]:
    """Return namespace ('' for none) and name of a job that a user has named.

    Raises:
        UsageError: it is no name.
    """
    where, _, name = job.rpartition("/")
    if not name or "/" in where:
        raise UsageError(f"{job!r} names no job", "write NAMESPACE/JOB, such as team-a/train")
    return where, name


def job_of(read: Reader, namespace: str, name: str) -> Document:
    """Return the view of a job, by its name or by that of its workload or of one of its pods."""
    path = f"/v1/status/jobs/{quote(namespace, safe='')}/"
    try:
        return dict(read.get(path + quote(name, safe="")))
    except MissingError as error:
        parts = name.split("-")
        for length in range(len(parts), 0, -1):
            prefix = "-".join(parts[:length])
            rows = read.get("/v1/status/jobs", {"namespace": namespace, "q": prefix})["view"][
                "rows"
            ]
            for row in rows[:_CANDIDATES]:
                found = dict(read.get(path + quote(row["name"], safe="")))
                pods = {pod["pod"] for pod in found["view"]["pods"]}
                if name == found["view"]["workload"]["name"] or name in pods:
                    return found
            if rows:
                break
        elsewhere = _elsewhere(read, name)
        raise TandemError(
            f"there is no job {namespace}/{name} that asks for GPUs of Tandem",
            f"in another namespace: tandem why {elsewhere}"
            if elsewhere
            else "`tandem jobs` lists them; another namespace: -n NAMESPACE. A job that is "
            "suspended, by Kueue for instance, is known once it has pods",
        ) from error


def _elsewhere(read: Reader, name: str) -> str:
    """Return NAMESPACE/NAME of a job of that name in any namespace; '' where none is shown."""
    try:
        rows = read.get("/v1/status/jobs", {"q": name})["view"]["rows"]
    except RefusedError:
        return ""  # who sees one namespace has been shown it
    for row in rows:
        if name in (row["name"], row["name"].partition("-")[2]):
            return f"{row['namespace']}/{row['name']}"
    return ""


def answers(job: Document, now: str) -> list[str]:
    """Return lines that answer what is asked about a job, the most urgent first."""
    lines = [_heading(job, now)]
    waits = job["phase"] in ("Queued", "Suspended")
    if waits or job["why"]:
        label = "why it waits" if waits else "why"
        lines += _listed(label, job["why"] or [job.get("words") or "its pods are new"])
        if job.get("foundAt"):
            ago = span(job["foundAt"], now)
            lines.append(_line("found out", f"{ago} ago, at {clock(job['foundAt'])}"))
    if waits:
        expected = starts_in(job.get("expectedStart"), now)
        lines.append(
            _line("will start", "not forecast yet" if expected == "-" else f"in {expected}")
        )
    if job.get("hold"):
        lines.append(_line("held", "an administrator holds it; tandem resume lets it go on"))
    if job["places"]:
        places = [place_name(place) for place in job["places"]]
        more = job["placesInAll"] - len(places)
        lines.append(
            _line("runs on", ", ".join(places) + (f" and {more} more" if more > 0 else ""))
        )
    if job.get("roles"):
        asked = (
            f"{role['name']}: {counted(role['pods'], 'pod')} with"
            f" {counted(role['demand']['gpusPerPod'], 'GPU')} each"
            for role in job["roles"]
        )
        lines.append(_line("roles", "; ".join(asked)))
    lines += _slowdown(job)
    lines += _stopped(job)
    lines += _load(job)
    lines += [
        _line(f"{each['at'][:19]}Z", f"{each['what']}: {each['why']}")
        for each in job.get("decisions") or ()
    ]
    return lines


def _heading(job: Document, now: str) -> str:
    said = (
        f"{job['namespace']}/{job['name']} ({job['workload']['kind']} {job['workload']['name']}): "
    )
    said += str(job["phase"])
    if job["phase"] in ("Queued", "Suspended"):
        if job["position"] is not None:
            said += f", number {job['position'] + 1} of the queue"
        since = job["waitingSince"] or job["queuedAt"]
        if since:
            said += f", waits for {span(since, now)}"
    elif job["startedAt"]:
        ended = job.get("finishedAt")
        said += f", {'ran' if ended else 'runs'} for {span(job['startedAt'], ended or now)}"
    return said


def _slowdown(job: Document) -> list[str]:
    neighbours = [f"{each['namespace']}/{each['name']}" for each in job["neighbours"]]
    lines = []
    measured = ((job.get("observed") or {}).get("slowdown")) or {}
    if measured:
        how = f"by {measured['means']}, against {measured['reference']}"
        estimate = ", an estimate" if measured.get("estimated") else ""
        lines.append(_line("slowed down", f"{measured['value']:.0%} ({how}{estimate})"))
    elif job.get("predictedSlowdown") is not None:
        lines.append(
            _line("slowed down", f"{job['predictedSlowdown']:.0%} predicted, none measured")
        )
    if neighbours:
        lines.append(_line("shares with", ", ".join(neighbours)))
    elif job["places"]:
        lines.append(_line("shares with", "no other job that you see"))
    return lines


def _stopped(job: Document) -> list[str]:
    preemption = job.get("preemption")
    lines = []
    if preemption:
        how = {"suspend": "suspended", "evict": "evicted"}.get(preemption["method"], "stopped")
        lines.append(_line("stopped", f"{how} at {preemption['requestedAt']}: {preemption['by']}"))
    elif job["phase"] == "Suspended":
        lines.append(_line("stopped", "it gave up its GPUs; it goes on when it is its turn again"))
    if job["phase"] == "Failed":
        lines.append(_line("failed", job["message"] or "its pods failed: kubectl describe it"))
    return lines


def _load(job: Document) -> list[str]:
    load, demand = job.get("load"), job["demand"]
    lines = []
    model = demand.get("model")
    if load:
        lines.append(
            _line(
                "predicted",
                predicted_in_words(
                    load["memoryP95Bytes"] / _GIB,
                    load["memorySource"],
                    load["utilisationPercent"],
                    load["utilisationSource"],
                ),
            )
        )
    limits = [gib for each in job.get("pods") or () if (gib := each.get("memoryLimitGib"))]
    if limits:
        least, most = f"{min(limits):.1f}", f"{max(limits):.1f}"
        between = most if least == most else f"{least} to {most}"
        lines.append(
            _line("limit", f"{between} GiB of each GPU, unless it sets its own (docs/limits.md)")
        )
    seen = job.get("observed") or {}
    figures = []
    if seen.get("memoryPeakBytes") is not None:
        figures.append(f"{seen['memoryPeakBytes'] / _GIB:.1f} GiB at most")
    if seen.get("utilisationPercent") is not None:
        figures.append(f"{seen['utilisationPercent']:.0f} % utilisation")
    if figures:
        # Of a first reading there is a peak, and no time yet.
        within = f", in {in_words(seen['seconds'])}" if seen["seconds"] >= 1 else ""
        lines.append(_line("measured", f"{', '.join(figures)}{within}"))
    if not model:
        lines.append(_line("model", "none is named; tandem.gpu/model gives a better prediction"))
    elif load and {load["memorySource"], load["utilisationSource"]} & {
        "model",
        "formula",
        "observed",
    }:
        far = ", but unlike those that were learned from" if load.get("outOfDistribution") else ""
        lines.append(_line("model", f"{model} is known{far}"))
    elif any(each["reason"] == PREDICTOR_AWAY for each in job.get("conditions") or ()):
        lines.append(
            _line("model", "the predictor did not answer when the job came, so that it is"
                           f" unclear whether {model} is known. It is asked again")
        )  # fmt: skip
    else:
        lines.append(
            _line("model", f"{model} was not known when the job came: tandem model push FILE"
                           f" --name {model} -n {job['namespace']}")
        )  # fmt: skip
    return lines


def _listed(label: str, parts: list[str]) -> list[str]:
    return [_line(label if index == 0 else "", part) for index, part in enumerate(parts)]


def _line(label: str, words: str) -> str:
    return f"  {label:<20} {words}"


@reads
@reports
def sharing(read: Reader, namespace: NamespaceOption = None, form: Form = Form.TABLE) -> None:
    """Say whether sharing pays, and whom it slows down most."""
    found = read.of_namespace("/v1/status/overview", namespace)["view"]["sharing"]
    if not found["gpus"]:
        read.check_namespace(namespace)
    if form is Form.JSON:
        print_json(found)
        return
    if not found["gpus"]:
        out.print("No GPU is shared now.", highlight=False)
        return
    out.print(f"Sharing: {sharing_in_words(found)}.", highlight=False)
    gain = found["gainGpus"]
    if gain is not None:
        verdict = "pays" if gain > 0 else "does not pay"
        if found.get("gainMeasuredGpus") is None:
            verdict = f"is expected {'to pay' if gain > 0 else 'not to pay'}"
        out.print(
            f"It {verdict} ({gain_in_words(found)}): without it the same work needs"
            f" {abs(gain):.1f} GPUs {'more' if gain > 0 else 'less'}.",
            highlight=False,
        )
    if found["slowest"]:
        print_table(
            "Slowed down most",
            ("namespace", "job", "slower by (measured)", "GPUs"),
            [
                (
                    row["namespace"],
                    row["name"],
                    f"{row['slowdown']:.0%}",
                    ", ".join(map(place_name, row["places"])),
                )
                for row in found["slowest"]
            ],
        )


@reads
@lists
def quotas(read: Reader, namespace: NamespaceOption = None, form: Form = Form.TABLE) -> None:
    """List namespaces with what they hold of their quota.

    Those over it come first.
    """
    found = read.of_namespace("/v1/status/overview", namespace)["view"]["namespaces"]
    if not found["rows"]:
        read.check_namespace(namespace)
    if form is Form.JSON:
        print_json(found)
        return
    empty = "No namespace has a quota, or jobs that ask for GPUs of Tandem."
    print_list(form, "Namespaces", _QUOTAS, found["rows"], lambda row: str(row["namespace"]), empty)
    counts_more = any(row["gpus"] != row["gpusHeld"] for row in found["rows"])
    if counts_more and form is not Form.NAME:
        out.print("counted: for its quota, a shared GPU counts once for each job.", highlight=False)
    if found["total"] > len(found["rows"]) and form is not Form.NAME:
        more = found["total"] - len(found["rows"])
        out.print(f"{more:,} more namespaces, all within their quota or without", highlight=False)


def _hours(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / 3600:,.1f}"


_QUOTAS = (
    Column("namespace", lambda row: row["namespace"]),
    Column("GPUs", lambda row: row["gpus"]),
    Column("counted", lambda row: row["gpusHeld"]),
    Column("quota", lambda row: row["quotaGpus"]),
    Column("at most", lambda row: row["maxGpus"]),
    Column("GPU hours", lambda row: _hours(row["gpuSecondsUsed"])),
    Column("hours quota", lambda row: _hours(row["quotaGpuSeconds"])),
    Column("waiting", lambda row: row["waiting"]),
    Column("over", lambda row: "over quota" if row["overQuota"] else "-"),
)
