"""The client and the reflector against a real API server."""

import threading

import pytest

from controlplane import wait_until
from tandem.contracts import names
from tandem.contracts.gangs import OBJECT_NAME, derived_name
from tandem.kube import errors
from tandem.kube.client import KubeClient
from tandem.kube.events import EventRecorder
from tandem.kube.pace import Pace
from tandem.kube.reflector import Reflector, Selector
from tandem.kube.resource import CONFIG_MAPS, NAMESPACES, PODS

pytestmark = [pytest.mark.controlplane]


@pytest.fixture(scope="session")
def admin(control_plane):
    client = KubeClient.load(control_plane.kubeconfig())
    yield client
    client.close()


def config_map(name, **data):
    return {"metadata": {"name": name}, "data": data}


def make_pod(client, namespace, name, **spec):
    body = {
        "metadata": {"name": name},
        # No scheduler of that name: who is bound is bound by the test.
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": "main", "image": "x"}],
            **spec,
        },
    }
    return client.create(PODS, body, namespace)


def test_objects_are_written_and_read(admin, namespace):
    created = admin.create(CONFIG_MAPS, config_map("a", x="1"), namespace)
    with pytest.raises(errors.AlreadyExists):
        admin.create(CONFIG_MAPS, config_map("a"), namespace)
    admin.patch(CONFIG_MAPS, "a", {"data": {"x": "2"}}, namespace)
    with pytest.raises(errors.Conflict):
        admin.replace(CONFIG_MAPS, created, namespace)
    admin.patch(CONFIG_MAPS, "a", {"data": {"y": "3"}}, namespace)
    assert admin.get(CONFIG_MAPS, "a", namespace)["data"] == {"x": "2", "y": "3"}
    with pytest.raises(errors.Conflict):
        admin.delete(CONFIG_MAPS, "a", namespace, uid="another")
    admin.delete(CONFIG_MAPS, "a", namespace, uid=created["metadata"]["uid"])
    with pytest.raises(errors.NotFound):
        admin.get(CONFIG_MAPS, "a", namespace)
    with pytest.raises(errors.Invalid):
        admin.create(CONFIG_MAPS, config_map("Not_A_Name"), namespace)


def test_a_list_is_read_in_pages(admin, namespace):
    for index in range(5):
        admin.create(CONFIG_MAPS, config_map(f"page-{index}"), namespace)
    pages = list(admin.pages(CONFIG_MAPS, namespace, page_size=2))
    assert [len(page.items) for page in pages] == [2, 2, 2]  # and kube-root-ca.crt
    assert len({page.resource_version for page in pages}) == 1, "one moment"


def test_a_user_without_the_right_learns_so(control_plane, namespace):
    outsider = KubeClient.with_token(
        control_plane.url,
        control_plane.service_account_token(namespace, "default"),
        control_plane.ca_file,
    )
    with pytest.raises(errors.Forbidden, match="cannot list"):
        outsider.list(PODS, namespace)


def test_a_binding_carries_the_annotation_in_the_same_update_as_the_node(
    control_plane, admin, namespace
):
    control_plane.add_node("bind-node")
    seen, done = [], threading.Event()

    def take(kind, item):
        node = item["spec"].get("nodeName")
        devices = (item["metadata"].get("annotations") or {}).get("tandem.gpu/visible-devices")
        seen.append((node, devices))
        if node:
            done.set()

    reflector = Reflector(admin, PODS, take, namespace=namespace)
    reflector.start()
    assert reflector.synced.wait(60)
    pod = make_pod(admin, namespace, "bound")
    uid, version = pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]
    devices = {"tandem.gpu/visible-devices": "GPU-1,GPU-2"}

    with pytest.raises(errors.Conflict):
        admin.bind(namespace, "bound", "bind-node", uid="another", annotations=devices)
    admin.patch(PODS, "bound", {"metadata": {"labels": {"touched": "yes"}}}, namespace)
    with pytest.raises(errors.Conflict):
        admin.bind(namespace, "bound", "bind-node", uid=uid, resource_version=version)
    version = admin.get(PODS, "bound", namespace)["metadata"]["resourceVersion"]
    admin.bind(
        namespace, "bound", "bind-node", uid=uid, resource_version=version, annotations=devices
    )
    with pytest.raises(errors.Conflict):
        admin.bind(namespace, "bound", "bind-node", uid=uid)

    assert done.wait(60)
    reflector.stop()
    assert set(seen) == {(None, None), ("bind-node", "GPU-1,GPU-2")}


def test_a_gated_pod_cannot_be_bound(admin, namespace):
    pod = make_pod(admin, namespace, "gated", schedulingGates=[{"name": "tandem.gpu/queue"}])
    with pytest.raises(errors.Conflict, match="schedulingGates"):
        admin.bind(namespace, "gated", "any", uid=pod["metadata"]["uid"])


def test_an_eviction_hits_only_the_pod_that_was_meant(admin, namespace):
    pod = make_pod(admin, namespace, "victim")
    with pytest.raises(errors.Conflict):
        admin.evict(namespace, "victim", uid="another")
    admin.evict(namespace, "victim", uid=pod["metadata"]["uid"])
    with pytest.raises(errors.NotFound):
        admin.get(PODS, "victim", namespace)


@pytest.mark.parametrize(
    "name",
    ["a", "a-b.c", "group-my_group", "a..b", "a.-b", "a-.b", "-a", "a.", "A", "a" * 253, "a" * 254,
     f"{'a' * 64}.b", "1", "a b", "\u00e9", *(
        derived_name("p", {}, {names.COSCHEDULING_GROUP_LABEL: each}, None)
        for each in ("My_Group", "a..b", "G-1", "x" * 63)
     ), derived_name("p", {}, {}, ("K:ind", "n/a" * 200))],
)  # fmt: skip
def test_the_api_server_takes_the_names_that_we_take_for_names(admin, namespace, name):
    ours = OBJECT_NAME.fullmatch(name) is not None and len(name) <= 253
    try:
        admin.create(CONFIG_MAPS, {"metadata": {"name": name}}, namespace)
    except errors.Invalid:
        assert not ours
    else:
        assert ours


def test_describe_shows_the_events_and_how_often(control_plane, admin, namespace):
    pod = make_pod(admin, namespace, "waits")
    recorder = EventRecorder(admin, "tandem-queue", "host-0")
    recorder.record(pod, "Waiting", "n0/GPU-1 has 3 of 12 GiB free", action="Queueing")
    text = control_plane.kubectl("describe", "pod", "waits", "-n", namespace)
    assert "tandem-queue" in text
    assert "n0/GPU-1 has 3 of 12 GiB free" in text


def test_the_mirror_follows_selectors_and_outlives_the_api_server(control_plane, admin, namespace):
    """The API server is restarted and etcd compacted under a watch; the mirror is right again."""
    present, lock = set(), threading.Lock()

    def take(kind, item):
        with lock:
            (present.discard if kind == "DELETED" else present.add)(item["metadata"]["name"])

    reflector = Reflector(
        admin,
        CONFIG_MAPS,
        take,
        namespace=namespace,
        selector=Selector(labels="kept=yes"),
        pace=Pace(backoff_min_s=0.1, request_interval_s=0.5),
    )
    labels = {"labels": {"kept": "yes"}}
    for name in ("a", "b"):
        admin.create(CONFIG_MAPS, {"metadata": {"name": name, **labels}}, namespace)
    reflector.start()
    assert reflector.synced.wait(60)
    assert present == {"a", "b"}
    control_plane.processes["kube-apiserver"].restart()
    control_plane.wait_ready()
    admin.delete(CONFIG_MAPS, "a", namespace)
    admin.create(CONFIG_MAPS, {"metadata": {"name": "c", **labels}}, namespace)
    wait_until(lambda: present == {"b", "c"}, "the mirror is right again")
    reflector.stop()


def test_the_client_of_a_kubeconfig_with_a_token(control_plane, namespace):
    path = control_plane.service_account_kubeconfig(namespace, "default")
    with pytest.raises(errors.Forbidden):
        KubeClient.load(path).list(NAMESPACES)
