"""Checks of our services: scheduler, webhook, certificate, policies, predictor.

Kubelets say whether pods answer them; what others ask of a service is asked here as well.
"""

from __future__ import annotations

import base64
import binascii
import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

from tandem.cli.doctor.cluster import (
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    POLICY_BINDINGS,
    PRIORITY_CLASSES,
    Cluster,
    not_after_s,
)
from tandem.cli.doctor.findings import Verdict, failed, ok, plural, unknown, warning
from tandem.cli.doctor.levels import levels
from tandem.cli.doctor.nodes import trouble
from tandem.contracts import names
from tandem.errors import TandemError
from tandem.kube.client import Object
from tandem.kube.errors import Forbidden, KubeError, Unavailable
from tandem.kube.resource import MUTATING_WEBHOOKS, SECRETS

WEBHOOK = "tandem"
SERVICE = "tandem-webhook"
_FAILED = re.compile(r'failed calling webhook "(adopted-)?workloads\.tandem\.gpu"')
#: What refuses a pod that the webhook has not made ready, where the API server goes on without it.
_POLICY, _UNREVIEWED = "'tandem-pods'", re.compile(r"spec\.(schedulerName|schedulingGates): ")
POLICIES = (
    "tandem-agent-own-node",
    "tandem-assignments",
    "tandem-devices",
    "tandem-pods",
    "tandem-resources",
    "tandem-scheduler-name",
    "tandem-scheduler-writes",
)
#: The extender replaces its certificate 90 days before the end.
_OVERDUE_DAYS = 30


def attached(cluster: Cluster) -> bool:
    """Say whether a scheduler of the user's calls the extender: ours has no kube-scheduler then."""
    try:
        found = cluster.get(DEPLOYMENTS, "tandem-scheduler", cluster.namespace)
    except Forbidden:
        return False
    spec = (((found or {}).get("spec") or {}).get("template") or {}).get("spec") or {}
    containers = {each.get("name") for each in spec.get("containers") or ()}
    return bool(containers) and "kube-scheduler" not in containers


def scheduler(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether the scheduler's pods run, and the extender answers through the API server."""
    without = "nothing is placed, and pods with GPUs are refused"
    yield from _deployment(cluster, "scheduler", without, _no_answer(cluster, "/v1/status/scope"))
    yield from levels(cluster)


def predictor(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether the predictor's pods run, and it answers the extender."""
    without = "jobs are placed by what they declare, or take whole GPUs"
    no_answer = _no_answer(cluster, "/v1/models", behind=True)
    yield from _deployment(cluster, "predictor", without, no_answer)


def _no_answer(cluster: Cluster, path: str, *, behind: bool = False) -> str:
    """Ask the extender; return why there is no answer, '' where there is one or none to be had.

    A caller who may not ask, or not this, has been answered by who says so. `behind`: it is about
    a service that the extender asks, of which an extender that does not answer says nothing.
    """
    if cluster.ask is None:
        return ""
    try:
        answer = cluster.ask(path, {"namespace": cluster.own})
    except Unavailable as error:
        if behind:
            return ""
        return f"asked through the API server, the extender does not answer: {error.message}"
    except (KubeError, TandemError):
        return ""
    if answer.status < 500:
        return ""
    try:
        said = answer.json().get("error") or answer.json().get("detail")
    except (ValueError, AttributeError):
        said = None
    return f"asked through the API server: {said or f'HTTP {answer.status}'}"


def _deployment(
    cluster: Cluster, component: str, without: str, no_answer: str
) -> Iterator[Verdict]:
    name = f"tandem-{component}"
    found = cluster.get(DEPLOYMENTS, name, cluster.namespace)
    if found is None:
        yield failed(
            f"there is no Deployment {cluster.namespace}/{name}: {without}",
            "install the chart (docs/install.md), or give its namespace with --tandem-namespace",
        )
        return
    wanted = (found.get("spec") or {}).get("replicas", 1)
    there = (found.get("status") or {}).get("availableReplicas", 0)
    do = f"kubectl describe pods -n {cluster.namespace} -l app.kubernetes.io/component={component}"
    said = f"{there} of {plural(wanted, 'replica')} available"
    why = trouble(cluster, cluster.namespace, component) if there < wanted or not there else ""
    if not there:
        yield failed(f"{said}, so that {without}{why}", do)
    elif there < wanted:
        yield failed(f"{said}{why}", do)
    elif no_answer:
        yield failed(no_answer, f"kubectl logs -n {cluster.namespace} deployment/{name}")
    else:
        yield ok(said)


def webhook(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether the API server gets an answer of our webhook."""
    found = cluster.get(MUTATING_WEBHOOKS, WEBHOOK)
    upgrade = f"helm upgrade tandem helm/tandem -n {cluster.namespace} --reuse-values"
    if found is None:
        yield failed(
            f"there is no MutatingWebhookConfiguration {WEBHOOK}: pods that ask for GPUs are"
            " refused by the policies",
            upgrade,
        )
        return
    hooks = found.get("webhooks") or []
    clients = [each.get("clientConfig") or {} for each in hooks]
    if not hooks or not all(client.get("caBundle") for client in clients):
        yield failed(
            "the API server has no authority to trust at the webhook (caBundle is empty)",
            f"the extender writes it: kubectl logs -n {cluster.namespace}"
            " deployment/tandem-scheduler -c extender",
        )
        return
    if any("service" in client for client in clients):
        ready = _ready_endpoints(cluster, SERVICE)
        if not ready:
            yield failed(
                f"the Service {SERVICE} has no ready endpoint: pods that ask for GPUs are refused",
                f"kubectl get pods -n {cluster.namespace} -l app.kubernetes.io/component=scheduler",
            )
            return
        said = plural(ready, "endpoint")
    else:
        said = str(clients[0].get("url"))
    if why := _no_review(cluster):
        yield failed(
            why,
            f"kubectl logs -n {cluster.namespace} deployment/tandem-scheduler -c extender; the API"
            " server must reach port 8443 of these pods",
        )
        return
    ignored = any(each.get("failurePolicy") == "Ignore" for each in hooks)
    yield ok(f"{len(hooks)} webhooks at {said}{'; failures are ignored' if ignored else ''}")


def _no_review(cluster: Cluster) -> str:
    """Have the API server ask the webhook about a pod that is not created; say if it got no answer.

    '' for every other outcome: a caller who may not create pods is refused before, and what refuses
    such a pod afterwards is no fault of the webhook's.
    """
    try:
        pod = cluster.server.try_pod(cluster.own)
    except KubeError as error:
        if _FAILED.search(error.message):
            return (
                "a pod that asks for a GPU is not admitted, since the webhook does not answer:"
                f" {error.message}"
            )
        ignored = _POLICY in error.message and _UNREVIEWED.search(error.message) is not None
    else:
        gates = (pod.get("spec") or {}).get("schedulingGates") or ()
        ignored = names.SCHEDULING_GATE not in {each.get("name") for each in gates}
    return (
        "the API server goes on without the webhook, which does not answer (failurePolicy: Ignore):"
        " no pod that asks for a GPU gets one"
        if ignored
        else ""
    )


def _ready_endpoints(cluster: Cluster, service: str) -> int:
    slices = [
        each
        for each in cluster.every(ENDPOINT_SLICES, cluster.namespace)
        if (each["metadata"].get("labels") or {}).get("kubernetes.io/service-name") == service
    ]
    return sum(
        (endpoint.get("conditions") or {}).get("ready") is not False
        for each in slices
        for endpoint in each.get("endpoints") or ()
    )


def authority(configuration: Object | None) -> bytes:
    """Return the authority that the API server trusts at our webhooks, as PEM; b'' for none."""
    for each in (configuration or {}).get("webhooks") or ():
        bundle = (each.get("clientConfig") or {}).get("caBundle")
        try:
            return base64.b64decode(bundle or "", validate=True)
        except binascii.Error:
            return b""
    return b""


def certificate(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether the webhook's certificate is valid, and its authority trusted."""
    restart = f"kubectl rollout restart -n {cluster.namespace} deployment/tandem-scheduler"
    bundle = authority(cluster.get(MUTATING_WEBHOOKS, WEBHOOK))
    if not bundle:
        yield unknown("the API server trusts no authority at the webhook yet")
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=bundle.decode("ascii", "replace"))
        ends = [not_after_s(str(each["notAfter"])) for each in context.get_ca_certs()]
    except (ssl.SSLError, ValueError):
        ends = []
    if not ends:
        yield failed("caBundle of the webhook is no certificate of an authority", restart)
        return
    if max(ends) < cluster.server_s:
        yield failed(f"the authority of the webhook ended on {_day(max(ends))}", restart)
        return
    try:
        secret = cluster.get(SECRETS, SERVICE, cluster.namespace)
    except Forbidden:
        yield ok(
            f"its authority is valid until {_day(max(ends))}"
            f" (you may not read the Secret {SERVICE})"
        )
        return
    if secret is None:
        yield unknown(f"there is no Secret {SERVICE}: the certificate comes from files")
        return
    yield from _served(cluster, secret, bundle, restart)


def _served(cluster: Cluster, secret: Object, bundle: bytes, restart: str) -> Iterator[Verdict]:
    try:
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
    except ImportError:
        yield unknown("not checked: install tandem-gpu[extender] to read certificates")
        return
    try:
        pem = base64.b64decode((secret.get("data") or {}).get("tls.crt") or "", validate=True)
        served = x509.load_pem_x509_certificate(pem)
        trusted = x509.load_pem_x509_certificates(bundle)
    except (ValueError, binascii.Error):
        yield failed(
            f"the Secret {SERVICE} holds no certificate",
            f"kubectl delete secret {SERVICE} -n {cluster.namespace}; the extender makes a new one",
        )
        return

    def signed_by(authority: x509.Certificate) -> bool:
        try:
            served.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    ends_s = served.not_valid_after_utc.timestamp()
    if ends_s < cluster.server_s:
        yield failed(f"the webhook's certificate ended on {_day(ends_s)}", restart)
    elif not any(map(signed_by, trusted)):
        yield failed(
            "the API server trusts another authority than that of the webhook's certificate"
            " (caBundle does not match)",
            restart,
        )
    elif ends_s < cluster.server_s + _OVERDUE_DAYS * 86400:
        yield warning(
            f"the webhook's certificate ends on {_day(ends_s)}, its renewal is late", restart
        )
    else:
        yield ok(f"valid until {_day(ends_s)}")


def policies(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether the admission policies are in force."""
    there = {each["metadata"]["name"] for each in cluster.every(POLICY_BINDINGS)}
    missing = [name for name in POLICIES if name not in there]
    upgrade = f"helm upgrade tandem helm/tandem -n {cluster.namespace} --reuse-values"
    if len(missing) == len(POLICIES):
        yield warning(
            "they are off: a user who may write pods can forge the GPUs of a pod",
            f"{upgrade} --set policies.enabled=true",
        )
    elif missing:
        yield failed(f"no binding of {', '.join(missing)}: what it refuses is let through", upgrade)
    else:
        yield ok(f"{len(POLICIES)} in force")


def priority_class(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether the class exists that the webhook gives to pods."""
    found = cluster.get(PRIORITY_CLASSES, names.PRIORITY_CLASS)
    if found is None:
        yield failed(
            f"there is no PriorityClass {names.PRIORITY_CLASS}: pods that ask for GPUs are refused",
            f"helm upgrade tandem helm/tandem -n {cluster.namespace} --reuse-values",
        )
    else:
        yield ok(names.PRIORITY_CLASS)


def _day(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d")
