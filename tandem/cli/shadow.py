"""`tandem report --shadow` and `tandem why --shadow`: what Tandem would have done, and would do.

Both read the record of shadow mode with the caller's own rights, and replay it on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tandem.cli.forms import Form, printed
from tandem.cli.output import err, print_json, print_table
from tandem.cli.reach import Reader
from tandem.cli.screen import in_words
from tandem.cli.views import say
from tandem.errors import TandemError
from tandem.reasons.counting import counted

if TYPE_CHECKING:
    from tandem.contracts.shadow import ShadowDay, ShadowJob
    from tandem.simulator.shadow import Record

Document = dict[str, Any]

#: Jobs from which on a mean says something.
_ENOUGH = 30
_AGE_S = 900.0


def print_shadow_report(read: Reader, days: int, form: Form) -> None:
    """Print what happened in the last days next to what Tandem would have done.

    Raises:
        TandemError: there is no record, or it may not be read.
    """
    record = _record(read, days)
    from tandem.simulator.shadow import compare

    found = compare(record, progress=lambda what: err.print(f"replays {what}", highlight=False))
    found |= {name: _time(found[name]) for name in ("from", "to")}
    if form is Form.JSON:
        print_json(found)
        return
    for line in in_sentences(found):
        say(line)
    if found["namespaces"]:
        cells = [
            (
                row["namespace"],
                row["jobs"],
                in_words(row["completionSeconds"]),
                in_words(row["aloneCompletionSeconds"]),
                _times(row["sharingCompletionSeconds"]),
            )
            for row in found["namespaces"]
        ]
        heads = ("namespace", "jobs", "took", "Tandem, no sharing", "Tandem, sharing")
        print_table("From arrival to end, on average", heads, cells)


def in_sentences(found: Document) -> list[str]:
    """Return the answer of `compare` in sentences, with what it does not know."""
    lines = [
        f"From {found['from'][:16]} to {found['to'][:16]} (UTC),"
        f" {counted(found['jobs'], 'job')} wanted GPUs; the cluster has"
        f" {found['gpus']} ({', '.join(found['types'])}). {found['compared']} came and ended in"
        " this time, and are compared;"
        f" {found['running']} run still, {found['waiting']} wait still."
    ]
    lines += _gaps(found)
    if not found["compared"]:
        return [*lines, "Nothing can be compared yet: wait until jobs have come and ended."]
    if found["compared"] < _ENOUGH:
        lines.append(f"These are few jobs: below {_ENOUGH}, the figures are examples.")
    cases = found["cases"]
    happened, simulated = cases["happened"], cases["simulated"]
    alone, sharing = cases["alone"], cases["sharing"]
    lines += [
        "",
        f"What happened: a job waited {_times(happened['waitSeconds'])} on average (half of them"
        f" less than {_times(happened['medianWaitSeconds'])}), and took"
        f" {_times(happened['completionSeconds'])} from its arrival to its end."
        f" {found['gpusBusy']:.1f} GPUs were in use.",
        f"The simulator, as a scheduler that gives whole GPUs in the order of arrival: a job waited"
        f" {_times(simulated['waitSeconds'])} and took {_times(simulated['completionSeconds'])}."
        " The difference from what happened is the error of the simulator, and the next lines may"
        " have the same one.",
        "",
        f"Tandem, with no two jobs on a GPU: a job would have waited {_times(alone['waitSeconds'])}"
        f" and taken {_times(alone['completionSeconds'])}. {_effect(alone, found)}",
        f"Tandem, with sharing: it would have waited {_times(sharing['waitSeconds'])} and taken"
        f" {_times(sharing['completionSeconds'])}. {_effect(sharing, found)} The same work would"
        f" have taken {_percent(sharing['saved'])} fewer GPU-hours.",
        "The loads with which jobs share are draws of a default mix, and not yours, except the"
        f" memory that {counted(found['declared'], 'job')} declared: the figures lie between those"
        " of five draws. They show what sharing could bring; docs/shadow.md says how to know more.",
    ]
    return lines


def _gaps(found: Document) -> list[str]:
    lines = []
    if found["missedSeconds"]:
        lines.append(
            f"For {in_words(found['missedSeconds'])} nothing was recorded: jobs of this time are"
            " missing."
        )
    if found["tooLarge"]:
        lines.append(
            f"Left out, since the cluster has fewer GPUs: {counted(found['tooLarge'], 'job')}."
        )
    if found["leftOut"]:
        lines.append(
            f"Left out, since the latest are replayed: {counted(found['leftOut'], 'earlier job')}."
        )
    return lines


def _effect(case: Document, found: Document) -> str:
    """Say who gains and who loses; figures are over the draws."""
    sooner, later = (_numbers(case[name]) for name in ("sooner", "later"))
    said = f"Of the {found['compared']} jobs, {sooner} would have ended sooner, and {later} later."
    if case["preemptions"][1]:
        said += f" {_numbers(case['preemptions'])} preemptions."
    return said


def print_shadow_why(read: Reader, namespace: str, name: str, form: Form) -> None:
    """Say what Tandem would do now with a job that another scheduler has.

    Raises:
        TandemError: there is no record, or no such job in it.
    """
    record = _record(read, 30)
    job = job_named(record.jobs, namespace, name)
    from tandem.simulator.shadow import decide_now, free_gpus

    decided = decide_now(record).get(job.id, ("ended",))
    document = {
        "namespace": job.namespace,
        "name": job.name,
        "asOf": _time(record.now_s),
        "wouldDo": decided[0],
        "nodes": list(decided[1:]),
        "gpus": job.gpus,
        "freeGpus": free_gpus(record),
        "arrivedAt": _time(job.arrived_s),
        "startedAt": None if job.started_s is None else _time(job.started_s),
        "endedAt": None if job.ended_s is None else _time(job.ended_s),
    }
    if printed(form, f"{job.namespace}/{job.name}", document):
        return
    for line in _why(job, record, document):
        say(line)


def _why(job: ShadowJob, record: Record, document: Document) -> list[str]:
    now = record.now_s
    wanted = f"{job.namespace}/{job.name} ({job.kind}, {counted(job.gpus, 'GPU')})"
    if job.ended_s is not None and job.started_s is not None:
        waited, ran = in_words(job.started_s - job.arrived_s), in_words(job.ended_s - job.started_s)
        lines = [f"{wanted} has ended: it waited {waited} and ran {ran}."]
    elif job.started_s is None:
        lines = [f"{wanted} waits for {in_words(now - job.arrived_s)}."]
    else:
        nodes = sorted({run.node for run in job.runs.values() if run.ended_s is None})
        where = f" on {', '.join(nodes)}" if nodes else ""
        lines = [f"{wanted} runs for {in_words(now - job.started_s)}{where}."]
    free = counted(document["freeGpus"], "GPU")
    said = {
        "start": f"Tandem would start it now, on {', '.join(document['nodes'])}.",
        "wait": f"Tandem would let it wait as well: {free} of {sum(n.gpus for n in record.nodes)}"
        " without a job, and others come first or it needs more.",
        "stop": "Tandem would preempt it for a job that is worth more; it saves checkpoints.",
        "keep": "Tandem would let it run where it runs.",
    }
    if document["wouldDo"] not in said:
        return lines
    lines.append(said[document["wouldDo"]])
    if job.memory_bytes is None and not job.model:
        lines.append("Nothing is known of its load, so that Tandem would give it whole GPUs.")
    lines.append(f"As of {document['asOf'][:19]}Z, with the default profile; nothing is done.")
    return lines


def job_named(jobs: Sequence[ShadowJob], namespace: str, name: str) -> ShadowJob:
    """Return the newest job of a name: of its GPUJob, of its workload, or of one of its pods.

    Raises:
        TandemError: there is none.
    """
    found = [
        (len(workload), job.ended_s is None, job.arrived_s, index)
        for index, job in enumerate(jobs)
        if job.namespace == namespace
        for workload in [job.name.partition("-")[2]]
        if name in (job.name, workload) or name.startswith(f"{workload}-")
    ]
    if not found:
        raise TandemError(
            f"the record has no job {namespace}/{name} with GPUs",
            "a new one is recorded within a minute; another namespace: -n NAMESPACE",
        )
    return jobs[max(found)[-1]]


def _record(read: Reader, days: int) -> Record:
    try:
        from tandem.simulator.shadow import record_of
    except ModuleNotFoundError as error:
        raise TandemError(
            f"a replay needs {error.name}", "pip install 'tandem-gpu[simulator]'"
        ) from error
    now = datetime.now(UTC).timestamp()
    record = record_of(_days(read), days, now)
    if record is None:
        raise TandemError(
            f"there is no record of shadow mode in {read.system}",
            "install the chart with --set mode=shadow, or name its namespace: --tandem-namespace",
        )
    if now - record.now_s > _AGE_S:
        err.print(f"The record ends {in_words(now - record.now_s)} ago: is deployment"
                  " tandem-shadow running?", highlight=False)  # fmt: skip
    return record


def _days(read: Reader) -> list[ShadowDay]:
    from tandem.contracts.shadow import SLOTS, config_map_name, day_in
    from tandem.kube.errors import Forbidden, KubeError, NotFound
    from tandem.kube.resource import CONFIG_MAPS

    found = []
    for slot in range(SLOTS):
        try:
            found.append(day_in(read.client.get(CONFIG_MAPS, config_map_name(slot), read.system)))
        except NotFound:
            continue
        except ValueError as error:
            said = f"{config_map_name(slot)} is left out: {error}"
            err.print(said, highlight=False, markup=False)
        except Forbidden as error:
            raise TandemError(
                f"you may not read ConfigMaps in {read.system}", "ask an administrator"
            ) from error
        except KubeError as error:
            raise TandemError(f"no answer from the API server: {error.message}") from error
    return found


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _times(seconds: Sequence[float]) -> str:
    low, high = (in_words(value) for value in seconds)
    return low if low == high else f"{low} to {high}"


def _numbers(values: Sequence[float]) -> str:
    low, high = (f"{value:,.0f}" for value in values)
    return low if low == high else f"{low} to {high}"


def _percent(values: Sequence[float]) -> str:
    low, high = (f"{100 * max(0.0, value):.0f}" for value in values)
    return f"{low} %" if low == high else f"{low} to {high} %"
