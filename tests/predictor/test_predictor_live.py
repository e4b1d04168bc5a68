"""ModelProfiles in a real API server: the store as the service uses it in a cluster."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from predictor_graphs import light
from test_predictor_service import LentSandbox

from controlplane import manifests
from predictor.errors import ModelNotFoundError, StoreUnavailableError
from predictor.service.app import create_app
from predictor.service.config import PredictorConfig
from predictor.service.sandbox import Sandbox
from predictor.service.store import ClusterProfileStore
from tandem.contracts import crds, names
from tandem.contracts.prediction import Feedback
from tandem.errors import UsageError
from tandem.kube.access import Reviews
from tandem.kube.client import KubeClient

pytestmark = [pytest.mark.controlplane]


@pytest.fixture(scope="module")
def plane(control_plane):
    for definition in crds.DEFINITIONS:
        manifest = definition.manifest()
        control_plane.apply(manifest)
        control_plane.await_definitions(manifest["metadata"]["name"])
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


# --- who may ask ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def accounts(plane):
    """The chart's own accounts and rights, and its policy on who writes custom resources.

    Other tests have this plane after us, so the policy holds here alone.
    """
    plane.apply(manifests.objects(*manifests.FOUNDATIONS))
    plane.apply(
        [each for each in manifests.policies() if each["metadata"]["name"] == "tandem-resources"]
    )
    yield plane
    plane.kubectl("delete", "validatingadmissionpolicybinding", "tandem-resources")


@pytest.fixture
def service(accounts):
    """The service as the chart runs it: with its own account, and asking who asks."""
    box = LentSandbox()
    client = KubeClient.load(
        accounts.service_account_kubeconfig(names.NAMESPACE, "tandem-predictor")
    )
    reviews = Reviews(client, audience=names.PREDICTOR_AUDIENCE)
    with TestClient(
        create_app(PredictorConfig(), ClusterProfileStore(client), box, reviews)
    ) as served:
        yield served
    Sandbox.close(box)
    reviews.close()
    client.close()


def tenant(plane, namespace: str, name: str, role: str) -> str:
    """Return the token of a new account with a role in one namespace."""
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace},
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"{name}-{role}", "namespace": namespace},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": role,
        },
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    plane.apply([account, binding])
    return plane.service_account_token(namespace, name)


def token_for(plane, namespace: str, name: str, audience: str) -> str:
    """Return a token of an account for one audience, as kubelet projects it."""
    answer = plane.http.post(
        f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
        json={
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [audience], "expirationSeconds": 3600},
        },
    )
    return answer.raise_for_status().json()["status"]["token"]


def asked(service, method: str, path: str, token: str, **options) -> int:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return service.request(method, path, headers=headers, **options).status_code


def test_a_tenant_has_its_own_models_and_no_others(accounts, service, namespace):
    """By real tokens and roles: the tenant's own namespace is open to it, another's is not."""
    edits = tenant(accounts, namespace, "edits", "tandem-edit")
    tenant(accounts, namespace, "edits", "tandem-view")
    views = tenant(accounts, namespace, "views", "tandem-view")
    scheduler = token_for(accounts, names.NAMESPACE, "tandem-scheduler", names.PREDICTOR_AUDIENCE)
    others = token_for(accounts, names.NAMESPACE, "tandem-scheduler", "another-service")
    graph = light("squeezenet")

    def push(token: str, where: str) -> int:
        options = {"params": {"name": "m", "namespace": where}, "content": graph}
        return asked(service, "POST", "/v1/models", token, **options)

    def predict(token: str, where: str) -> int:
        body = {"namespace": where, "model": "m", "batchSize": 8}
        return asked(service, "POST", "/v1/predict", token, json=body)

    def feed_back(token: str) -> int:
        run = Feedback(
            namespace=namespace, model="m", batch_size=8, gpu_model="Tesla T4",
            memory_base_bytes=1, memory_peak_bytes=2, utilisation_percent=3.5,
        )  # fmt: skip
        return asked(service, "POST", "/v1/feedback", token, json=run.wire())

    assert [push(t, namespace) for t in ("", "invented", views, edits)] == [401, 401, 403, 201]
    assert push(edits, names.NAMESPACE) == 403
    assert push(edits, "default") == 403
    assert [predict(t, namespace) for t in (edits, views, scheduler)] == [200, 200, 200]
    assert [predict(t, "default") for t in (edits, views, scheduler)] == [403, 403, 200]
    # What runs used is said by the scheduler alone; its token goes to no other service.
    assert [feed_back(t) for t in (edits, views, others, scheduler)] == [403, 403, 401, 200]
    everywhere = [asked(service, "GET", "/v1/models", t) for t in (edits, scheduler)]
    assert everywhere == [403, 200]
    assert asked(service, "DELETE", f"/v1/models/{namespace}/m", views) == 403
    # The rights are worth nothing around the predictor: a policy refuses the same write.
    direct = KubeClient.load(accounts.service_account_kubeconfig(namespace, "edits"))
    with pytest.raises(StoreUnavailableError, match="written by"):
        ClusterProfileStore(direct).delete(namespace, "m")
    direct.close()
    assert asked(service, "DELETE", f"/v1/models/{namespace}/m", edits) == 204
