"""From ModelProfiles with what agents have seen to profiles to learn from."""

from predictor.training.from_cluster import MOST_OF_NAMESPACE, observed_profiles
from predictor.training.profiles import Origin
from tandem.contracts.resources import (
    GraphFeatures,
    ModelProfileSpec,
    ModelProfileStatus,
    Observation,
)

FEATURES = GraphFeatures(
    flops=1e9, parameters=10, parameter_bytes=40, activation_bytes=100, largest_tensor_bytes=20,
    tensor_skew=0.5, nodes=3, depth=3, op_counts={}, opset=17,
)  # fmt: skip


def seen(graph: str, batch: int) -> Observation:
    return Observation(
        gpu_model="Tesla V100", batch_size=batch, feature_hash=graph, runs=3, memory_base_bytes=5,
        memory_peak_bytes=7, peak_probability=0.1, utilisation_percent=60,
        last_observed_at="2026-01-01T00:00:00Z",
    )  # fmt: skip


def item(namespace: str, name: str, graph: str, *runs: Observation) -> dict:
    spec = ModelProfileSpec(
        features=FEATURES, feature_hash=graph, file_sha256="0" * 64, file_bytes=1
    )
    status = ModelProfileStatus(observations=len(runs), observed=list(runs))
    return {
        "metadata": {"namespace": namespace, "name": name},
        "spec": spec.wire(),
        "status": status.wire(),
    }


def test_each_kind_of_run_is_one_profile_of_its_graphs_family() -> None:
    (profile,) = observed_profiles([item("ml", "bert", "g1", seen("g1", 32))])
    assert (profile.family, profile.batch_size, profile.origin) == ("g1", 32, Origin.OBSERVED)
    assert (profile.memory_peak_bytes, profile.utilisation_percent) == (7, 60)


def test_what_was_seen_of_another_graph_of_that_name_is_left_out() -> None:
    assert list(observed_profiles([item("ml", "bert", "g2", seen("g1", 32))])) == []


def test_no_namespace_weighs_more_by_repetition_or_by_number() -> None:
    twice = [item("a", "bert", "g1", seen("g1", 32)), item("b", "bert", "g1", seen("g1", 32))]
    assert [p.name for p in observed_profiles(twice)] == ["a/bert"]
    flood = [
        item("flood", f"m{i}", f"g{i}", *(seen(f"g{i}", b) for b in range(1, 61)))
        for i in range(20)
    ]
    assert len(list(observed_profiles(flood))) == MOST_OF_NAMESPACE
