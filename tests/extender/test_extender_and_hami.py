"""`python -m benchmarks.hami` starts any build of HAMi's extender on the cluster of Tandem."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.hami import main

NODES, PODS_PER_NODE = 20, 2

#: An extender with HAMi's words: it reads nodes and pods as HAMi does, and answers with the node
#: that has the most memory left for the pod's GPU; a pod that asks for too much gets no node.
PEER = """
import json, os, sys, urllib.error, urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

port, way = int(sys.argv[1]), sys.argv[2]
server = json.load(open(os.environ["KUBECONFIG"]))["clusters"][0]["cluster"]["server"]

def listed(resource):
    with urllib.request.urlopen(f"{server}/api/v1/{resource}?limit=500") as answer:
        assert answer.headers["Content-Type"] == "application/json"
        return json.load(answer)["items"]

assert listed("resourcequotas") == []
try:  # as Go's client does first; it lists and watches where that is refused
    urllib.request.urlopen(f"{server}/api/v1/pods?watch=true&sendInitialEvents=true")
    raise SystemExit("a list by watch is not recorded")
except urllib.error.HTTPError as refused:
    assert refused.code == 422 and json.load(refused)["reason"] == "Invalid"
left = {}
for node in listed("nodes"):
    metadata = node["metadata"]
    gpus = json.loads(metadata["annotations"]["hami.io/node-nvidia-register"])
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "80"
    left[metadata["name"]] = {gpu["id"]: gpu["devmem"] for gpu in gpus if gpu["health"]}
for pod in listed("pods"):
    notes = pod["metadata"]["annotations"]
    if "hami.io/vgpu-node" not in notes:
        continue
    uuid, _, mib, _ = notes["hami.io/vgpu-devices-allocated"].removesuffix(":;").split(",")
    asked = pod["spec"]["containers"][0]["resources"]["limits"]
    assert asked["nvidia.com/gpumem"] == mib and "tandem.gpu/gpu" not in asked
    left[notes["hami.io/vgpu-node"]][uuid] -= int(mib)

class Filter(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        limits = asked["Pod"]["spec"]["containers"][0]["resources"]["limits"]
        mib = int(limits["nvidia.com/gpumem"])
        fits = [name for name in asked["NodeNames"] if max(left[name].values()) >= mib]
        metadata = asked["Pod"]["metadata"]
        notes = {"metadata": {"annotations": {"hami.io/vgpu-node": fits[0]}}}
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        patch = urllib.request.Request(server + path, json.dumps(notes).encode(), method="PATCH")
        assert urllib.request.urlopen(patch).status == 200
        said = {"NodeNames": fits[:1]} if way == "one" else {"FailedNodes": {}}
        if way == "error":
            said = {"Error": "calcScore failed"}
        text = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

HTTPServer(("127.0.0.1", port), Filter).serve_forever()
"""


@pytest.fixture
def peer(tmp_path: Path) -> list[str]:
    """Return the command that starts the extender, but for the way it answers."""
    file = tmp_path / "peer.py"
    file.write_text(PEER)
    return [sys.executable, str(file), "{port}"]


def size(requests: int) -> list[str]:
    return [
        "--nodes", str(NODES), "--pods-per-node", str(PODS_PER_NODE), "--requests", str(requests)
    ]  # fmt: skip


@pytest.mark.parametrize(("way", "placed"), [("one", 25), ("none", 0)])
def test_both_are_asked_the_same_and_answers_with_a_node_are_counted(
    way: str, placed: int, peer: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    main([*size(25), "--json", str(file), "--", *peer, way])
    written = json.loads(file.read_text())
    hami, tandem = written["hami"], written["tandem"]
    assert (hami["requests"], hami["placed"]) == (25, placed)
    assert tandem["requests"] == 25
    assert (hami["nodes"], hami["pods"]) == (tandem["nodes"], tandem["pods"]) == (20, 40)
    for figure in ("filter_p50_ms", "filter_p99_ms", "rss_mib"):
        assert hami[figure] > 0, figure
    printed = capsys.readouterr().out
    assert f"{hami['filter_p50_ms']:.2f}" in printed
    assert f"HAMi answered {placed} of 25 questions with a node" in printed


def test_an_answer_that_is_an_error_ends_the_measurement(peer: list[str]) -> None:
    with pytest.raises(SystemExit, match="calcScore failed"):
        main([*size(5), "--", *peer, "error"])


def test_an_extender_that_ends_says_its_last_words() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such flag')", "{port}"]
    with pytest.raises(SystemExit, match="no such flag"):
        main([*size(5), "--", *command])


def test_a_command_that_does_not_exist_or_has_no_port_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match=r"cannot be started.*no-such-extender"):
        main([*size(5), "--", "no-such-extender", "{port}"])
    with pytest.raises(SystemExit):
        main([*size(5), "--", "scheduler"])
    assert "{port}" in capsys.readouterr().err
