"""The words for each reason: the one place that makes sentences of causes.

A sentence says what is missing, by how much, and what would change it. Figures stand apart: the
same reason without them is the same event, whose count the API server raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tandem.reasons.causes import Cause, Reason, first_of
from tandem.reasons.counting import counted


@dataclass(frozen=True, slots=True)
class Words:
    """The words for a reason.

    `kind` is its group on the status page. `topic` is what it is about, in a table. `says` is a
    clause without figures, `figures` the figures alone, whether the cause keeps a job off or not,
    and `lacks` by how much they are beyond the bound. `remedy` is what would change it. Templates
    name the fields of a cause; `gap` is the difference of `value` and `bound`.
    """

    kind: str
    topic: str
    says: str
    figures: str | tuple[str, ...] = ""  # of several, the first whose fields are all there
    remedy: str = ""
    lacks: str = ""
    of: str = ""  # "GPU" or "node", where it is about some of them


#: The groups of the status page, in the words of its lists.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "held": "An administrator holds it",
        "blocked": "Its pods cannot be planned yet",
        "quota": "Quota of its namespace",
        "making_room": "Other jobs are giving up GPUs for it",
        "behind": "Behind other jobs in the queue",
        "not_worth": "Sharing now would cost more than waiting",
        "memory": "Not enough GPU memory",
        "memory_collision": "Memory peaks would collide",
        "utilisation": "GPUs would be overloaded",
        "interference": "A job would be slowed down too much",
        "occupied": "All suitable GPUs are taken",
        "too_large": "It asks for more GPUs than there are",
        "not_offered": "GPUs are not offered",
        "unhealthy": "GPUs are quarantined",
        "stale": "Agents do not report",
        "nodes": "No node can run its pods",
        "missing": "Some of its pods do not exist",
        "never_started": "Its containers did not start",
        "starting": "Its pods are about to start",
        "preempted": "It gave up its GPUs for another job",
        "other": "Another reason",
    }
)

_GIB = "{value:.1f} GiB needed, {bound:.1f} GiB there"
_COUNT = "{value:.0f} of {bound:.0f}"
_END = "One comes free when a job there ends."
_NAMES = tuple(name for name in Cause.__slots__ if name != "reason")
#: Reasons that were sentences in earlier versions.
_WHOLE = frozenset(
    {
        Reason.BLOCKED, Reason.PODS_MISSING, Reason.PODS_ENDED, Reason.STARTING,
        Reason.NEVER_STARTED, Reason.PLAN_EXPIRED, Reason.PODS_GONE, Reason.WAITING,
        Reason.NEW_PODS, Reason.PLANNED, Reason.RUNNING, Reason.PREEMPTING,
        Reason.PREEMPTION_OVERDUE, Reason.PREEMPTED, Reason.COMPLETED, Reason.FAILED,
    }
)  # fmt: skip

WORDS: Mapping[Reason, Words] = MappingProxyType(
    {
        Reason.NOT_OFFERED: Words(
            "not_offered", "Offer", "no place is offered to jobs", of="GPU",
            remedy="An administrator can see why: tandem doctor.",
        ),
        Reason.CLOSED: Words(
            "occupied", "Places", "more jobs run than the GPU has places for",
            figures="{value:.0f} jobs, places for {bound:.0f}", of="GPU",
            remedy="It takes jobs again when some of them have ended.",
        ),
        Reason.PLACES_TAKEN: Words(
            "occupied", "Places", "all places for jobs are taken", figures=_COUNT, of="GPU",
            remedy=_END,
        ),
        Reason.NOT_SHARED: Words(
            "occupied", "Sharing", "a job runs that does not share its GPU", of="GPU",
            remedy="The GPU comes free when that job ends.",
        ),
        Reason.NEEDS_WHOLE_GPU: Words(
            "occupied", "Sharing", "other jobs run, and this job does not share a GPU",
            figures="{value:.0f} running", of="GPU",
            remedy="It starts when a GPU is empty.",
        ),
        Reason.SLICE: Words(
            "occupied", "Slices",
            "only a job of one GPU can run, because a slice of a GPU (MIG) cannot work with others",
            of="GPU",
            remedy="It starts when enough whole GPUs are free. With one GPU it could use a slice.",
        ),
        Reason.QUARANTINED: Words(
            "unhealthy", "Health", "nothing new starts because of a fault", of="GPU",
            remedy="An administrator has to look at it: tandem gpus has the fault.",
        ),
        Reason.NOT_MEASURED: Words(
            "stale", "Measurements",
            "nothing has been measured lately, so that no job may join another", of="GPU",
            remedy="Jobs may share it again when its node reports.",
        ),
        Reason.MEMORY: Words(
            "memory", "Memory", "the memory is too small", figures=_GIB, of="GPU",
            lacks="{gap:.1f} GiB too little",
            remedy="A smaller batch, a larger GPU or the end of a job there makes room.",
        ),
        Reason.MEMORY_ALONE: Words(
            "memory", "Memory", "the memory is too small for this job even if no other job ran",
            figures=_GIB, lacks="{gap:.1f} GiB too little", of="GPU",
            remedy="It fits with a smaller batch, or on a GPU with more memory.",
        ),
        Reason.MEMORY_UNKNOWN: Words(
            "memory", "Memory",
            "the size of the memory is unknown, so that only a job that asks for a whole GPU fits",
            of="GPU", remedy="An administrator can see why: tandem doctor.",
        ),
        Reason.MEMORY_PEAKS: Words(
            "memory", "Memory peaks", "the memory is too small for the peaks of all jobs together",
            figures=_GIB, lacks="{gap:.1f} GiB too little", of="GPU",
            remedy="A smaller batch, a larger GPU or the end of a job there makes room.",
        ),
        Reason.MEMORY_COLLISION: Words(
            "memory_collision", "Two peaks at once", "memory peaks of two jobs would fall together",
            figures="with a chance of {value:.0%}, {bound:.0%} allowed", of="GPU",
            remedy="It starts when a job there ends, or on a GPU with more memory.",
        ),
        Reason.UTILISATION: Words(
            "utilisation", "Utilisation", "the jobs together would overload the GPU",
            figures="{value:.0f} % of its time asked for, {bound:.0f} % allowed", of="GPU",
            remedy="It starts when a job there ends.",
        ),
        Reason.SLOWDOWN: Words(
            "interference", "Slowdown", "one of the jobs would run too slowly next to the other",
            figures="{value:.0%} slower, {bound:.0%} allowed", of="GPU",
            remedy="It starts when a job there ends, or next to another job.",
        ),
        Reason.BAD_NEIGHBOURS: Words(
            "interference", "Slowdown",
            "a job runs next to which one of the two was too slow before", of="GPU",
            remedy="It starts when that job ends, or next to another job.",
        ),
        Reason.OWN_PODS: Words(
            "occupied", "Sharing", "another pod of the same job runs, and the two work together",
            of="GPU", remedy="It starts when a GPU comes free that no other pod of its job has.",
        ),
        Reason.UNEQUAL_WORKERS: Words(
            "interference", "Slowdown", "the workers of one job would differ too much in speed",
            figures="by {value:.0%}, {bound:.0%} allowed", of="GPU",
            remedy="It starts when a job there ends.",
        ),
        Reason.NODE_SHORT: Words(
            "nodes", "Nodes", "too little {resource} is free for its pods",
            figures="less than {amount}", of="node",
            remedy="It starts when other pods there end, or asks for less.",
        ),
        Reason.NODE_TOO_SMALL: Words(
            "nodes", "Nodes",
            "there is too little {resource} for its pods even if nothing else ran",
            figures="less than {amount} in all", of="node",
            remedy="A pod that asks for less of it would fit.",
        ),
        Reason.NODE_HAS_FEWER: Words(
            "nodes", "Nodes", "there is too little {resource} for a pod on each free GPU",
            of="node",
            remedy="Pods that ask for less of it would fit.",
        ),
        Reason.NODE_UNSUITABLE: Words(
            "nodes", "Nodes", "its pods cannot run because of labels, taints or a cordon",
            figures="{detail}", of="node",
            remedy="Node selector, affinity or tolerations of the pods would have to change.",
        ),
        Reason.CLAIM_MISSING: Words(
            "nodes", "Nodes", "pods get GPUs by ResourceClaims, and its pods have none", of="node",
            remedy="Create it again. If that does not help, an administrator can see why: tandem"
            " doctor.",
        ),
        Reason.NEEDS_GPUS: Words(
            "occupied", "GPUs", "{who} {amount}",
            figures="{value:.0f} of {of_gpus} can take it now",
        ),
        Reason.NODES_TOO_SMALL: Words(
            "too_large", "GPUs",
            "no node has enough suitable GPUs for it, even if no other job ran",
            figures="{value:.0f} needed on one node, at most {bound:.0f} there",
            remedy="It starts if each of its pods asks for fewer GPUs, or if a larger node joins.",
        ),
        Reason.CLUSTER_TOO_SMALL: Words(
            "too_large", "GPUs",
            "the cluster has too few suitable GPUs for it, even if no other job ran",
            figures=("{value:.0f} needed, {bound:.0f} there", "{value:.0f} needed"),
            remedy="It starts if it asks for fewer GPUs, or if nodes join.",
        ),
        Reason.DOMAINS_FULL: Words(
            "occupied", "Topology", "no single {resource} has enough free GPUs for all of its pods",
            figures="{value:.0f} needed, at most {bound:.0f} in one",
            remedy="It starts when enough jobs there end.",
        ),
        Reason.DOMAINS_TOO_SMALL: Words(
            "too_large", "Topology",
            "no single {resource} has enough suitable GPUs for all of its pods, even if no other"
            " job ran",
            figures="{value:.0f} needed, at most {bound:.0f} in one",
            remedy="It starts if it asks for fewer GPUs, or requires a wider level of topology.",
        ),
        Reason.PLACE_FREE: Words(
            "starting", "Queue", "a place has come free since it was tried last",
            remedy="It is tried again at once.",
        ),
        Reason.WAITING_IS_BETTER: Words(
            "not_worth", "Queue",
            "it fits next to other jobs, but waiting for a better place finishes more work",
            remedy="It starts when a better place comes free.",
        ),
        Reason.ROLES: Words(
            "occupied", "GPUs", "each of its roles would find GPUs, but not all at the same time",
            figures=("{asks} in all", "{detail}"),
            remedy="It starts when there are GPUs for all of them.",
        ),
        Reason.BEHIND: Words(
            "behind", "Queue", "it waits behind other jobs, and no job overtakes another here",
            figures="the first is {job}", remedy="It starts when those before it have started.",
        ),
        Reason.NOT_LOOKED_AT: Words(
            "behind", "Queue", "it waits for its turn to be looked at",
            remedy="Jobs before it are looked at first.",
        ),
        Reason.MAKING_ROOM: Words(
            "making_room", "Queue", "other jobs give up GPUs for it", figures="{job}",
            remedy="It starts when they have stopped.",
        ),
        Reason.OVERTAKEN: Words(
            "nodes", "Queue", "jobs before it take the {resource} that is free",
            remedy="It is tried again at once.",
        ),
        Reason.NOT_PREEMPTED: Words(
            "occupied", "Queue", "jobs that could make room are protected by disruption budgets",
            figures=(
                "disruption budget {resource} allows {disruptions}, {pods_of} of {job} would"
                " have to go",
                "{detail}",
            ),
            remedy="They are asked again in a minute.",
        ),
        Reason.QUOTA: Words(
            "quota", "Quota", "namespace {namespace} would hold more GPUs than it may",
            figures="{value:.0f} held, {asked}{bound:.0f} allowed",
            remedy="It starts when another job of the namespace ends.",
        ),
        Reason.QUOTA_ENDLESS: Words(
            "quota", "Quota",
            "services and notebooks of namespace {namespace} would hold more GPUs than they may",
            figures="{value:.0f} held, {asked}{bound:.0f} allowed",
            remedy="It starts when one of them ends.",
        ),
        Reason.QUOTA_TIME: Words(
            "quota", "Quota",
            "namespace {namespace} has used up its GPU time, and may not borrow",
            figures="{value:.0f} of {bound:.0f} GPU-seconds",
            remedy="It starts when earlier use no longer counts.",
        ),
        Reason.QUOTA_SHARE: Words(
            "quota", "Quota",
            "namespace {namespace} would hold more than its share of GPUs, and may not borrow",
            figures="{value:.0f} held, {asked}a share of {bound:.0f}",
            remedy="It starts when another job of the namespace ends.",
        ),
        Reason.QUOTA_TOO_SMALL: Words(
            "quota", "Quota",
            "it asks for more GPUs than the quota of namespace {namespace} ever allows",
            figures="{gpus} asked for, {bound:.0f} allowed",
            remedy="It starts if it asks for fewer GPUs, or if the quota is raised.",
        ),
        Reason.HELD: Words(
            "held", "Hold", "an administrator holds it",
            remedy="It goes on when they let it: tandem resume.",
        ),
        Reason.BLOCKED: Words("blocked", "Pods", "its pods cannot be placed yet"),
        Reason.OTHER_GATES: Words(
            "blocked", "Pods", "pods of it have scheduling gates besides Tandem's",
            figures="{pod}: {detail}",
            remedy="It gets GPUs once those who set them have removed them.",
        ),
        Reason.ANNOTATIONS_TOO_LARGE: Words(
            "blocked", "Pods", "the annotations of a pod leave no room for Tandem's",
            figures="{pod}: {value:,.0f} bytes, {bound:,.0f} allowed",
            remedy="Shorten them, or keep the data in a ConfigMap.",
        ),
        Reason.TOO_MANY_ROLES: Words(
            "blocked", "Pods", "its pods ask for GPUs in too many different ways",
            figures="in {value:.0f} different ways, {bound:.0f} allowed",
            remedy="Give more of them the same number of GPUs and the same annotations, or start"
            " them as several jobs.",
        ),
        Reason.GROUP_MISSING: Words(
            "blocked", "Pods", "the group that its pods name does not exist",
            figures="{workload}",
            remedy="It starts when that is created and has as many pods as it says.",
        ),
        Reason.PODS_MISSING: Words(
            "missing", "Pods", "not all of its pods exist",
            figures="{value:.0f} of {bound:.0f} do{others}",
            remedy="It starts when all of them exist.",
        ),
        Reason.NOT_MADE: Words(
            "missing", "Pods", "its workload has not made the others", figures="{workload}",
            remedy="Its events say more: kubectl describe.",
        ),
        Reason.CANNOT_MAKE: Words(
            "missing", "Pods", "its workload could not make the others",
            figures="{workload}: {detail}",
            remedy="It tries again by itself once that has changed.",
        ),
        Reason.ONE_BY_ONE: Words(
            "missing", "Pods", "its workload makes the next pod only when the one before is ready",
            figures="{workload}",
            remedy="With podManagementPolicy: Parallel it makes all of them at once.",
        ),
        Reason.WORKLOAD_SUSPENDED: Words(
            "missing", "Pods", "its workload is suspended", figures="{workload}",
            remedy="It makes the pods when it is resumed.",
        ),
        Reason.GANG_INCOMPLETE: Words(
            "missing", "Pods", "the other pods of its gang are not created yet",
            figures="gang {job}",
            remedy="Create them, or lower the number of pods in tandem.gpu/gang-size.",
        ),
        Reason.NO_CONTROLLER: Words(
            "missing", "Pods", "no controller makes the others", figures="pod {pod} stands alone",
            remedy="Create them, or a Job instead.",
        ),
        Reason.PODS_ENDED: Words(
            "missing", "Pods",
            "all its pods have ended, and its workload has neither ended nor made others",
            figures="{workload}: {of_pods}, {failed} failed",
            remedy="It goes on when there are new ones; kubectl describe says what the workload"
            " waits for.",
        ),
        Reason.STARTING: Words(
            "starting", "Pods", "its pods have GPUs, and not all of their containers run yet",
            figures="{value:.0f} of {bound:.0f} run, {pods} on a node{first}",
            remedy="kubectl describe pod says what one waits for.",
        ),
        Reason.NEVER_STARTED: Words(
            "never_started", "Pods", "its containers did not start in time",
            figures="{pod} on {node} for {seconds:.0f} s: {detail}{more_pods}",
            remedy="Its GPUs go to others meanwhile; kubectl describe pod says what is wrong.",
        ),
        Reason.RESTS: Words(
            "never_started", "Queue", "it is placed again after a pause",
            figures=("in {seconds:.0f} s at the earliest, after {failed_starts}",
                     "in {seconds:.0f} s at the earliest"),
        ),
        Reason.PLAN_EXPIRED: Words(
            "starting", "Pods", "its pods were not put on their nodes in time",
            remedy="It is tried again.",
        ),
        Reason.PODS_GONE: Words(
            "starting", "Pods", "none of its pods is left",
            remedy="It goes on when there are new ones.",
        ),
        Reason.WAITING: Words("other", "Queue", "it waits"),
        Reason.QUEUED: Words(
            "other", "Queue", "it is in the queue", figures="{detail}",
            remedy="It is looked at in its turn.",
        ),
        Reason.NEW_PODS: Words(
            "starting", "Pods", "its workload has made pods again",
            remedy="It is at the end of the queue.",
        ),
        Reason.PLANNED: Words(
            "starting", "Pods", "its pods have GPUs, and are about to start",
            figures="{of_pods} on {gpu}",
        ),
        Reason.RUNNING: Words("other", "Pods", "it runs", figures="{of_pods}"),
        Reason.PREEMPTING: Words(
            "preempted", "Queue", "it gives up its GPUs",
            remedy="It starts again when it is its turn.",
        ),
        Reason.PREEMPTION_OVERDUE: Words(
            "preempted", "Queue", "its pods still hold GPUs that it is to give up",
            figures="{of_pods} after {seconds:.0f} s, {leaving} being deleted",
            remedy="The kubelet there has to end them: kubectl describe pod.",
        ),
        Reason.PREEMPTED: Words(
            "preempted", "Queue", "it gave up its GPUs and waits for others",
            remedy="The GPU time that it has had still counts for its place in the queue.",
        ),
        Reason.NEEDED: Words(
            "preempted", "Queue", "another job goes before it", figures="{job}"
        ),
        Reason.SLOWED_DOWN: Words(
            "preempted", "Slowdown", "it was too slow next to other jobs",
            figures=("{value:.0%} slower on {gpu} next to {job}, {detail}",
                     "{value:.0%} slower than alone"),
            remedy="It starts again on other GPUs.",
        ),
        Reason.SLOWS_DOWN: Words(
            "preempted", "Slowdown", "other jobs were too slow next to it",
            figures=("{job} on {gpu} by {value:.0%}, {detail}",
                     "to move it takes {seconds:.0f} s"),
            remedy="It starts again on other GPUs.",
        ),
        Reason.FASTER_ELSEWHERE: Words(
            "preempted", "Slowdown", "it runs faster on other GPUs", remedy="It starts there.",
        ),
        Reason.PART_WITHOUT_PLACE: Words(
            "preempted", "Pods", "part of its pods found no GPUs, so that the others did nothing",
            figures="for {seconds:.0f} s",
        ),
        Reason.NOT_SUSPENDED: Words(
            "preempted", "Pods", "its pods are evicted, because its workload cannot be suspended",
            figures="{workload}: {detail}",
        ),
        Reason.NOT_RESUMED: Words(
            "preempted", "Pods", "it gave up its GPUs, and its workload could not be resumed",
            figures="{workload}", remedy="It is tried again; you may set suspend to false.",
        ),
        Reason.COMPLETED: Words(
            "other", "Workload", "the workload completed", figures="{workload}"
        ),
        Reason.FAILED: Words(
            "other", "Workload", "the workload failed", figures="{workload}",
            remedy="kubectl describe and the logs of its pods say why.",
        ),
    }
)  # fmt: skip


def kind_of(causes: Sequence[Cause], reason: str = "") -> str:
    """Return the group of what counts; of an object without causes, that of its `reason`."""
    cause = first_of(causes)
    if cause is not None:
        return WORDS[cause.reason].kind
    try:
        return WORDS[Reason(reason)].kind
    except ValueError:
        return "other"


def topic_of(cause: Cause) -> str:
    """Return what a cause is about, in a word or two."""
    return WORDS[cause.reason].topic


def in_full(causes: Iterable[Cause]) -> str:
    """Return all sentences."""
    return " ".join(map(sentence, causes))


def sentence(cause: Cause) -> str:
    """Return one or two sentences: what is missing, by how much, what would change it."""
    words = WORDS[cause.reason]
    if whole := _whole(cause):
        return whole
    remedy = f" {words.remedy}" if words.remedy else ""
    return f"{_capital(_where(cause) + clause(cause, one_of_them=True))}.{remedy}"


def briefly(causes: Sequence[Cause]) -> str:
    """Return what counts in a few words with figures, for a row of a list."""
    cause = first_of(causes)
    if cause is None:
        return ""
    if whole := _whole(cause):
        return _capital(whole)
    said = figures(cause, lacking=True)
    words = _filled(WORDS[cause.reason].says, cause)
    return _capital(f"{words}: {said}" if said else words)


def in_general(causes: Iterable[Cause]) -> str:
    """Return all reasons without figures and without the names of other jobs; '' where unknown."""
    parts = []
    for cause in causes:
        if cause.reason is Reason.NOT_LOOKED_AT:
            return ""
        words = WORDS[cause.reason]
        place = f"on some {words.of}s, " if words.of else ""
        if said := _filled(words.says, cause):
            parts.append(_capital(place + said) + ".")
    return " ".join(dict.fromkeys(parts))


def in_common(cause: Cause) -> str:
    """Return what is missing on many, without figures."""
    return _filled(WORDS[cause.reason].says, cause)


def clause(cause: Cause, *, one_of_them: bool = False) -> str:
    """Return what is missing and by how much, without where and without a full stop."""
    words = _filled(WORDS[cause.reason].says, cause)
    said = figures(cause, lacking=True)
    if not said:
        return words
    several = one_of_them and WORDS[cause.reason].of and max(cause.gpus or 0, cause.nodes or 0) > 1
    only_one = several and cause.amount is None and cause.detail is None
    return f"{words} ({'on one of them ' if only_one else ''}{said})"


def figures(cause: Cause, *, lacking: bool = False) -> str:
    """Return value and bound of a cause, true whether it keeps a job off or not; '' without any."""
    words = WORDS[cause.reason]
    templates = words.figures if isinstance(words.figures, tuple) else (words.figures,)
    said = next(filter(None, (_filled(each, cause) for each in templates)), "")
    more = _filled(words.lacks, cause) if lacking and said else ""
    return ", ".join(filter(None, (said, more)))


def _whole(cause: Cause) -> str:
    """Return the sentence of an object of an earlier version, whose `detail` is all that it has."""
    if cause.reason not in _WHOLE or cause.detail is None:
        return ""
    return cause.detail if cause == Cause(cause.reason, detail=cause.detail) else ""


def _where(cause: Cause) -> str:
    if cause.gpu is not None and WORDS[cause.reason].of:
        return f"on {cause.gpu}, "
    if cause.gpus is not None and WORDS[cause.reason].of == "GPU":
        return f"on {counted(cause.gpus, 'GPU')}, "
    if cause.nodes is not None:
        return f"on {counted(cause.nodes, 'node')}, "
    return ""


def _filled(template: str, cause: Cause) -> str:
    """Return a template with the fields of a cause; '' where one that it names is absent."""
    if not template:
        return ""
    given = {name: value for name in _NAMES if (value := getattr(cause, name)) not in (None, "")}
    given |= _in_words(cause)
    try:
        return template.format_map(given)
    except KeyError:
        return ""


def _in_words(cause: Cause) -> dict[str, object]:
    """Return what templates name besides the fields: counts with their nouns, differences."""
    found: dict[str, object] = {
        "asked": f"{cause.gpus:,} more asked for, " if cause.gpus else "",
        "who": f"its role {cause.role} needs" if cause.role else "it needs",
        "others": _others(cause),
        "first": f"; {cause.pod}: {cause.detail}" if cause.pod and cause.detail else "",
        "more_pods": f"; {counted(cause.pods, 'other pod')} as well" if cause.pods else "",
    }
    if cause.gpus:
        found["asks"] = counted(cause.gpus, "GPU")
    if cause.pods is not None:
        found["of_pods"] = found["pods_of"] = counted(cause.pods, "pod")
    if cause.failed:
        found["failed_starts"] = counted(cause.failed, "failed start")
    if cause.bound is not None:
        found["of_gpus"] = counted(int(cause.bound), "GPU")
        found["disruptions"] = counted(int(cause.bound), "disruption")
    if cause.value is not None and cause.bound is not None:
        found["gap"] = max(0.0, cause.value - cause.bound)
    return found


def _others(cause: Cause) -> str:
    """Return how many pods besides those that exist are leaving or have failed."""
    leaving = f"{cause.leaving} more being deleted" if cause.leaving else ""
    failed = f"{cause.failed} failed" if cause.failed else ""
    return "".join(f", {each}" for each in (leaving, failed) if each)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
