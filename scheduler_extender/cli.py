"""`tandem gpus | jobs | explain | config`: what the extender knows, for people and programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.cli.output import out, print_json, print_table
from tandem.errors import TandemError

if TYPE_CHECKING:
    import httpx

ServerOption = Annotated[
    str, typer.Option("--server", envvar="TANDEM_SERVER", help="URL of the extender.")
]
CaOption = Annotated[
    Path | None,
    typer.Option("--ca-file", envvar="TANDEM_CA_FILE", help="CA of the extender's certificate."),
]
TokenOption = Annotated[
    str, typer.Option("--token", envvar="TANDEM_TOKEN", help="Your token of the cluster.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DEFAULT_SERVER = "https://localhost:8443"

config_app = typer.Typer(help="The extender's configuration.", no_args_is_help=True)


@config_app.callback()
def _config() -> None:
    """Group the commands, though there is but one so far."""


@config_app.command("check")
def check_config(file: Annotated[Path, typer.Argument(help="A YAML file.")]) -> None:
    """Say what is wrong in a configuration file, by path; exit code 1 if anything is."""
    from scheduler_extender.config import read_config

    config = read_config(file)
    out.print(f"{file}: fine (profile {config.profile.name})", highlight=False)


def gpus(
    node: Annotated[str | None, typer.Option("--node", help="Only the GPUs of this node.")] = None,
    server: ServerOption = DEFAULT_SERVER,
    ca_file: CaOption = None,
    token: TokenOption = "",
    json: JsonOption = False,
) -> None:
    """List GPUs, what holds them and what is promised of them."""
    found = _get(server, ca_file, token, "/v1/gpus", {"node": node} if node else {})
    if json:
        print_json(found)
        return
    print_table(
        "GPUs",
        ("node", "GPU", "model", "shares", "memory promised", "utilisation", "jobs", "state"),
        [
            (
                gpu["node"],
                gpu["gpu"],
                gpu["model"],
                f"{gpu['held']}/{gpu['shares']}",
                f"{gpu['memoryPromisedGib']:.1f} of {gpu['memoryCapacityGib']:.1f} GiB",
                f"{gpu['utilisationPromisedPercent']:.0f} %",
                ", ".join(gpu["jobs"]) or "-",
                _state(gpu),
            )
            for gpu in found["gpus"]
        ],
    )


def jobs(
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Only the jobs of this namespace.")
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
    ca_file: CaOption = None,
    token: TokenOption = "",
    json: JsonOption = False,
) -> None:
    """List jobs: where they are in the queue, where they run, and why they wait."""
    found = _get(server, ca_file, token, "/v1/jobs", {"namespace": namespace} if namespace else {})
    if json:
        print_json(found)
        return
    print_table(
        "Jobs",
        ("namespace", "job", "phase", "position", "expected start", "places", "message"),
        [
            (
                job["namespace"],
                job["name"],
                job["phase"],
                job["position"],
                _expected(job),
                ", ".join(sorted({place["node"] for place in job["places"]})) or "-",
                job["message"],
            )
            for job in found["jobs"]
        ],
    )


def explain(
    pod: Annotated[str, typer.Argument(metavar="NAMESPACE/POD", help="The pod in question.")],
    server: ServerOption = DEFAULT_SERVER,
    ca_file: CaOption = None,
    token: TokenOption = "",
    json: JsonOption = False,
) -> None:
    """Say where a pod is, or what keeps it off each node."""
    from urllib.parse import quote

    from tandem.errors import UsageError

    namespace, _, name = pod.partition("/")
    if not namespace or not name:
        raise UsageError(f"{pod!r} names no pod", "write NAMESPACE/POD, such as default/train-0")
    path = f"/v1/explain/{quote(namespace, safe='')}/{quote(name, safe='')}"
    found = _get(server, ca_file, token, path, {})
    if json:
        print_json(found)
        return
    worker = found["worker"]
    needs = (
        f"{worker['gpus']} GPU(s)"
        + (" of its own" if worker["exclusive"] else "")
        + f", {worker['memoryPeakGib']:.1f} GiB each at its peak, "
        f"{worker['utilisationPercent']:.0f} % utilisation"
    )
    said = [f"{pod} of job {found['job']}: needs {needs}"]
    if found["node"]:
        said.append(f"runs on {found['node']}: {', '.join(found['gpus']) or 'no GPUs known'}")
    elif found["message"]:
        said.append(f"{found['phase']}: {found['message']}")
    if found.get("expectedStart"):
        said.append(
            f"expected to start {_expected(found)} (as of {found['expectedStart']['asOf']})"
        )
    for line in said:
        out.print(line, highlight=False, markup=False)
    _tell_of_sharing(found)
    if found["nodes"]:
        print_table(
            "Nodes",
            ("node", "GPU type", "fits", "GPUs that could take it", "reason"),
            [
                (
                    each["node"],
                    ", ".join(each["models"]) or "-",
                    "yes" if each["fits"] else "no",
                    ", ".join(each["gpus"]) or "-",
                    each["reason"] or "-",
                )
                for each in found["nodes"]
            ],
        )
    if found["nodesNotShown"]:
        out.print(f"{found['nodesNotShown']} more node(s) not shown", highlight=False)


def _tell_of_sharing(found: dict[str, Any]) -> None:
    """Print what is predicted, what was measured since, and the latest decisions with their why."""
    predicted, seen = found.get("prediction"), found.get("observed")
    lines = []
    if predicted:
        lines.append(
            f"predicted: {predicted['memoryUpperGib']:.1f} GiB at most"
            f" ({predicted['memorySource']}), {predicted['utilisationPercent']:.0f} % utilisation"
            f" ({predicted['utilisationSource']})"
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
        out.print(line, highlight=False, markup=False)
    for gpu in found.get("here", ()):
        print_table(
            gpu["gpu"],
            ("constraint", "allows", "figures"),
            [
                (each["constraint"], "yes" if each["allows"] else "no", each["says"] or "-")
                for each in gpu["constraints"]
            ]
            + [(kind, "score", f"{score:.2f}") for kind, score in gpu["scores"].items()],
        )


def _expected(found: dict[str, Any]) -> str:
    """Say between which times a start is expected."""
    expected = found.get("expectedStart")
    if not expected:
        return "-"
    latest = expected.get("latest")
    return f"{expected['earliest']} .. {latest}" if latest else f"{expected['earliest']} or later"


def _state(gpu: dict[str, Any]) -> str:
    if not gpu["healthy"]:
        return f"quarantined: {gpu['reason']}" if gpu["reason"] else "quarantined"
    if not gpu["shares"]:
        return f"not offered: {gpu['reason']}" if gpu["reason"] else "not offered"
    return "ready" if gpu["fresh"] else "stale report"


def _get(server: str, ca_file: Path | None, token: str, path: str, query: dict[str, str]) -> Any:  # noqa: ANN401 - JSON
    """Return what the extender answers, or an error that says what to do."""
    import httpx

    with _client(server, ca_file, token) as client:
        try:
            answer = client.get(path, params=query)
            body = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise TandemError(
                f"no usable answer from {server}: {error}",
                "give --server, or:"
                " kubectl port-forward -n tandem-system svc/tandem-webhook 8443:443",
            ) from error
    if answer.status_code != 200:
        words = body.get("error") or body.get("detail") or f"HTTP {answer.status_code}"
        hint = body.get("hint", "")
        if answer.status_code == 401:
            hint = "give --token or TANDEM_TOKEN, as from `kubectl create token ACCOUNT`"
        raise TandemError(str(words), hint)
    return body


def _client(server: str, ca_file: Path | None, token: str) -> httpx.Client:
    import ssl

    import httpx

    try:
        context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    except OSError as error:
        raise TandemError(f"{ca_file}: {error}", "give a PEM file with --ca-file") from error
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return httpx.Client(base_url=server, verify=context, timeout=30.0, headers=headers)
