"""What is asked of an API server about Kueue's levels of topology, and what its answers mean."""

import pytest
from fake_api import status

from scheduler_extender.serving.levels import read_levels
from tandem.contracts.levels import LevelsError
from tandem.kube.client import KubeClient

PATHS = [f"/apis/kueue.x-k8s.io/{version}/topologies/tas" for version in ("v1beta2", "v1beta1")]
TOPOLOGY = {"metadata": {"name": "tas"}, "spec": {"levels": [{"nodeLabel": "example.com/rack"}]}}


@pytest.fixture
def ask(serve):
    """Return a call that reads the levels where the API server answers so, and its requests."""
    clients = []

    def ask(handler):
        api = serve(handler)
        clients.append(KubeClient.with_token(api.host, "t", None))
        return lambda: read_levels(clients[-1], "tas"), api.requests

    yield ask
    for client in clients:
        client.close()


def test_without_the_definition_each_path_is_not_found(ask):
    """As is an object that does not exist."""
    read, requests = ask(lambda request: status(404, "NotFound"))
    with pytest.raises(LevelsError, match="Kueue has no Topology tas here"):
        read()
    assert [request.path for request in requests] == PATHS


def test_the_newer_version_is_asked_for_first(ask):
    read, requests = ask(lambda request: (200, TOPOLOGY))
    assert read() == ("example.com/rack",)
    assert [request.path for request in requests] == PATHS[:1]


def test_an_older_kueue_serves_the_older_version(ask):
    read, _ = ask(
        lambda request: (200, TOPOLOGY) if "v1beta1" in request.path else status(404, "NotFound")
    )
    assert read() == ("example.com/rack",)


def test_a_right_that_is_missing_is_said(ask):
    read, requests = ask(lambda request: status(403, "Forbidden"))
    with pytest.raises(LevelsError):
        read()
    assert [each.path for each in requests if each.path != "/readyz"] == PATHS[:1]
