"""What values.yaml may hold, for its schema; the services' settings are their own models.

Helm checks values against the schema that `generate.py` makes of this, and names the path of a
mistake before anything is installed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from node_agent.config import AgentSettings
from predictor.service.config import PredictorConfig
from scheduler_extender.config import ExtenderConfig
from tandem.policy.catalog import profile_names

Replicas = Annotated[int, Field(ge=1, le=10)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
NameOrNone = Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$")]
Labels = dict[str, str]
Objects = list[dict[str, Any]]

#: Settings that follow from the chart, and would only contradict it.
SET_BY_THE_CHART = {
    ExtenderConfig: {
        "api",
        "kubeconfig",
        "namespace",
        "agent_namespace",
        "verbs",
        "public",
        "probes",
        "tunnel",
        "leader",
        "predictor_url",
        "predictor_token_file",
    },
    PredictorConfig: {"host", "port", "store", "kubeconfig", "artifacts"},
    AgentSettings: {"node", "proc", "sys"},
}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class _Image(_Section):
    registry: str
    tag: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]*$")]
    digests: dict[
        Literal["extender", "agent", "predictor"],
        Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")],
    ]
    pull_policy: Literal["Always", "IfNotPresent", "Never"]
    pull_secrets: list[dict[Literal["name"], str]]


class _Resources(_Section):
    requests: dict[str, str | float]
    limits: dict[str, str | float]


class _Placed(_Section):
    priority_class_name: NameOrNone
    node_selector: Labels
    tolerations: Objects
    affinity: dict[str, Any]


class _KubeScheduler(_Section):
    repository: str
    tag: str
    verbosity: Annotated[int, Field(ge=0, le=10)]
    resources: _Resources


class _Extender(_Section):
    config: ExtenderConfig
    resources: _Resources


class _Attach(_Section):
    enabled: bool
    secret: Name


class _Scheduler(_Placed):
    replicas: Replicas
    attach: _Attach
    kube_scheduler: _KubeScheduler
    extender: _Extender


class _Shadow(_Section):
    resources: _Resources


class _Retraining(_Section):
    enabled: bool
    schedule: str
    image: str
    resources: _Resources


class _Predictor(_Placed):
    replicas: Replicas
    config: PredictorConfig
    artifacts_claim: NameOrNone
    retraining: _Retraining
    resources: _Resources


class _Agent(_Placed):
    namespace: Name
    create_namespace: bool
    runtime_class_name: NameOrNone
    run_as_user: Annotated[int, Field(ge=0, le=2**31 - 1)]
    port: Annotated[int, Field(ge=1, le=65535)]
    progress: bool
    max_unavailable: Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=r"^\d{1,3}%$")]
    config: AgentSettings
    resources: _Resources


class _Dra(_Section):
    enabled: bool
    resources: _Resources


class _IssuerRef(_Section):
    name: str
    kind: str
    group: str


class _CertManager(_Section):
    enabled: bool
    issuer_ref: _IssuerRef


class _Webhook(_Section):
    failure_policy: Literal["Fail", "Ignore"]
    timeout_seconds: Annotated[int, Field(ge=1, le=30)]
    url: Annotated[str, Field(pattern="^(https://.+)?$")]
    service_names: list[str]
    cert_manager: _CertManager


class _Access(_Section):
    groups: list[str]


class _PriorityClass(_Section):
    # Above this Kubernetes keeps the values for its own classes.
    value: Annotated[int, Field(ge=-2147483648, le=1000000000)]


class _Policies(_Section):
    enabled: bool


class _NetworkPolicies(_Section):
    enabled: bool
    metrics_from: Objects


class _Dashboards(_Section):
    enabled: bool
    labels: Labels


class _Notifications(_Section):
    enabled: bool
    long_wait_seconds: Annotated[int, Field(ge=1)]
    slowdown_percent: Annotated[int, Field(ge=1)]
    receivers: dict[Name, dict[str, Any]]
    image: str
    resources: _Resources


class _Monitoring(_Section):
    operator: Literal["auto", "always", "never"]
    labels: Labels
    interval: Annotated[str, Field(pattern=r"^\d+(ms|s|m|h)$")]
    dashboards: _Dashboards
    notifications: _Notifications


class Values(_Section):
    """The whole of values.yaml."""

    mode: Literal["schedule", "shadow"]
    image: _Image
    scheduler: _Scheduler
    shadow: _Shadow
    predictor: _Predictor
    agent: _Agent
    dra: _Dra
    webhook: _Webhook
    access: _Access
    priority_class: _PriorityClass
    policies: _Policies
    network_policies: _NetworkPolicies
    monitoring: _Monitoring


def schema() -> dict[str, Any]:
    """Return the JSON schema of values.yaml.

    Nothing is required, because the chart's own values.yaml gives everything a value.
    """
    made = Values.model_json_schema(by_alias=True)
    definitions = made["$defs"]
    for model, names in SET_BY_THE_CHART.items():
        for name in names:
            del definitions[model.__name__]["properties"][name]
    profile = definitions["ExtenderConfig"]["properties"]["profile"]
    spelt_out = {"$ref": profile.pop("$ref")}
    profile["anyOf"] = [{"enum": profile_names()}, spelt_out]
    # In a parent chart, Helm hands its `global` values down.
    made["properties"]["global"] = {"type": "object"}
    root = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_plain(made)}
    root["$defs"] = _reached(root, root["$defs"])
    return root


def _plain(node: Any) -> Any:  # noqa: ANN401 - any JSON
    """Drop what Helm does not read (titles, OpenAPI's discriminator) and what it may not demand."""
    if isinstance(node, list):
        return [_plain(part) for part in node]
    if not isinstance(node, dict):
        return node
    plain = {}
    for key, part in node.items():
        if key in ("properties", "$defs"):  # names, not keywords
            plain[key] = {name: _plain(inner) for name, inner in part.items()}
            if key == "$defs":
                for definition in plain[key].values():
                    definition.pop("description", None)  # of programmers, to programmers
        elif key not in ("title", "discriminator", "default", "format"):
            plain[key] = _plain(part)
    if "const" not in str(node.get("properties", "")):  # `kind` tells policies apart
        plain.pop("required", None)
    return plain


def _reached(root: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the definitions that anything refers to."""
    found: dict[str, Any] = {}

    def visit(node: Any) -> None:  # noqa: ANN401 - any JSON
        if isinstance(node, list):
            for part in node:
                visit(part)
        elif isinstance(node, dict):
            name = str(node.get("$ref", "")).removeprefix("#/$defs/")
            if name and name not in found:
                found[name] = definitions[name]
                visit(definitions[name])
            for key, part in node.items():
                if key != "$defs":
                    visit(part)

    visit(root)
    return dict(sorted(found.items()))
