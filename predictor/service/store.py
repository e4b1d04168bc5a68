"""Where the features of pushed models are kept: ModelProfiles in the API server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from predictor.errors import ModelNotFoundError, StoreUnavailableError
from predictor.load.observed import add_run
from predictor.service.sandbox import ParsedModel
from tandem.contracts.names import API_VERSION
from tandem.contracts.prediction import Feedback, ModelSummary
from tandem.contracts.resources import ModelProfileSpec, ModelProfileStatus
from tandem.errors import UsageError
from tandem.kube.api import ClusterApi
from tandem.kube.client import Object
from tandem.kube.errors import AlreadyExists, Conflict, Invalid, KubeError, NotFound
from tandem.kube.resource import MODEL_PROFILES

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAMESPACE = re.compile(_DNS_LABEL)
_NAME = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*")
_MAX_NAME = 253
_REPLACE_ATTEMPTS = 4


class ProfileStore(Protocol):
    """Keeps what is known of models; every call raises StoreUnavailableError when it cannot."""

    def put(self, namespace: str, name: str, parsed: ParsedModel, producer: str) -> ModelSummary:
        """Store or replace a model's features."""
        ...

    def get(self, namespace: str, name: str) -> ModelSummary:
        """Return a model; raises ModelNotFoundError."""
        ...

    def list(self, namespace: str | None) -> list[ModelSummary]:
        """Return the models of a namespace, or of all."""
        ...

    def delete(self, namespace: str, name: str) -> None:
        """Forget a model; raises ModelNotFoundError."""
        ...

    def observe(self, run: Feedback, now: str) -> ModelSummary:
        """Put one run into what was observed of its model; raises ModelNotFoundError."""
        ...

    def check(self) -> None:
        """Return when the store answers."""
        ...


class ClusterProfileStore:
    """Profiles in an API server (real, or in memory): nothing here outlives a restart of ours."""

    def __init__(self, api: ClusterApi) -> None:
        self._api = api

    def put(self, namespace: str, name: str, parsed: ParsedModel, producer: str) -> ModelSummary:
        """Create the ModelProfile, or replace its spec; what was observed (status) stays."""
        check_names(namespace, name)
        spec = ModelProfileSpec(
            features=parsed.features,
            feature_hash=parsed.feature_hash,
            file_sha256=parsed.file_sha256,
            file_bytes=parsed.file_bytes,
            producer=producer,
        )
        body: Object = {
            "apiVersion": API_VERSION,
            "kind": MODEL_PROFILES.kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec.wire(),
        }
        try:
            for _ in range(_REPLACE_ATTEMPTS):
                try:
                    return _summary(self._api.create(MODEL_PROFILES, body, namespace))
                except AlreadyExists:
                    pass
                try:
                    known = self._api.get(MODEL_PROFILES, name, namespace)
                    replaced = known | {"spec": body["spec"]}
                    return _summary(self._api.replace(MODEL_PROFILES, replaced, namespace))
                except (Conflict, NotFound):
                    continue  # somebody else changed or deleted it in between
        except NotFound:
            raise UsageError(
                f"There is no namespace {namespace!r}, or ModelProfiles are not installed.",
                "Create the namespace first; the chart installs the custom resources.",
            ) from None
        except Invalid as error:
            raise UsageError(f"The API server refused the model: {error.message}") from None
        except KubeError as error:
            raise _unavailable(error) from error
        raise _contended(name)

    def get(self, namespace: str, name: str) -> ModelSummary:
        """Return a model; raises ModelNotFoundError."""
        check_names(namespace, name)
        with _asked_of(namespace, name):
            return _summary(self._api.get(MODEL_PROFILES, name, namespace))

    def list(self, namespace: str | None) -> list[ModelSummary]:
        """Return the models of a namespace, or of all, by namespace and name."""
        if namespace is not None:
            check_names(namespace)
        try:
            found = [_summary(item) for item in self._api.list(MODEL_PROFILES, namespace)]
        except KubeError as error:
            raise _unavailable(error) from error
        return sorted(found, key=lambda model: (model.namespace, model.name))

    def delete(self, namespace: str, name: str) -> None:
        """Delete the ModelProfile; raises ModelNotFoundError."""
        check_names(namespace, name)
        with _asked_of(namespace, name):
            self._api.delete(MODEL_PROFILES, name, namespace)

    def observe(self, run: Feedback, now: str) -> ModelSummary:
        """Write the status of the ModelProfile; raises ModelNotFoundError."""
        check_names(run.namespace, run.model)
        with _asked_of(run.namespace, run.model):
            for _ in range(_REPLACE_ATTEMPTS):
                item = self._api.get(MODEL_PROFILES, run.model, run.namespace)
                model = _summary(item)
                status = ModelProfileStatus.model_validate(item.get("status") or {})
                changed = item | {"status": add_run(status, model.feature_hash, run, now).wire()}
                try:
                    stored = self._api.replace(
                        MODEL_PROFILES, changed, run.namespace, subresource="status"
                    )
                    return _summary(stored)
                except Conflict:
                    continue  # another run of it was put in meanwhile
        raise _contended(run.model)

    def check(self) -> None:
        """Ask for one object that need not be there."""
        try:
            self._api.get(MODEL_PROFILES, "readiness", "default")
        except NotFound:
            pass
        except KubeError as error:
            raise _unavailable(error) from error


def check_names(namespace: str, name: str | None = None) -> None:
    """Raise UsageError unless both are names that Kubernetes takes."""
    if not _NAMESPACE.fullmatch(namespace):
        raise UsageError(
            f"Namespace {namespace[:80]!r} is not a name that Kubernetes takes.",
            "Use up to 63 lower-case letters, digits and dashes.",
        )
    if name is not None and (len(name) > _MAX_NAME or not _NAME.fullmatch(name)):
        raise UsageError(
            f"Model name {name[:80]!r} is not a name that Kubernetes takes.",
            "Use lower-case letters, digits, dashes and dots, such as resnet-50.",
        )


def _summary(item: Object) -> ModelSummary:
    metadata = item["metadata"]
    spec = ModelProfileSpec.model_validate(item["spec"])
    return ModelSummary(
        namespace=metadata["namespace"],
        name=metadata["name"],
        feature_hash=spec.feature_hash,
        file_sha256=spec.file_sha256,
        file_bytes=spec.file_bytes,
        features=spec.features,
        observed=ModelProfileStatus.model_validate(item.get("status") or {}).observed,
    )


@contextmanager
def _asked_of(namespace: str, name: str) -> Iterator[None]:
    """Say in our errors what the API server refuses of a model."""
    try:
        yield
    except NotFound:
        raise ModelNotFoundError(namespace, name) from None
    except KubeError as error:
        raise _unavailable(error) from error


def _contended(name: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"Model {name!r} is being changed by others at the same time.", "Try again."
    )


def _unavailable(error: KubeError) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"The API server cannot be used at present: {error.message}",
        "Try again; if it lasts, check the predictor's service account and its network.",
    )
