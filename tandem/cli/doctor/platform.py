"""Checks of the API server: version, feature gates, definitions, clocks, the caller's rights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tandem.cli.doctor.cluster import Cluster, seconds, written_s
from tandem.cli.doctor.findings import Verdict, failed, ok, some, unknown
from tandem.cli.doctor.services import attached
from tandem.contracts import names
from tandem.kube.access import ACCESS_REVIEWS
from tandem.kube.client import Object
from tandem.kube.errors import Forbidden, NotFound
from tandem.kube.resource import LEASES

OLDEST = (1, 30)
#: Each with what depends on it. They are on by default in all versions that we support.
GATES = {
    "PodSchedulingReadiness": "a job could not wait in the queue",
    "ValidatingAdmissionPolicy": "anyone who may write pods could forge GPUs",
    "AdmissionWebhookMatchConditions": "every pod of the cluster would wait for the webhook",
    "SidecarContainers": "the extender could not start before its kube-scheduler",
    "ServiceAccountTokenPodNodeInfo": "no agent could write its GPUNode",
}
DEFINITIONS = ("gpujobs", "gpunodes", "modelprofiles")
#: A report is written within a few seconds of its own time, and the server's has whole seconds.
AGENT_SKEW_S = 10.0
CALLER_SKEW_S = 5.0

#: By account: what it could not do without, as (verb, group, resource, subresource).
RIGHTS = {
    (names.NAMESPACE, "tandem-scheduler"): (
        ("watch", "", "pods", ""),
        ("patch", "", "pods", ""),
        ("create", "", "pods", "binding"),
        ("create", "", "pods", "eviction"),
        ("delete", "", "pods", ""),
        ("watch", names.GROUP, "gpunodes", ""),
        ("create", names.GROUP, "gpujobs", ""),
        ("update", names.GROUP, "gpujobs", "status"),
        ("create", names.GROUP, "modelprofiles", ""),
        ("create", "authentication.k8s.io", "tokenreviews", ""),
        ("create", "authorization.k8s.io", "subjectaccessreviews", ""),
    ),
    (names.NAMESPACE, "tandem-predictor"): (
        ("watch", names.GROUP, "modelprofiles", ""),
        ("update", names.GROUP, "modelprofiles", "status"),
        ("create", "authentication.k8s.io", "tokenreviews", ""),
    ),
    (names.AGENT_NAMESPACE, "tandem-agent"): (
        ("create", names.GROUP, "gpunodes", ""),
        ("update", names.GROUP, "gpunodes", "status"),
    ),
}


def version(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether the API server is recent enough."""
    said = cluster.server.version()
    numbers = re.match(r"v?(\d+)\.(\d+)", said)
    least = "{}.{}".format(*OLDEST)
    if numbers is None:
        yield unknown(f"the API server calls its version {said!r}")
    elif tuple(map(int, numbers.groups())) < OLDEST:
        yield failed(f"Kubernetes {said} is older than {least}", f"upgrade it to {least} or later")
    else:
        yield ok(f"Kubernetes {said} at {cluster.server.address}")


def gates(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether features that we need are switched off."""
    try:
        features = cluster.server.features()
    except Forbidden:
        yield unknown(
            "not checked, you have no right to get /metrics of the API server",
            f"look whether --feature-gates of kube-apiserver switches off {', '.join(GATES)}",
        )
        return
    if not features:
        yield unknown("the API server reports no feature gates in its metrics")
        return
    off = [name for name in GATES if features.get(name) is False]
    for name in off:
        yield failed(
            f"{name} is off: {GATES[name]}",
            f"remove {name}=false from --feature-gates of kube-apiserver",
        )
    if not off:
        yield ok(f"the {len(GATES)} that are needed are on")


def definitions(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether our custom resources are served."""
    try:
        served = cluster.server.resources(names.API_VERSION)
    except NotFound:
        served = set()
    missing = [plural for plural in DEFINITIONS if plural not in served]
    if missing:
        yield failed(
            f"{names.API_VERSION} lacks {', '.join(missing)}",
            "kubectl apply --server-side --force-conflicts -f helm/tandem/crds/",
        )
    else:
        yield ok(f"{', '.join(DEFINITIONS)} of {names.API_VERSION}")


def caller(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether the caller may see jobs and GPUs."""
    everywhere = cluster.may("list", "gpujobs")
    nodes = cluster.may("list", "gpunodes")
    if not everywhere and not cluster.may("list", "gpujobs", namespace=cluster.own):
        yield failed(
            f"you may not list gpujobs.{names.GROUP}, neither everywhere nor in {cluster.own}",
            f"ask for the role `view` in your namespace: kubectl create rolebinding NAME"
            f" --clusterrole=view --user=YOU -n {cluster.own}",
        )
        return
    where = "of all namespaces" if everywhere else f"of {cluster.own}"
    yield ok(f"you see the jobs {where}{' and all GPUs' if nodes else '; GPUs are not for you'}")


def accounts(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether RBAC gives our services what they need."""
    broken = False
    for (namespace, account), rights in RIGHTS.items():
        where = cluster.agents if namespace == names.AGENT_NAMESPACE else cluster.namespace
        if missing := lacks(cluster, where, account, rights):
            broken = True
            yield failed(
                f"{account} may not {some(missing)}",
                "restore the chart's roles and bindings: helm upgrade tandem helm/tandem"
                f" -n {cluster.namespace} --reuse-values",
            )
    if not broken:
        yield ok("scheduler, predictor and agents have the rights that they need")


def lacks(
    cluster: Cluster, namespace: str, account: str, rights: Iterable[tuple[str, str, str, str]]
) -> list[str]:
    """Return in words which of the rights an account does not have, asked one by one."""
    missing = []
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    for verb, group, resource, subresource in rights:
        attributes = {"verb": verb, "group": group, "resource": resource}
        if subresource:
            attributes["subresource"] = subresource
        spec = {
            "user": f"system:serviceaccount:{namespace}:{account}",
            "groups": [*groups, "system:authenticated"],
            "resourceAttributes": attributes,
        }
        review = cluster.objects.create(ACCESS_REVIEWS, {"metadata": {}, "spec": spec})
        if not (review.get("status") or {}).get("allowed"):
            missing.append(f"{verb} {'/'.join(filter(None, (resource, subresource)))}")
    return missing


def clocks(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether clocks agree with the API server's."""
    said = False
    ours = cluster.clock() - cluster.server_s
    # The server's second has begun by up to 1 s.
    if not -CALLER_SKEW_S <= ours <= CALLER_SKEW_S + 1:
        said = True
        yield failed(
            f"this machine's clock is {abs(ours):.0f} s {'ahead of' if ours > 0 else 'behind'}"
            " the API server's",
            "let NTP set it: timedatectl status",
        )
    off = {}
    for report in cluster.reports:
        if report.written_s is not None and report.observed_s:
            skew = report.observed_s - report.written_s
            if abs(skew) > AGENT_SKEW_S:
                off[report.node] = skew
    if off:
        said = True
        worst = max(off, key=lambda node: abs(off[node]))
        yield failed(
            f"the agents' clocks differ from the API server's by up to {abs(off[worst]):.0f} s:"
            f" {some(off)}",
            f"let NTP set the clock of {worst}: a report's age is wrong until then",
        )
    lease = _readable_lease(cluster)
    renewed = _lease_s(lease, "renewTime")
    written = written_s(lease) if lease else None
    if renewed is not None and written is not None and abs(renewed - written) > AGENT_SKEW_S:
        said = True
        yield failed(
            f"the clock of the scheduler that leads is off by {abs(renewed - written):.0f} s",
            "let NTP set the clock of its node: kubectl get pods -o wide -n " + cluster.namespace,
        )
    if not said:
        yield ok("this machine, the nodes and the leader agree with the API server")


def leader(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether a kube-scheduler holds the Lease, so that the queue moves."""
    if attached(cluster):
        yield ok("no leader is elected, since your own scheduler calls the extender")
        return
    lease = cluster.get(LEASES, names.LEASE_NAME, cluster.namespace)
    logs = f"kubectl logs -n {cluster.namespace} deployment/tandem-scheduler -c kube-scheduler"
    if lease is None:
        yield failed(
            f"there is no Lease {cluster.namespace}/{names.LEASE_NAME}: no scheduler leads", logs
        )
        return
    spec = lease.get("spec") or {}
    holder = (spec.get("holderIdentity") or "").rpartition("_")[0]
    renewed = _lease_s(lease, "renewTime")
    # By the API server's clock where it can be had, so that a wrong clock is no lost leader.
    at = written_s(lease) or renewed or 0.0
    age = cluster.server_s - at
    if not holder:
        yield failed("the Lease has no holder: no scheduler leads, and nothing is placed", logs)
    elif age > float(spec.get("leaseDurationSeconds") or 15) + 1:
        yield failed(f"{holder} led until {age:.0f} s ago, and no other has taken over", logs)
    else:
        yield ok(holder)


def _readable_lease(cluster: Cluster) -> Object | None:
    try:
        return cluster.get(LEASES, names.LEASE_NAME, cluster.namespace)
    except Forbidden:
        return None


def _lease_s(lease: Object | None, name: str) -> float | None:
    """Return a time in the specification of a Lease."""
    return seconds(((lease or {}).get("spec") or {}).get(name))
