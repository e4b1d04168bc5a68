"""Child processes: stopped and started at will, and gone when their parent is."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from controlplane import Node, Process, free_port, wait_until
from tandem.errors import TandemError
from tandem.local import processes
from tandem.local.scratch import Scratch

PARENT = """
import sys, time
from pathlib import Path
from controlplane import Process
child = Process("child", ["sleep", "600"], Path(sys.argv[1]))
child.start()
print(child.pid, flush=True)
time.sleep(600)
"""


def state(pid: int) -> str:
    """Return the state letter of /proc/PID/stat, or "" when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return ""


@pytest.fixture
def sleeper(tmp_path: Path) -> Process:
    process = Process("sleeper", ["sleep", "600"], tmp_path / "log")
    process.start()
    yield process
    process.kill()


def test_a_child_dies_with_its_parent_however_that_dies(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, tmp_path / "log"], stdout=subprocess.PIPE, text=True
    )
    child = int(parent.stdout.readline())
    assert state(child) != ""
    parent.kill()
    parent.communicate()
    wait_until(lambda: state(child) in ("", "Z"), "the child is dead", timeout_s=20)


def test_pause_stops_and_resume_lets_go_on(sleeper: Process) -> None:
    sleeper.pause()
    wait_until(lambda: state(sleeper.pid) == "T", "it is stopped")
    assert sleeper.running
    sleeper.resume()
    wait_until(lambda: state(sleeper.pid) == "S", "it sleeps again")


def test_restart_makes_a_new_process_and_keeps_the_log(tmp_path: Path) -> None:
    process = Process("talker", ["sh", "-c", "echo hello; sleep 600"], tmp_path / "log")
    process.start()
    first = process.pid
    wait_until(lambda: process.log_tail() == "hello", "it has spoken")
    process.restart()
    assert process.pid != first
    wait_until(lambda: process.log_tail() == "hello\nhello", "it has spoken twice")
    process.kill()
    assert process.exit_code == -signal.SIGKILL


def test_terminate_reaches_a_paused_process(sleeper: Process) -> None:
    sleeper.pause()
    sleeper.terminate()
    assert sleeper.exit_code == -signal.SIGTERM


def test_kill_takes_the_whole_group(tmp_path: Path) -> None:
    script = "sleep 600 & echo $!; wait"
    process = Process("group", ["sh", "-c", script], tmp_path / "log")
    process.start()
    wait_until(lambda: process.log_tail().isdigit(), "it names its child")
    child = int(process.log_tail())
    process.kill()
    wait_until(lambda: state(child) in ("", "Z"), "the child's child is dead")


def test_a_failure_shows_the_end_of_the_log(tmp_path: Path) -> None:
    process = Process("broken", ["sh", "-c", "echo no such flag; exit 3"], tmp_path / "log")
    process.start()
    wait_until(lambda: not process.running, "it has ended")
    failure = process.failure(f"ended with status {process.exit_code}")
    assert failure.message == "broken ended with status 3; the end of its log:\nno such flag"


def test_a_program_that_gives_up_is_started_again_and_one_that_was_ended_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_STARTED_S", 0.0)
    script = 'trap "exit 1" TERM; test -e "$0" && sleep 600; touch "$0"; exit 1'
    process = Process("gives up", ["sh", "-c", script, str(tmp_path / "was")], tmp_path / "log")
    assert not process.start_if_it_gave_up()
    process.start()
    wait_until(lambda: not process.running, "it has given up")
    assert process.start_if_it_gave_up()
    assert process.running
    assert not process.start_if_it_gave_up()
    process.terminate()
    assert not process.start_if_it_gave_up()
    process.start()
    process.kill()
    assert not process.start_if_it_gave_up()


def test_a_program_that_cannot_start_is_not_started_again(tmp_path: Path) -> None:
    process = Process("broken", ["sh", "-c", "exit 1"], tmp_path / "log")
    process.start()
    wait_until(lambda: not process.running, "it has ended")
    assert not process.start_if_it_gave_up()


def test_a_free_port_is_outside_the_range_of_outgoing_connections() -> None:
    port = free_port()
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if ephemeral.exists():
        assert port < int(ephemeral.read_text().split()[0])
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))


def test_no_two_processes_get_the_same_free_port() -> None:
    """Each takes seconds until its program listens: by chance alone, two in 400 were the same."""
    code = "from controlplane import free_port\nprint([free_port() for _ in range(100)])"
    argv = [sys.executable, "-c", code]
    processes = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    found = [port for each in processes for port in json.loads(each.communicate()[0])]
    assert len(set(found)) == 400


def test_a_port_stays_with_a_program_that_comes_up_minutes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken, other = free_port(), free_port()
    given = Path(tempfile.gettempdir()) / f"tandem-ports-{os.getuid()}"
    ten_minutes_ago = time.time() - 600
    for port, age_s in ((taken, ten_minutes_ago), (other, 0)):
        os.utime(given / str(port), (age_s, age_s))
    monkeypatch.setattr("random.SystemRandom.sample", lambda *_: [taken, other])
    assert free_port() == other


def test_waiting_in_vain_tells_for_what_and_what_was_seen() -> None:
    with pytest.raises(
        TandemError, match=r"waited 0 s without success until x is 1; last seen: \[\]"
    ):
        wait_until(list, "x is 1", timeout_s=0)


def test_a_folder_whose_owner_died_is_removed_by_the_next(tmp_path: Path) -> None:
    living = Scratch(tmp_path)
    dead = Scratch(tmp_path)
    dead._lock.close()  # as the kernel does when the owner dies
    following = Scratch(tmp_path)
    assert living.path.exists()
    assert not dead.path.exists()
    following.remove()
    following.remove()
    assert not following.path.exists()


def test_a_node_reads_taints_as_kubectl_writes_them() -> None:
    node = Node("n", taints=("tandem.gpu/gpu:NoSchedule", "team=a:NoExecute"), cpu=4).manifest()
    assert node["spec"]["taints"] == [
        {"key": "tandem.gpu/gpu", "effect": "NoSchedule"},
        {"key": "team", "effect": "NoExecute", "value": "a"},
    ]
    assert node["status"]["allocatable"] == {"cpu": "4", "memory": "256Gi", "pods": "110"}
