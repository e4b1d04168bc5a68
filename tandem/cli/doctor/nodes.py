"""Checks of GPU nodes: labels, runtime, device plugins, agents and what they report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tandem.cli.doctor.claims import claims
from tandem.cli.doctor.cluster import DAEMON_SETS, Cluster, Report, seconds
from tandem.cli.doctor.findings import Verdict, failed, ok, plural, some, unknown, warning
from tandem.contracts import names
from tandem.contracts.inventory import how_to_agree
from tandem.kube.client import Object
from tandem.kube.errors import Forbidden
from tandem.kube.resource import NAMESPACES, PODS

STALE_S = 150.0
#: As long as the scheduler waits before it reports a deleted pod with GPUs.
LEAVES_WITHIN_S = 300.0
#: Conditions of a GPUNode by which an agent says what the container toolkit does wrong.
TOOLKIT = ("VariableHonoured", "AssignmentHonoured")
NVML = ("NvmlAvailable", "AllGpusReadable")
#: More lines would bury the other checks.
_SHOWN = 5


def present(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether there are nodes for the agents, and whether they are up."""
    found = cluster.gpu_nodes
    selector = cluster.agent_template.get("nodeSelector") or {}
    wanted = ",".join(f"{key}={value}" for key, value in selector.items())
    if not found:
        yield failed(
            f"no node has the label {wanted}" if wanted else "no node has reported GPUs",
            "label the GPU nodes: kubectl label node NODE "
            + (wanted or "nvidia.com/gpu.present=true"),
        )
        return
    down = [node.name for node in found if not node.ready]
    if down:
        yield failed(
            f"{len(down):,} of {plural(len(found), 'GPU node')} not ready: {some(down)}",
            f"kubectl describe node {min(down)}",
        )
    else:
        yield ok(f"{plural(len(found), 'GPU node')}, all ready")


def taints(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether pods of others are kept off the GPU nodes."""
    bare = [node.name for node in cluster.gpu_nodes if names.GPU_TAINT not in node.taints]
    if bare:
        yield warning(
            f"other pods may run on {plural(len(bare), 'GPU node')} and use any GPU: {some(bare)}",
            f"kubectl taint nodes {min(bare)} {names.GPU_TAINT}=:NoSchedule",
        )
    elif cluster.gpu_nodes:
        yield ok(f"{names.GPU_TAINT} keeps other pods off the GPU nodes")
    else:
        yield unknown("there are no GPU nodes")


def runtime_class(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether the runtime class exists that gives containers their GPUs."""
    wanted = cluster.agent_template.get("runtimeClassName")
    found = cluster.runtime_class
    if found is not None:
        yield ok(f"{found['metadata']['name']}, by the handler {found.get('handler')}")
    elif wanted or cluster.daemon_set is None:
        name = wanted or "nvidia"
        yield failed(
            f"there is no runtime class {name}, so that agents and jobs cannot start",
            f"let the GPU Operator make it, or make it yourself with the handler {name}; where"
            " NVIDIA's runtime is the nodes' default, set agent.runtimeClassName to ''",
        )
    else:
        yield ok("the chart names none: NVIDIA's runtime has to be the default of the nodes")


def toolkit(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether the container toolkit is there and honours the assignment of GPUs."""
    said = False
    handler = (cluster.runtime_class or {}).get("handler")
    without = [
        node.name
        for node in cluster.gpu_nodes
        if handler and node.handlers is not None and handler not in node.handlers
    ]
    if without:
        said = True
        yield failed(
            f"the container runtime of {some(without)} has no handler {handler}",
            "install NVIDIA's container toolkit there, then: nvidia-ctk runtime configure,"
            " and restart the container runtime",
        )
    for report in cluster.reports:
        for kind in TOOLKIT:
            if kind in report.conditions:
                said = True
                yield failed(
                    f"{report.node}: {report.conditions[kind]}",
                    "docs/node-agent.md names the settings of the toolkit; restart the agent then",
                )
                break
    if said:
        return
    heard = sum(node.handlers is not None for node in cluster.gpu_nodes)
    if cluster.reports:
        yield ok(f"{plural(len(cluster.reports), 'agent')} found no fault")
    elif heard:
        yield ok(f"{plural(heard, 'node')} have the handler {handler}")
    else:
        yield unknown("neither nodes nor agents say anything about it yet")


def device_plugins(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether something else gives out the same GPUs."""
    both = {node.name: node.handed_out for node in cluster.gpu_nodes if node.handed_out}
    if both:
        first = min(both)
        resource, number = next(iter(both[first].items()))
        yield failed(
            f"a device plugin gives out the GPUs of {some(both)} as well ({first}: {number}"
            f" {resource})",
            f"kubectl label node {first} nvidia.com/gpu.deploy.device-plugin=false; see Moving from"
            " the device plugin in docs/install.md",
        )
    else:
        yield ok("none on the GPU nodes")


def agents(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether an agent runs on each GPU node."""
    found = cluster.get(DAEMON_SETS, "tandem-agent", cluster.agents)
    if found is None:
        yield failed(
            f"there is no DaemonSet {cluster.agents}/tandem-agent",
            f"helm upgrade tandem helm/tandem -n {cluster.namespace} --reuse-values",
        )
        return
    status = found.get("status") or {}
    desired, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
    space = cluster.get(NAMESPACES, cluster.agents)
    level = ((space or {}).get("metadata") or {}).get("labels") or {}
    level = level.get("pod-security.kubernetes.io/enforce", "")
    if level in ("baseline", "restricted"):
        yield failed(
            f"Pod Security {level} in {cluster.agents} forbids hostPID, so that no agent starts",
            f"kubectl label namespace {cluster.agents}"
            " pod-security.kubernetes.io/enforce=privileged --overwrite",
        )
    elif ready < desired:
        yield failed(
            f"{ready} of {plural(desired, 'agent')} ready"
            f"{trouble(cluster, cluster.agents, 'agent')}",
            f"kubectl logs -n {cluster.agents} daemonset/tandem-agent --all-containers",
        )
    else:
        yield ok(f"{ready} of {plural(desired, 'agent')} ready")


def reports(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether each agent has reported lately."""
    known = {report.node: report for report in cluster.reports}
    silent = [node.name for node in cluster.gpu_nodes if node.name not in known]
    ages = {
        node: cluster.server_s - (report.written_s or report.observed_s)
        for node, report in known.items()
    }
    stale = {node: age for node, age in ages.items() if age > STALE_S}
    logs = f"kubectl logs -n {cluster.agents} --selector app.kubernetes.io/component=agent"
    if silent:
        yield failed(
            f"no report from {some(silent)}", f"{logs} --field-selector spec.nodeName={min(silent)}"
        )
    if stale:
        oldest = max(stale, key=lambda node: stale[node])
        yield failed(
            f"{plural(len(stale), 'report')} older than {STALE_S:.0f} s, so that no job joins their"
            f" GPUs: {some(stale)} (up to {_age(stale[oldest])})",
            f"kubectl get pods -n {cluster.agents} -o wide; if {oldest} is gone for good:"
            f" kubectl delete gpunode {oldest}",
        )
    if not silent and not stale:
        if ages:
            yield ok(f"{plural(len(ages), 'report')}, the oldest {_age(max(ages.values()))} old")
        else:
            yield unknown("there is no GPU node yet")


def gpus(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether new work may go to the GPUs."""
    lines = [line for report in cluster.reports for line in _faults(report)]
    total = sum(len(report.gpus) for report in cluster.reports)
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        yield failed(
            f"and {len(lines) - _SHOWN} more GPUs that do not work",
            "kubectl get gpunodes; tandem gpus",
        )
    if not lines:
        yield ok(f"{plural(total, 'GPU')} take new work") if total else unknown("none is reported")
    yield from claims(cluster)


def _faults(report: Report) -> Iterator[Verdict]:
    node = report.node
    for kind in NVML:
        if kind in report.conditions:
            yield failed(
                f"{node}: {kind} is False: {report.conditions[kind]}",
                f"run nvidia-smi on {node}; the driver may need a restart",
            )
    if not report.gpus and "NvmlAvailable" not in report.conditions:
        yield failed(
            f"{node} reports no GPU", f"run nvidia-smi on {node}, or take its GPU label away"
        )
    if report.changed:
        yield failed(
            f"{node} reports other GPUs than it had, so that no job joins it: {report.changed}",
            f"if you changed it: {how_to_agree(node)}; if not, its credentials may be stolen",
        )
    for uuid, model, why in report.gpus:
        if why.startswith("quarantined"):
            yield failed(
                f"{node}/{uuid} ({model}) is {why}",
                f"docs/node-agent.md says when it ends; kubectl describe gpunode {node}",
            )
        elif why:
            yield warning(f"{node}/{uuid} ({model}) is {why}", f"kubectl describe gpunode {node}")
    for uuid, model, held in report.unlisted:
        yield warning(
            f"{node}/{uuid} ({model}): {held} of memory are in use by no process that is listed",
            f"run nvidia-smi and fuser -v /dev/nvidia* on {node}: end what holds it, or reset the"
            " GPU once its jobs have ended",
        )


def deletions(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether pods hold GPUs though they were deleted long ago."""
    overdue = [
        (cluster.server_s - asked_s, where, node)
        for found in cluster.every(PODS, trim=_deleted)
        if found is not None
        for asked_s, where, node in (found,)
        if cluster.server_s - asked_s >= LEAVES_WITHIN_S
    ]
    if not overdue:
        yield ok("no pod holds GPUs long after its deletion")
        return
    longest_s, where, node = max(overdue)
    namespace, _, name = where.partition("/")
    yield failed(
        f"{plural(len(overdue), 'pod')} still hold{'s' if len(overdue) == 1 else ''} GPUs over"
        f" {LEAVES_WITHIN_S / 60:g} minutes after deletion:"
        f" {some(where for _, where, _ in overdue)} (up to {_age(longest_s)})",
        f"kubectl describe pod {name} -n {namespace}; its containers end on {node}: look at the"
        " kubelet there. If the node is gone for good: kubectl delete node " + node,
    )


def _deleted(pod: Object) -> tuple[float, str, str] | None:
    """Return when the deletion of a pod with GPUs was asked for, its name and its node."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    ends_s = seconds(metadata.get("deletionTimestamp"))
    node = (pod.get("spec") or {}).get("nodeName", "")
    if (
        ends_s is None
        or not node
        or names.VISIBLE_DEVICES not in (metadata.get("annotations") or {})
    ):
        return None
    if status.get("phase") in ("Succeeded", "Failed"):
        return None
    asked_s = ends_s - (metadata.get("deletionGracePeriodSeconds") or 0)
    return asked_s, f"{metadata['namespace']}/{metadata['name']}", node


def troubled(pod: Object) -> str:
    """Return why a pod does not run or answer, by what kubelet says; '' where it does or is new.

    What does not start comes before what is not ready, which may be for that reason.
    """
    status = pod.get("status") or {}
    for each in (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ):
        state: dict[str, Any] = each.get("state") or {}
        waiting = (state.get("waiting") or {}).get("reason", "")
        if waiting and waiting not in ("PodInitializing", "ContainerCreating"):
            last = ((each.get("lastState") or {}).get("terminated") or {}).get("reason", "")
            return f"{waiting}{f' after {last}' if last else ''} in {each.get('name')}"
    for each in status.get("containerStatuses") or ():
        if "running" in (each.get("state") or {}) and each.get("ready") is False:
            return f"{each.get('name')} runs and is not ready"
    for each in status.get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return f"not scheduled: {each.get('message', '')}"
    return ""


def trouble(cluster: Cluster, namespace: str, component: str) -> str:
    """Return `: POD: REASON` of one pod of ours that does not run."""
    try:
        pods = cluster.every(PODS, namespace)
    except Forbidden:
        return ""
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        if labels.get("app.kubernetes.io/component") == component and (why := troubled(pod)):
            return f": {pod['metadata']['name']}: {why}"
    return ""


def _age(age_s: float) -> str:
    age_s = max(0.0, age_s)
    return f"{age_s:.0f} s" if age_s < 600 else f"{age_s / 60:,.0f} min"
