"""Trained models as files: versioned by their hash, published in one step, rolled back in one.

A directory holds, per kind of model, `KIND-VERSION.ubj` (the model), `KIND-VERSION.json` (its
sha256, its features, its report) and `KIND-current.json`, which names the version that serves and
the ones before it. Each file appears by a rename, so that a kill at any moment leaves either the
old state or the new one. A model is data (UBJSON), never code.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tandem.errors import TandemError

_VERSION_LENGTH = 12


class Card(BaseModel):
    """What is known of a trained model: where it comes from and how good it is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    sha256: str
    features: list[str]
    trained_on: dict[str, int]
    errors: dict[str, dict[str, float]]
    chosen: str


class _Current(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    before: list[str] = []


class ArtifactError(TandemError):
    """A trained model is missing or damaged."""


class Artifacts:
    """The trained models of one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def publish(self, kind: str, model: bytes, card: dict[str, Any]) -> Card:
        """Store a model and let it serve; returns its card. The one before is kept."""
        digest = hashlib.sha256(model).hexdigest()
        published = Card(version=digest[:_VERSION_LENGTH], sha256=digest, **card)
        self._directory.mkdir(parents=True, exist_ok=True)
        _write(self._path(kind, published.version, "ubj"), model)
        text = published.model_dump_json(indent=2)
        _write(self._path(kind, published.version, "json"), text.encode())
        known = self._current(kind)
        before = [] if known is None else [known.version, *known.before]
        before = [version for version in before if version != published.version]
        self._point(kind, _Current(version=published.version, before=before))
        return published

    def load(self, kind: str) -> tuple[bytes, Card] | None:
        """Return the model that serves and its card; None when none was published.

        Raises ArtifactError when its files are missing, or not what was published.
        """
        current = self._current(kind)
        if current is None:
            return None
        try:
            card = Card.model_validate_json(self._path(kind, current.version, "json").read_bytes())
            model = self._path(kind, current.version, "ubj").read_bytes()
        except (OSError, ValidationError) as error:
            raise _damaged(self._directory, kind, current.version) from error
        if hashlib.sha256(model).hexdigest() != card.sha256:
            raise _damaged(self._directory, kind, current.version)
        return model, card

    def rollback(self, kind: str) -> str:
        """Let the version before the present one serve again; returns it."""
        current = self._current(kind)
        if current is None or not current.before:
            raise ArtifactError(f"There is no earlier {kind} model in {self._directory}.")
        version, *before = current.before
        self._point(kind, _Current(version=version, before=before))
        return version

    def _current(self, kind: str) -> _Current | None:
        try:
            text = self._path(kind, "current", "json").read_bytes()
        except FileNotFoundError:
            return None
        try:
            return _Current.model_validate_json(text)
        except ValidationError as error:
            raise _damaged(self._directory, kind, "current") from error

    def _point(self, kind: str, current: _Current) -> None:
        _write(self._path(kind, "current", "json"), current.model_dump_json().encode())

    def _path(self, kind: str, version: str, suffix: str) -> Path:
        return self._directory / f"{kind}-{version}.{suffix}"


def _damaged(directory: Path, kind: str, version: str) -> ArtifactError:
    return ArtifactError(
        f"The {kind} model {version} in {directory} is missing or damaged.",
        "Roll back with `tandem train rollback`, or train again.",
    )


def _write(path: Path, data: bytes) -> None:
    """Write a file so that others see all of it or nothing, also after a crash."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)  # the service may be another user
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
