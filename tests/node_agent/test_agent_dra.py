"""The DRA driver on its sockets, asked as kubelet asks, with claims of a cluster in memory."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import grpc
import pytest

from node_agent.dra import DRIVER
from node_agent.dra.cdi import Specs, Toolkit
from node_agent.dra.claims import ClaimError, ClaimRef
from node_agent.dra.driver import Driver
from node_agent.dra.messages import DRA, DRA_SERVICE, REGISTRATION, REGISTRATION_SERVICE
from node_agent.dra.services import Services
from tandem.kube.errors import Unavailable
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import RESOURCE_CLAIMS

NODE = "n0"
GPUS = {"gpu-a": "GPU-A", "gpu-b": "GPU-B"}


def result(device, request="gpu", driver=DRIVER, pool=NODE, **more):
    return {"request": request, "driver": driver, "pool": pool, "device": device, **more}


class Kubelet:
    """Asks a driver over its sockets, and has claims allocated."""

    def __init__(self, folder):
        self.api = MemoryCluster()
        self.cdi = folder / "cdi"
        self.inventory = dict(GPUS)
        self.ways = {}
        self.said = []
        self.folder = folder / "kubelet"
        self.start()

    def start(self):
        toolkit = Toolkit([self.cdi])
        self.driver = Driver(
            NODE,
            self.api,
            Specs(self.cdi),
            toolkit,
            lambda: self.inventory,
            lambda uuid: self.ways.get(uuid, ""),
        )
        self.services = Services(self.driver, self.folder, self.said.append)
        self.services.start()

    def call(self, socket, service, method, request, answer):
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            stub = channel.unary_unary(
                f"/{service}/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=answer.FromString,
            )
            return stub(request, timeout=30)

    def register(self, method, request, answer):
        socket = self.services.registration
        return self.call(
            socket, REGISTRATION_SERVICE, method, REGISTRATION[request](), REGISTRATION[answer]
        )

    def claim(self, *results, name="c0", of="tandem.gpu"):
        requests = [{"name": "gpu", "exactly": {"deviceClassName": of}}]
        body = {
            "metadata": {"name": name},
            "spec": {"devices": {"requests": requests}},
            "status": allocated(*results),
        }
        uid = self.api.create(RESOURCE_CLAIMS, body, "team")["metadata"]["uid"]
        return DRA["Claim"](namespace="team", name=name, uid=uid)

    def prepare(self, *claims):
        request = DRA["NodePrepareResourcesRequest"](claims=claims)
        answer = DRA["NodePrepareResourcesResponse"]
        socket = self.services.endpoint
        return self.call(socket, DRA_SERVICE, "NodePrepareResources", request, answer).claims

    def unprepare(self, *claims):
        request = DRA["NodeUnprepareResourcesRequest"](claims=claims)
        answer = DRA["NodeUnprepareResourcesResponse"]
        socket = self.services.endpoint
        return self.call(socket, DRA_SERVICE, "NodeUnprepareResources", request, answer).claims

    def files(self):
        return sorted(path.name for path in self.cdi.iterdir()) if self.cdi.exists() else []

    def environment(self, cdi_id):
        """Return what a runtime would set for a CDI name of ours."""
        kind, _, name = cdi_id.partition("=")
        for path in self.cdi.glob("*.json"):
            spec = json.loads(path.read_text())
            if spec["kind"] == kind:
                for device in spec["devices"]:
                    if device["name"] == name:
                        return dict(e.partition("=")[::2] for e in device["containerEdits"]["env"])
        return None


def allocated(*results):
    return {"allocation": {"devices": {"results": list(results)}}}


@pytest.fixture
def kubelet():
    # A socket's path has at most 107 bytes, and pytest's folder of a test may be longer.
    with TemporaryDirectory(prefix="dra-") as folder:
        kubelet = Kubelet(Path(folder))
        yield kubelet
        kubelet.services.stop()


def test_kubelet_learns_who_the_driver_is_and_where(kubelet):
    info = kubelet.register("GetInfo", "InfoRequest", "PluginInfo")
    assert (info.type, info.name) == ("DRAPlugin", "tandem.gpu")
    assert info.endpoint == str(kubelet.folder / "plugins" / DRIVER / "dra.sock")
    assert list(info.supported_versions) == ["v1.DRAPlugin"]
    kubelet.register("NotifyRegistrationStatus", "RegistrationStatus", "RegistrationStatusResponse")
    assert kubelet.said == ["kubelet gives no reason"]


def test_two_claims_of_one_gpu_get_the_variable_with_its_uuid(kubelet):
    first = kubelet.claim(result("gpu-a", shareID="s1"), name="first")
    second = kubelet.claim(result("gpu-a", shareID="s2"), name="second")
    answers = kubelet.prepare(first, second)
    for claim, share in ((first, "s1"), (second, "s2")):
        (device,) = answers[claim.uid].devices
        assert answers[claim.uid].error == ""
        assert (device.pool_name, device.device_name, device.share_id) == (NODE, "gpu-a", share)
        assert list(device.request_names) == ["gpu"]
        (cdi,) = device.cdi_device_ids
        assert kubelet.environment(cdi) == {"NVIDIA_VISIBLE_DEVICES": "GPU-A"}
    assert len(kubelet.files()) == 2


def test_prepared_again_after_a_restart_the_answer_is_the_same(kubelet):
    claim = kubelet.claim(result("gpu-a"), result("gpu-b"))
    before = kubelet.prepare(claim)[claim.uid]
    kubelet.services.stop()
    kubelet.start()
    assert kubelet.prepare(claim)[claim.uid] == before
    assert len(kubelet.files()) == 1
    (cdi,) = set(before.devices[0].cdi_device_ids)
    assert kubelet.environment(cdi) == {"NVIDIA_VISIBLE_DEVICES": "GPU-A,GPU-B"}


@pytest.mark.parametrize(
    ("way", "of", "fine"),
    [
        ("dra-queue", "queue.tandem.gpu", True),
        ("dra-queue", "tandem.gpu", False),
        ("dra", "tandem.gpu", True),
        ("dra", "queue.tandem.gpu", False),
        ("", "tandem.gpu", True),  # closed: it is on its way
        ("", "queue.tandem.gpu", True),
        ("environment", "queue.tandem.gpu", True),  # planned before its node was another
    ],
)
def test_a_claim_that_comes_after_its_gpu_went_over_is_refused(kubelet, way, of, fine):
    kubelet.ways["GPU-A"] = way
    claim = kubelet.claim(result("gpu-a"), of=of)
    error = kubelet.prepare(claim)[claim.uid].error
    assert (error == "") == fine
    assert fine or f"hand-over={way}" in error
    assert bool(kubelet.files()) == fine


def test_a_pod_that_has_its_gpu_keeps_it_when_the_gpu_goes_over(kubelet):
    """Kubelet asks again when it is restarted."""
    kubelet.ways["GPU-A"] = "dra"
    claim = kubelet.claim(result("gpu-a"))
    before = kubelet.prepare(claim)[claim.uid]
    kubelet.ways["GPU-A"] = "dra-queue"
    assert kubelet.prepare(claim)[claim.uid] == before


def test_unprepare_leaves_nothing_and_may_be_asked_twice(kubelet):
    claim = kubelet.claim(result("gpu-a"))
    kubelet.prepare(claim)
    for _ in range(2):
        assert kubelet.unprepare(claim)[claim.uid].error == ""
        assert kubelet.files() == []


def test_a_claim_of_another_driver_is_left_alone(kubelet):
    theirs = kubelet.claim(result("gpu-a", driver="gpu.example.com"), name="theirs")
    answer = kubelet.prepare(theirs)[theirs.uid]
    assert (answer.error, list(answer.devices), kubelet.files()) == ("", [], [])
    mixed = kubelet.claim(result("x", driver="nic.example.com"), result("gpu-b"), name="mixed")
    (device,) = kubelet.prepare(mixed)[mixed.uid].devices
    assert device.device_name == "gpu-b"


def test_files_of_others_are_never_touched(kubelet):
    kubelet.cdi.mkdir()
    (kubelet.cdi / "other.json").write_text("{}")
    claim = kubelet.claim(result("gpu-a"))
    kubelet.prepare(claim)
    kubelet.unprepare(claim)
    kubelet.driver.sweep()
    assert kubelet.files() == ["other.json"]


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ((result("gpu-z"),), "no GPU gpu-z"),
        ((result("gpu-a"), result("../../etc"),), "no GPU ../../etc"),
        ((result("gpu-a", pool="n1"),), "is of 'n1'"),
        (tuple(result("gpu-a") for _ in range(33)), "33 devices"),
        ((result("gpu-a", request="x"), result("gpu-b", request="y")), "nvidia-ctk cdi generate"),
    ],
)  # fmt: skip
def test_what_cannot_be_given_is_refused_in_words_and_written_nowhere(kubelet, results, words):
    wrong, right = kubelet.claim(*results, name="w"), kubelet.claim(result("gpu-b"), name="r")
    answers = kubelet.prepare(wrong, right)
    assert words in answers[wrong.uid].error
    assert not answers[wrong.uid].devices
    assert answers[right.uid].error == ""
    assert [name for name in kubelet.files() if right.uid not in name] == []


def test_a_claim_that_is_gone_another_one_or_not_allocated_is_refused(kubelet):
    gone = DRA["Claim"](namespace="team", name="gone", uid=str(uuid4()))
    there = kubelet.claim(result("gpu-a"), name="there")
    other = DRA["Claim"](namespace="team", name="there", uid=str(uuid4()))
    free = kubelet.api.create(RESOURCE_CLAIMS, {"metadata": {"name": "free"}}, "team")
    free = DRA["Claim"](namespace="team", name="free", uid=free["metadata"]["uid"])
    answers = kubelet.prepare(gone, other, free)
    assert "not found" in answers[gone.uid].error
    assert "another one by now" in answers[other.uid].error
    assert "not allocated" in answers[free.uid].error
    assert kubelet.files() == []
    assert kubelet.prepare(there)[there.uid].error == ""


@pytest.mark.parametrize("uid", ["", "../../../etc/passwd", "a" * 36, "A" * 8 + "-b" * 4, "\n"])
def test_a_uid_that_is_none_makes_no_path(kubelet, uid):
    claim = DRA["Claim"](namespace="team", name="c", uid=uid)
    assert "no UUID" in kubelet.prepare(claim)[uid].error
    assert "no UUID" in kubelet.unprepare(claim)[uid].error
    assert kubelet.files() == []


def test_names_that_are_none_are_refused():
    with pytest.raises(ClaimError, match="no name"):
        ClaimRef("team", "../c", str(uuid4()))


def test_before_the_first_report_kubelet_is_to_ask_again(kubelet):
    claim = kubelet.claim(result("gpu-a"))
    kubelet.inventory = None
    assert "not reported" in kubelet.prepare(claim)[claim.uid].error
    kubelet.inventory = dict(GPUS)
    assert kubelet.prepare(claim)[claim.uid].error == ""


def test_without_the_api_server_nothing_is_written(kubelet, monkeypatch):
    claim = kubelet.claim(result("gpu-a"))

    def away(*_, **__):
        raise Unavailable(0, "away")

    monkeypatch.setattr(kubelet.api, "get", away)
    assert "away" in kubelet.prepare(claim)[claim.uid].error
    assert kubelet.files() == []
    monkeypatch.undo()
    assert kubelet.prepare(claim)[claim.uid].error == ""
    monkeypatch.setattr(kubelet.api, "get", away)
    kubelet.driver.sweep()
    assert len(kubelet.files()) == 1, "what is unknown stays"
    assert kubelet.unprepare(claim)[claim.uid].error == ""
    assert kubelet.files() == []


def test_where_the_toolkit_has_made_files_its_names_are_given(kubelet):
    kubelet.cdi.mkdir()
    (kubelet.cdi / "nvidia.yaml").write_text(
        "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n"
        "- {name: '0', containerEdits: {}}\n- {name: GPU-A, containerEdits: {}}\n"
    )
    (kubelet.cdi / "broken.yaml").write_text("kind: [")
    claim = kubelet.claim(result("gpu-a", request="x/sub"), name="a")
    (device,) = kubelet.prepare(claim)[claim.uid].devices
    own, theirs = device.cdi_device_ids
    assert theirs == "nvidia.com/gpu=GPU-A"
    # What CDI gives is not given again by the variable.
    assert kubelet.environment(own) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert list(device.request_names) == ["x"]
    # A GPU that the toolkit's files do not have is given by the variable, as before.
    both = kubelet.claim(result("gpu-a"), result("gpu-b"), name="b")
    (cdi,) = set(kubelet.prepare(both)[both.uid].devices[0].cdi_device_ids)
    assert kubelet.environment(cdi) == {"NVIDIA_VISIBLE_DEVICES": "GPU-A,GPU-B"}


def test_what_a_kill_leaves_half_written_and_claims_that_are_gone_are_swept(kubelet):
    kept, gone = kubelet.claim(result("gpu-a"), name="k"), kubelet.claim(result("gpu-a"), name="g")
    kubelet.prepare(kept, gone)
    kubelet.api.delete(RESOURCE_CLAIMS, "g", "team")
    (kubelet.cdi / f"{DRIVER}-claim-{uuid4()}.new").write_text('{"cdiV')
    (kubelet.cdi / f"{DRIVER}-claim-nonsense.json").write_text("{}")
    kubelet.driver.sweep()
    assert kubelet.files() == [f"{DRIVER}-claim-{kept.uid}.json", f"{DRIVER}-claim-nonsense.json"]


def test_many_claims_at_once(kubelet):
    claims = [kubelet.claim(result("gpu-a"), name=f"c{n}") for n in range(12)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda claim: kubelet.prepare(claim)[claim.uid], claims))
    assert all(answer.error == "" for answer in answers)
    assert len(kubelet.files()) == 12
    kubelet.unprepare(*claims)
    assert kubelet.files() == []


def test_a_folder_that_cannot_be_written_is_said(kubelet):
    kubelet.cdi.write_text("a file, not a folder")
    claim = kubelet.claim(result("gpu-a"))
    assert "not written" in kubelet.prepare(claim)[claim.uid].error
