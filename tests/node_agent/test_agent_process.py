"""The agent as a process: on simulated GPUs, reporting to a URL, until a signal stops it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from controlplane import binaries
from node_agent.__main__ import main
from node_agent.config import REMOVED
from node_agent.stub import StubError, StubGpu, StubProcess, StubState, environment
from tandem.contracts.resources import GPUNodeStatus

GIB = 1 << 30
POD = "0a1b2c3d-1111-2222-3333-444455556666"


class Sink:
    """Takes the reports that an agent puts."""

    def __init__(self):
        sink = self
        self.reports = []

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                sink.reports.append((self.path, json.loads(body)))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def status(self):
        return GPUNodeStatus.model_validate(self.reports[-1][1]["status"])


@pytest.fixture
def sink():
    sink = Sink()
    yield sink
    sink.server.shutdown()
    sink.server.server_close()


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def free_port():
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        return server.server_address[1]


@pytest.fixture
def agent(stub_library, tmp_path, sink, proc):
    """Start agents with `agent(state)`; returns the process and the URL of its own server."""
    started = []

    def start(state, *arguments):
        state.write(tmp_path / "gpus")
        listen = f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "node_agent", "--node", "n0", "--report-url", sink.url]
        command += ["--proc", str(proc.root), "--listen", listen, *arguments]
        seen = os.environ | environment(stub_library, tmp_path / "gpus")
        process = subprocess.Popen(command, env=seen, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process, f"http://{listen}"

    yield start
    for process in started:
        process.kill()
        process.communicate()


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.slow
def test_a_node_from_start_to_stop(agent, sink, proc, tmp_path):
    state = StubState(gpus=[StubGpu("GPU-a")], processes=[StubProcess(0, 7, 4 * GIB, sm=50)])
    proc.add(7, POD)
    process, url = agent(state, "--shares", "3", "--interval", "0.3")
    wait_for(lambda: sink.reports)
    path, node = sink.reports[0]
    assert (path, node["metadata"]["name"]) == ("/gpunodes/n0", "n0")
    gpu = sink.status().gpus[0]
    assert (gpu.uuid, gpu.shares, gpu.pods[0].uid) == ("GPU-a", 3, POD)

    assert get(url + "/healthz") == (200, b'{"status":"ok"}')
    assert json.loads(get(url + "/nothing")[1])["hint"]
    text = get(url + "/metrics")[1].decode()
    assert 'tandem_node_memory_bytes{kind="used",node="n0"} 4.294967296e+09' in text

    state.errors = [StubError("*", 15, gpu=0)]
    state.write(tmp_path / "gpus")
    wait_for(lambda: sink.status().gpus[0].health == "Quarantined")

    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "agent stopped" in log
    assert "Traceback" not in log


@pytest.mark.slow
def test_nvml_that_stays_away_fails_liveness(agent, sink, tmp_path):
    config = tmp_path / "agent.yaml"
    config.write_text("health: {rescan_s: 0.25}\n")
    process, url = agent(StubState(driver=""), "--config", str(config))
    wait_for(lambda: sink.reports and get(url + "/healthz")[0] == 503)
    assert "NVML has been gone" in json.loads(get(url + "/healthz")[1])["error"]
    assert sink.status().conditions[0].status == "False"
    assert process.poll() is None


@pytest.mark.slow
def test_metrics_pass_promtool(agent, sink, proc, tmp_path):
    promtool = binaries.find("promtool")
    if promtool is None:
        pytest.skip("promtool is not at hand: `tandem controlplane build` fetches it")
    state = StubState(gpus=[StubGpu("GPU-a", gpm=0.5)], processes=[StubProcess(0, 7, GIB, sm=50)])
    proc.add(7, POD)
    settings = tmp_path / "agent.yaml"
    settings.write_text("metrics: {detail: gpu}")
    _, url = agent(state, "--interval", "0.3", "--config", str(settings))
    wait_for(lambda: sink.reports)
    wait_for(lambda: b'source="gpm"' in get(url + "/metrics")[1])
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=get(url + "/metrics")[1],
        capture_output=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_one_report_for_people(driver, proc, capsys):
    driver.state.clock_us = None
    driver.state.gpus = [StubGpu("GPU-a")]
    driver.apply()
    assert main(["--node", "n0", "--once", "--interval", "0.2", "--proc", str(proc.root)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["status"]["gpus"][0]["uuid"] == "GPU-a"
    assert report["status"]["gpus"][0]["utilisationPercent"] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--node", ""], "does not know its node"),
        (["--node", "n0", "--shares", "0"], "The setting shares is wrong"),
        (["--node", "n0", "--report-url", "http://x", "--listen", "nowhere"], "names no port"),
        (["--node", "n0", "--config", "/nowhere.yaml"], "cannot read"),
        (["--node", "n0", "--report-url", "http://x", "--listen", "h:²"], "names no port"),
    ],
)
def test_usage(capsys, arguments, says):
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("path", REMOVED)
def test_a_removed_setting_is_refused_with_what_to_do_instead(tmp_path, capsys, path):
    section, _, key = path.partition(".")
    config = tmp_path / "agent.yaml"
    config.write_text(f"{section}: {{{key}: 1}}\n" if key else f"{section}: 1\n")
    assert main(["--node", "n0", "--config", str(config)]) == 2
    assert f"The setting {path} was removed: {REMOVED[path]}." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"[1]", "must hold settings by name"),
        (b"shares: 1\nshares: 2\n", "line 2 is not YAML: the key 'shares' is there twice"),
        (b"shares: yes", "The setting shares is wrong: a truth value"),
        (b"interval_s: .inf", "The setting interval_s is wrong: Input should be a finite number"),
        (b"\xff\x00", "is not text in UTF-8"),
        (b"- " * 5000, "is not YAML"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_words(tmp_path, capsys, text, says):
    config = tmp_path / "agent.yaml"
    config.write_bytes(text)
    assert main(["--node", "n0", "--config", str(config)]) == 2
    assert says in capsys.readouterr().err


def test_unknown_settings_are_refused_by_name(tmp_path, capsys):
    config = tmp_path / "agent.yaml"
    config.write_text("guard: {mood: evict}\n")
    assert main(["--node", "n0", "--config", str(config)]) == 2
    assert "guard.mood" in capsys.readouterr().err
