"""The settings of the predictor service."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from predictor.service.sandbox import SandboxLimits
from tandem.errors import UsageError
from tandem.files import read_yaml
from tandem.settings import Section

#: Settings that were removed, and what an operator does instead.
REMOVED = {
    "parallel_uploads": "it is a constant (8); leave it out",
    "upload_idle_s": "it is a constant (30); leave it out",
    "body_bytes": "it is a constant (4 MiB); leave it out",
}


class StoreKind(StrEnum):
    """Where models are kept."""

    CLUSTER = "cluster"
    MEMORY = "memory"


class PredictorConfig(Section):
    """Every setting, with its default; unknown keys are refused."""

    host: str = "0.0.0.0"  # noqa: S104 - a service of a pod is reached at any of its addresses
    port: Annotated[int, Field(ge=0, le=65535)] = 8090
    store: StoreKind = StoreKind.CLUSTER
    kubeconfig: Path | None = None
    #: A file with weights may be this large; of it only the graph is kept (`sandbox.graph_bytes`).
    upload_bytes: Annotated[int, Field(gt=0)] = 16 << 30
    #: Directory of trained models (`tandem train --out`); without one, those that ship serve.
    artifacts: Path | None = None
    #: Whether a learned model of loads answers; false: the formula does, on every type of GPU.
    learned_load: bool = True
    sandbox: SandboxLimits = SandboxLimits()


def load_config(path: Path | None, overrides: dict[str, object]) -> PredictorConfig:
    """Read a YAML file, put `overrides` on top; raises UsageError naming the bad setting."""
    settings: dict[str, object] = {}
    if path is not None:
        read = read_yaml(path, "Settings are YAML by name, such as `port: 8090`.")
        if not isinstance(read, dict | None):
            raise UsageError(f"{path} must hold settings by name, such as `port: 8090`.")
        settings = read or {}
    given = {key: value for key, value in overrides.items() if value is not None}
    try:
        return PredictorConfig.model_validate(settings | given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if where in REMOVED:
            raise UsageError(f"Setting {where} was removed: {REMOVED[where]}.") from None
        raise UsageError(f"Setting {where}: {first['msg']}.") from None
