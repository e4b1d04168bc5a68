"""Trained models as files: versioned by their hash, published in one step, rolled back in one.

A directory holds, per kind of model, `KIND-VERSION.PART` (a model as `NAME.ubj`, and as the
`NAME.json` that XGBoost made of it), `KIND-VERSION.json` (its card: the sha256 of every part, its
features, its errors), a report for people, and `KIND-current.json`, which names the version that
serves and the ones before it. Each file appears by a rename and the last of them is the pointer, so
that a kill at any moment leaves either the old state or the new one. A model is data (UBJSON),
never code.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from tandem.errors import TandemError

_VERSION_LENGTH = 12


class Card(BaseModel):
    """The card of a trained model: its origin and its quality."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    #: sha256 by part, `NAME.ubj` or `NAME.json`.
    parts: dict[str, str]
    features: list[str]
    trained_on: dict[str, int]
    errors: dict[str, dict[str, float]]
    chosen: str
    #: What a kind of model needs apart from its parts, such as its margins.
    details: dict[str, Any] = {}

    @field_validator("parts")
    @classmethod
    def _with_suffix(cls, parts: dict[str, str]) -> dict[str, str]:
        """Let cards be read that were written when UBJSON was all there was."""
        return {name if "." in name else f"{name}.ubj": sha for name, sha in parts.items()}


class _Current(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    before: list[str] = []


class ArtifactError(TandemError):
    """A trained model is missing or damaged."""


#: Trained models that come with Tandem, with a card of where they are from.
SHIPPED = Path(__file__).parent / "data"


def serving(directory: Path | None, kind: str) -> tuple[dict[str, bytes], Card] | None:
    """Return the parts and card of the model of `directory`, else of the one that is shipped.

    Raises ArtifactError when its files are missing, or not what was published.
    """
    found = Artifacts(directory).load(kind) if directory else None
    return found or Artifacts(SHIPPED).load(kind)


class Artifacts:
    """The trained models of one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def publish(
        self,
        kind: str,
        parts: dict[str, bytes],
        card: dict[str, Any],
        report: dict[str, str] | None = None,
    ) -> Card:
        """Store the parts of a model and let it serve; returns its card. The one before is kept.

        `report` has texts for people by the suffix of their file (`md`, `svg`).
        """
        digests = {name: hashlib.sha256(part).hexdigest() for name, part in sorted(parts.items())}
        published = Card(version=_version(digests), parts=digests, **card)
        self._directory.mkdir(parents=True, exist_ok=True)
        for name, part in parts.items():
            _write(self._path(kind, published.version, name), part)
        for suffix, text in (report or {}).items():
            _write(self._path(kind, published.version, suffix), text.encode())
        _write(
            self._path(kind, published.version, "json"),
            (published.model_dump_json(indent=1) + "\n").encode(),
        )
        known = self._current(kind)
        before = [] if known is None else [known.version, *known.before]
        before = [version for version in before if version != published.version]
        self._point(kind, _Current(version=published.version, before=before))
        return published

    def load(self, kind: str) -> tuple[dict[str, bytes], Card] | None:
        """Return the parts of the model that serves, and its card; None when none was published.

        Raises ArtifactError when its files are missing, or not what was published.
        """
        current = self._current(kind)
        if current is None:
            return None
        try:
            card = Card.model_validate_json(self._path(kind, current.version, "json").read_bytes())
            parts = {
                name: self._path(kind, current.version, name).read_bytes() for name in card.parts
            }
        except (OSError, ValidationError) as error:
            raise _damaged(self._directory, kind, current.version) from error
        if any(hashlib.sha256(parts[name]).hexdigest() != sha for name, sha in card.parts.items()):
            raise _damaged(self._directory, kind, current.version)
        return parts, card

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


def _version(digests: dict[str, str]) -> str:
    # A model that is not XGBoost's is JSON alone.
    models = "".join(sha for name, sha in digests.items() if name.endswith(".ubj")) or "".join(
        digests.values()
    )
    return hashlib.sha256(models.encode()).hexdigest()[:_VERSION_LENGTH]


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
