"""The extender's configuration: one YAML file; each mistake is refused with its path."""

from __future__ import annotations

import math
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from scheduler_extender.admission.config import AdmissionConfig, Rotation
from scheduler_extender.cluster.kinds import WorkloadKind, once_each_kind
from scheduler_extender.learning.config import LearningConfig
from scheduler_extender.quotas.config import Quota, once_each
from tandem.contracts import names
from tandem.errors import TandemError, UsageError
from tandem.files import read_yaml
from tandem.policy.catalog import Profile, load_profile
from tandem.settings import Section

_SHOWN = 80  # characters of a wrong value that are repeated
#: Settings that were removed, and what an operator does instead.
REMOVED = {
    "certificate.renew_days": "it is a quarter of certificate.valid_days",
    "certificate.overlap_s": "it is five times certificate.look_s",
    "leader.namespace": "set namespace, at the top of the file",
    "leader.lease": f"the name of the Lease is always {names.LEASE_NAME}",
    "learning.clear_interference": "it is 5/7 of learning.max_interference",
    "learning.max_migration_cost_gib": "it is a constant (80); leave it out",
    "learning.max_moves_of_others_per_hour": "it is a constant (2); leave it out",
    "learning.rest_s": "it is a constant (600); leave it out",
    "learning.weight_of_past": "it is a constant (0.7); leave it out",
    "public.namespace": "set namespace, at the top of the file",
    "queue.history_jobs": "it is a constant (1000); leave it out",
    "queue.partial_gang_s": "it is a constant (60); leave it out",
}

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]


class Listen(Section):
    """Where kube-scheduler calls; port 0 takes a free one, which is logged.

    TLS where the files of a certificate are named; they are read anew when they change. With
    `client_ca`, only callers with a certificate of one of its authorities are heard.
    `shared_with_scheduler` is a folder that only the kube-scheduler of the same pod mounts too. The
    extender makes the certificates of both there, and hears only callers that show theirs.
    """

    host: str = "127.0.0.1"
    port: Port = 8880
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None
    shared_with_scheduler: Path | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.shared_with_scheduler is not None and self.tls_cert is not None:
            raise ValueError("shared_with_scheduler takes the place of tls_cert")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key come together")
        if self.client_ca is not None and self.tls_cert is None:
            raise ValueError("client_ca needs tls_cert and tls_key")
        return self


class Public(Listen):
    """The port for others: webhook, read-only API, metrics, probes.

    TLS with the files where they are named; otherwise, in a cluster, with a certificate of our own
    that all replicas share in a Secret, made for `service_names`, and installed in the webhook's
    configuration; `certificate` says how it is replaced. The in-memory API has no webhook and needs
    none.
    """

    host: str = "0.0.0.0"  # noqa: S104 - the API server and Prometheus come from elsewhere
    port: Port = 8443
    service_names: tuple[str, ...] = (f"tandem-webhook.{names.NAMESPACE}.svc", "localhost")


class Leader(Section):
    """Whose Lease says that this replica acts: that of the kube-scheduler in the same pod.

    `hostname` is the holder's name before the underscore; the machine's own where it is empty.
    With `always`, there is one replica and it always acts.
    """

    always: bool = False
    hostname: str = ""


class QueueConfig(Section):
    """Settings of the queue, apart from the profile's order.

    `min_run_s`: how long a gang that runs is left alone. `preemption_cost_s`: what a preemption
    costs: a job gives way only if its service exceeds that of the waiting job by this times its
    GPUs. `reserve_after_s`: after this wait, the longest waiting job has GPUs kept free. `quotas`:
    what namespaces may have of the GPUs; `quota_window_s` is the window of their `gpu_seconds`.
    `start_within_s`: containers of a placed pod that have not started within this time of its
    Binding give up its GPUs; while an image is pulled, `pull_within_s` counts.
    `expected_start_every_s`: how often it is forecast when waiting jobs will start; 0: never.
    """

    plan_life_s: Seconds = 30.0
    min_run_s: Annotated[float, Field(ge=0)] = 300.0
    max_preemptions_per_hour: Annotated[int, Field(ge=0, le=100)] = 4
    preemption_cost_s: Annotated[float, Field(ge=0)] = 60.0
    reserve_after_s: Seconds = 1800.0
    quotas: Annotated[tuple[Quota, ...], AfterValidator(once_each)] = ()
    quota_window_s: Seconds = 604_800.0
    start_within_s: Seconds = 600.0
    pull_within_s: Seconds = 3600.0
    expected_start_every_s: Annotated[float, Field(ge=0)] = 60.0


def _by_name(value: object) -> object:
    return load_profile(value) if isinstance(value, str) else value


class ExtenderConfig(Section):
    """Everything that can be set.

    In `namespace` Tandem is installed and keeps its objects; agents run in `agent_namespace`.
    """

    api: Literal["cluster", "memory"] = "cluster"
    namespace: str = names.NAMESPACE
    agent_namespace: str = names.AGENT_NAMESPACE
    kubeconfig: Path | None = None
    verbs: Listen = Listen()
    public: Public = Public()
    probes: Listen | None = None
    tunnel: Listen | None = None
    profile: Annotated[Profile, BeforeValidator(_by_name)] = Field(
        default_factory=lambda: load_profile("tandem"),
        description="the name of a shipped profile, or one spelt out",
    )
    max_jobs_per_gpu: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None, description="none: as many as the profile says"
    )
    interference_bound: Annotated[float, Field(ge=0)] | None = Field(
        default=None,
        description="the most that a job may be slowed down by its neighbours, as predicted: 1 is"
        " twice the time; none: as the profile says",
    )
    stale_after_s: Seconds = 150.0
    predictor_url: str | None = None
    predictor_token_file: Path | None = None
    certificate: Rotation = Rotation()
    leader: Leader = Leader()
    queue: QueueConfig = QueueConfig()
    learning: LearningConfig = LearningConfig()
    admission: AdmissionConfig = AdmissionConfig()
    kinds: Annotated[
        tuple[WorkloadKind, ...], Field(max_length=256), AfterValidator(once_each_kind)
    ] = Field(
        default=(),
        description="kinds of workloads besides those that Tandem ships, or in place of them"
        " (docs/workloads.md)",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @property
    def shares(self) -> int:
        """The largest number of jobs on a GPU."""
        return self.max_jobs_per_gpu or self.profile.max_jobs_per_gpu

    @model_validator(mode="before")
    @classmethod
    def _bounded(cls, values: object) -> object:
        """Write the bound on interference into the profile, the one place that decisions read."""
        if not isinstance(values, dict) or values.get("interference_bound") is None:
            return values
        profile = Profile.model_validate(_by_name(values.get("profile", "tandem")))
        kinds = [constraint.kind for constraint in profile.constraints]
        if "interference" not in kinds:
            raise ValueError(
                f"interference_bound: profile {profile.name} has no constraint interference"
            )
        constraints = [constraint.model_dump() for constraint in profile.constraints]
        constraints[kinds.index("interference")]["max_interference"] = values["interference_bound"]
        bounded = profile.model_dump() | {"constraints": constraints}
        return values | {"profile": Profile.model_validate(bounded)}

    @model_validator(mode="after")
    def _can_be_honoured(self) -> Self:
        """Refuse a profile that this cluster would run as another system under its name."""
        profile = self.profile
        if self.shares < profile.max_jobs_per_gpu:
            raise ValueError(
                f"max_jobs_per_gpu: profile {profile.name} puts up to {profile.max_jobs_per_gpu}"
                f" jobs on a GPU, not {self.shares}; leave it out, or spell the profile out with"
                " fewer"
            )
        if profile.adjust is not None and self.learning.mode != "act":
            raise ValueError(
                f"learning.mode: profile {profile.name} adjusts by what is measured"
                f" ({profile.adjust.kind}), which needs act, not {self.learning.mode}"
            )
        if profile.adjust is not None and profile.adjust.kind == "learn":
            raise ValueError(
                f"profile.adjust: {profile.name} has kind learn, which is the simulator's; a"
                " cluster learns by the section learning"
            )
        slice_s, most = profile.order.slice_s, self.queue.max_preemptions_per_hour
        if math.isfinite(slice_s) and self.queue.min_run_s > slice_s:
            raise ValueError(
                f"queue.min_run_s: profile {profile.name} looks again every {slice_s:g} s, so that"
                f" a run may be no longer than that before it gives way, not"
                f" {self.queue.min_run_s:g} s"
            )
        if math.isfinite(slice_s) and most < min(100, 3600 / slice_s):
            raise ValueError(
                f"queue.max_preemptions_per_hour: slices of {slice_s:g} s need"
                f" {min(100, math.ceil(3600 / slice_s))}, not {most}"
            )
        return self


class ConfigError(TandemError):
    """The file cannot be used; the message has one line per mistake."""


def read_config(path: Path | None) -> ExtenderConfig:
    """Return the configuration in a file; the defaults where none is named.

    Raises:
        ConfigError: the file is missing, is no YAML, or has mistakes; each with its path.
    """
    if path is None:
        return ExtenderConfig()
    try:
        document = read_yaml(path, "name a file of settings in YAML")
    except UsageError as error:
        raise ConfigError(error.message, error.hint) from error
    try:
        return ExtenderConfig.model_validate(document or {})
    except ValidationError as error:
        lines = [f"{path}: {_said(mistake)}" for mistake in error.errors()]
        raise ConfigError("\n".join(lines), "docs/extender.md says what can be set") from error


def _said(mistake: ErrorDetails) -> str:
    """Say a mistake with its path and, for an unknown key, the nearest known ones."""
    where = mistake["loc"]
    if not where and mistake["type"] == "value_error":
        return mistake["msg"].removeprefix("Value error, ")  # it names the field itself
    path = ".".join(map(str, where)) or "the file"
    if mistake["type"] != "extra_forbidden":
        shown = "" if mistake["type"] == "missing" else f", not {mistake['input']!r}"
        return f"{path}: {mistake['msg'].removeprefix('Value error, ')}{shown[:_SHOWN]}"
    if path in REMOVED:
        return f"{path}: this setting was removed; {REMOVED[path]}"
    known = _keys(where[:-1])
    near = get_close_matches(str(where[-1]), known, n=2) or known
    return f"{path}: there is no such key; nearest: {', '.join(near)}"


def _keys(where: tuple[int | str, ...]) -> list[str]:
    """Return the keys of the section at a path, none where it is no section of ours."""
    model: type[BaseModel] = ExtenderConfig
    for part in where:
        field = model.model_fields.get(str(part))
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)
