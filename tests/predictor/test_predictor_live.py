"""ModelProfiles in a real API server: the store as the service uses it in a cluster."""

from __future__ import annotations

import pytest
from predictor_graphs import light

from predictor.errors import ModelNotFoundError, StoreUnavailableError
from predictor.store import ClusterProfileStore
from tandem.contracts import crds
from tandem.contracts.prediction import Feedback
from tandem.errors import UsageError
from tandem.kube.client import KubeClient

pytestmark = [pytest.mark.controlplane]


@pytest.fixture(scope="module")
def plane(control_plane):
    for definition in crds.DEFINITIONS:
        manifest = definition.manifest()
        control_plane.apply(manifest)
        control_plane.kubectl(
            "wait", "--for=condition=Established", "--timeout=120s",
            f"crd/{manifest['metadata']['name']}",
        )  # fmt: skip
    return control_plane


@pytest.fixture
def store(plane):
    client = KubeClient.load(plane.kubeconfig())
    yield ClusterProfileStore(client)
    client.close()


def test_profiles_outlive_the_service_and_are_replaced(plane, store, namespace, sandbox):
    vgg, squeeze = (sandbox.parse_file([light(n)]) for n in ("vgg19", "squeezenet"))
    stored = store.put(namespace, "m", vgg, "test")
    assert stored.features == vgg.features
    restarted = ClusterProfileStore(KubeClient.load(plane.kubeconfig()))
    assert restarted.get(namespace, "m") == stored
    assert store.put(namespace, "m", squeeze, "test").features == squeeze.features
    assert [m.name for m in restarted.list(namespace)] == ["m"]
    assert restarted.get(namespace, "m").features == squeeze.features
    header, row = plane.kubectl("get", "mp", "-n", namespace).splitlines()
    assert header.split()[:3] == ["NAME", "PARAMETERS", "FLOPS"]
    assert row.split()[:2] == ["m", str(squeeze.features.parameters)]
    run = Feedback(
        namespace=namespace, model="m", batch_size=8, gpu_model="Tesla T4",
        memory_base_bytes=1, memory_peak_bytes=2, utilisation_percent=3.5,
    )  # fmt: skip
    store.observe(run, "2026-01-01T00:00:00.000000Z")
    store.put(namespace, "m", squeeze, "test")
    (seen,) = restarted.get(namespace, "m").observed
    assert (seen.runs, seen.utilisation_percent) == (1, 3.5)
    store.delete(namespace, "m")
    with pytest.raises(ModelNotFoundError):
        restarted.get(namespace, "m")


def test_a_namespace_that_is_not_there_is_named(store, sandbox):
    with pytest.raises(UsageError, match="no namespace 'nowhere'"):
        store.put("nowhere", "m", sandbox.parse_file([light("vgg19")]), "test")
    store.check()


def test_an_account_without_rights_is_explained(plane, namespace):
    client = KubeClient.load(plane.kubeconfig("somebody"))
    with pytest.raises(StoreUnavailableError, match="modelprofiles"):
        ClusterProfileStore(client).get(namespace, "m")
