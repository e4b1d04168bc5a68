"""Reads what the agents of a cluster have seen of its models, as profiles to learn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from predictor.training.profiles import Origin, Profile
from tandem.contracts.resources import ModelProfileSpec, ModelProfileStatus

#: Observations that one namespace may contribute: none outweighs the others.
MOST_OF_NAMESPACE = 200


def observed_profiles(items: Iterable[Mapping[str, Any]]) -> Iterator[Profile]:
    """Yield a profile for each observation that ModelProfiles have of the graph they stand for.

    A graph is its own family, whichever namespace pushed it: what is learned is tested on graphs
    that were left out. How often a kind of run was seen does not count, so that repetition gives no
    job more weight.
    """
    taken: Counter[str] = Counter()
    seen: set[tuple[str, int, str]] = set()
    for item in sorted(items, key=lambda item: _key(item["metadata"])):
        namespace = str(item["metadata"].get("namespace", ""))
        spec = ModelProfileSpec.model_validate(item["spec"])
        status = ModelProfileStatus.model_validate(item.get("status") or {})
        for run in status.observed:
            kind = (spec.feature_hash, run.batch_size, run.gpu_model)
            stale = run.feature_hash != spec.feature_hash
            # A profile is of a whole batch; of one in micro-batches nothing is learned.
            split = run.accumulation_steps > 1
            if stale or split or kind in seen or taken[namespace] >= MOST_OF_NAMESPACE:
                continue
            seen.add(kind)
            taken[namespace] += 1
            yield Profile(
                name=f"{namespace}/{item['metadata']['name']}",
                family=spec.feature_hash,
                origin=Origin.OBSERVED,
                features=spec.features,
                batch_size=run.batch_size,
                gpu_model=run.gpu_model,
                memory_peak_bytes=run.memory_peak_bytes,
                utilisation_percent=run.utilisation_percent,
            )


def read_cluster(kubeconfig: Path | None, context: str | None = None) -> list[Profile]:
    """Return the profiles of all namespaces; raises KubeError where they cannot be read."""
    from tandem.kube.client import KubeClient
    from tandem.kube.resource import MODEL_PROFILES

    client = KubeClient.load(kubeconfig, context)
    try:
        return list(observed_profiles(client.list(MODEL_PROFILES)))
    finally:
        client.close()


def _key(metadata: Mapping[str, Any]) -> tuple[str, str]:
    return str(metadata.get("namespace", "")), str(metadata["name"])
