"""The command `tandem doctor`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tandem.cli.doctor import nodes, platform, services, shadow
from tandem.cli.doctor.cluster import Cluster, Server
from tandem.cli.doctor.findings import WITHIN_S, Check, Finding, Outcome, Verdict, examine, within
from tandem.cli.forms import Form, reports
from tandem.cli.output import clean, out, print_json
from tandem.cli.reach import ContextOption, KubeconfigOption
from tandem.contracts import names
from tandem.errors import TandemError

#: Causes come before their effects: what stands first among the failures is mended first.
CHECKS: tuple[tuple[str, Check], ...] = (
    ("version", platform.version),
    ("feature gates", platform.gates),
    ("your rights", platform.caller),
    ("clocks", platform.clocks),
    ("definitions", platform.definitions),
    ("policies", services.policies),
    ("priority class", services.priority_class),
    ("accounts", platform.accounts),
    ("scheduler", services.scheduler),
    ("leader", platform.leader),
    ("webhook", services.webhook),
    ("certificate", services.certificate),
    ("predictor", services.predictor),
    ("GPU nodes", nodes.present),
    ("device plugin", nodes.device_plugins),
    ("runtime class", nodes.runtime_class),
    ("container toolkit", nodes.toolkit),
    ("agents", nodes.agents),
    ("reports", nodes.reports),
    ("GPUs", nodes.gpus),
    ("deletions", nodes.deletions),
    ("taints", nodes.taints),
)
#: What is checked in place of all but the version where Tandem only records (`mode: shadow`).
SHADOW_CHECKS: tuple[tuple[str, Check], ...] = (
    ("your rights", shadow.caller),
    ("account", shadow.account),
    ("recorder", shadow.recorder),
    ("record", shadow.record),
    ("GPU nodes", shadow.gpu_nodes),
)


def _where(in_shadow: bool, check: Check) -> Check:
    """Return a check that finds nothing in the other mode."""

    def checked(cluster: Cluster) -> Iterable[Verdict]:
        return check(cluster) if cluster.shadow is in_shadow else ()

    return checked


#: What the command checks: which mode it is in, the cluster says.
EVERY: tuple[tuple[str, Check], ...] = (
    CHECKS[0],
    *((name, _where(False, check)) for name, check in CHECKS[1:]),
    *((name, _where(True, check)) for name, check in SHADOW_CHECKS),
)
_STYLES = {
    Outcome.OK: "green",
    Outcome.WARNING: "yellow",
    Outcome.FAILED: "bold red",
    Outcome.UNKNOWN: "cyan",
}


@reports
def doctor(
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: Annotated[
        str, typer.Option("--tandem-namespace", help="The namespace of Tandem's services.")
    ] = names.NAMESPACE,
    agents: Annotated[
        str, typer.Option("--agent-namespace", help="The namespace of the agents.")
    ] = names.AGENT_NAMESPACE,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=1.0, max=3600.0, help="Seconds for all checks together."),
    ] = WITHIN_S,
    form: Form = Form.TABLE,
) -> None:
    """Say what is wrong with Tandem in a cluster, and what to do.

    The exit code is 1 if anything is.
    """
    found = []
    for finding in _findings(kubeconfig, context, namespace, agents, timeout):
        found.append(finding)
        if form is not Form.JSON:
            _show(finding)
    if form is Form.JSON:
        print_json({"healthy": healthy(found), "checks": [asdict(each) for each in found]})
    else:
        _sum_up(found)
    if not healthy(found):
        raise typer.Exit(1)


def _findings(
    kubeconfig: Path | None, context: str | None, namespace: str, agents: str, timeout_s: float
) -> Iterator[Finding]:
    """Yield what is found, a kubeconfig that cannot be used among it."""
    from tandem.kube.client import KubeClient
    from tandem.kube.credentials import context_namespace
    from tandem.kube.tunnel import Tunnel

    try:
        client, own = within(
            lambda: (
                KubeClient.load(kubeconfig, context),
                context_namespace(kubeconfig, context),
            ),
            timeout_s,
        )
    except TandemError as error:
        yield Finding("kubeconfig", Outcome.FAILED, error.message, error.hint)
        return
    except TimeoutError:
        yield Finding(
            "kubeconfig",
            Outcome.FAILED,
            f"the program that it names has given no login within {timeout_s:g} s",
            "run the program of users[].user.exec by hand, or log in with another one",
        )
        return
    try:
        ask = Tunnel(client, namespace).get
        cluster = Cluster(client, Server(client), namespace, agents, own, ask)
        yield from examine(EVERY, cluster, timeout_s)
    finally:
        client.close()


def healthy(found: list[Finding]) -> bool:
    """Say whether no check failed."""
    return not any(each.outcome is Outcome.FAILED for each in found)


def _show(finding: Finding) -> None:
    line = Text()
    line.append(f"{finding.outcome.value:<8}", _STYLES[finding.outcome])
    line.append(f" {finding.check:<17} {clean(finding.says)}")
    out.print(line, soft_wrap=True)
    if finding.do:
        out.print(Text(f"{'':26} -> {clean(finding.do)}"), soft_wrap=True)


def _sum_up(found: list[Finding]) -> None:
    counts = Counter(each.outcome for each in found)
    said = ", ".join(f"{counts[each]} {each.value}" for each in Outcome if counts[each])
    out.print(Text(said))
