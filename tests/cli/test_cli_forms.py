"""What `-o wide | json | name` prints, names that do not exist, and jobs by any name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_cli_reach import GPU, JOB, Service, error_of

from tandem.kube.client import KubeClient
from tandem.kube.errors import Forbidden, NotFound
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    return Service(monkeypatch)


def test_names_are_what_other_commands_take(service: Service) -> None:
    service.say({"jobs": [JOB, {**JOB, "name": "job-two\x1b[2J"}]})
    assert service.run("jobs", "-o", "name").stdout == "team-a/job-train\nteam-a/job-two?[2J\n"
    service.say({"gpus": [GPU]})
    assert service.run("gpus", "-o", "name").stdout == "n0/GPU-0\n"


def test_wide_has_all_columns_and_the_table_fewer(service: Service) -> None:
    service.say({"jobs": [{**JOB, "attainedGpuSeconds": 5400, "demand": {"model": "gpt2"}}]})
    head, line = service.run("jobs", "--output", "wide").stdout.splitlines()
    assert "GPU hours" in head
    assert {"1.50", "gpt2"} <= set(line.split())
    assert "GPU hours" not in service.run("jobs").stdout
    service.say({"gpus": [{**GPU, "memoryUsedBytes": 3 << 30, "utilisationPercent": None}]})
    head, line = service.run("gpus", "-o", "wide").stdout.splitlines()
    assert "memory measured" in head
    assert "3.0 GiB" in line
    assert "NVLink domain" not in service.run("gpus").stdout


@pytest.mark.parametrize(
    ("places", "shown"),
    [({"nvlinkDomain": 4, "numaNode": 1}, ["4", "1"]), ({"nvlinkDomain": None}, ["-", "-"]),
     ({}, ["-", "-"])],
)  # fmt: skip
def test_wide_says_how_gpus_are_connected(
    service: Service, places: dict[str, Any], shown: list[str]
) -> None:
    service.say({"gpus": [{**GPU, **places, "jobs": []}]})
    head, line = service.run("gpus", "-o", "wide").stdout.splitlines()
    assert head.index("NVLink domain") < head.index("NUMA node") < head.index("jobs")
    cells = [line[head.index(name) :].split()[0] for name in ("NVLink domain", "NUMA node")]
    assert cells == shown


EXPECTED = {
    "earliest": "2026-11-26T14:06:44Z", "latest": "2026-11-26T14:15:40Z",
    "asOf": "2026-11-26T14:04:51Z",
}  # fmt: skip
WIDE_GPU = {
    **GPU, "node": "gpu-node-1", "number": "0", "model": "Tesla V100-SXM2-16GB",
    "jobs": ["team-a/job-resnet50-final", "team-b/pod-squeezenet"],
}  # fmt: skip
WIDE_JOB = {
    **JOB, "name": "pod-resnet50-final", "expectedStart": EXPECTED,
    "places": [{"node": "gpu-node-1"}], "short": "All places for jobs are taken: 2 of 2",
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "body", "whole"),
    [
        ("jobs", {"jobs": [WIDE_JOB]}, ("pod-resnet50-final", "Queued", "14:06", "gpu-node-1")),
        (
            "gpus",
            {"gpus": [WIDE_GPU]},
            ("gpu-node-1/0", "team-a/job-resnet50-final", "team-b/pod-squeezenet", "predicted"),
        ),
    ],
)
def test_at_80_columns_names_are_whole(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    body: dict[str, Any],
    whole: tuple[str, ...],
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    service.say(body)
    printed = service.run(command).stdout
    assert set(whole) <= {word.strip(",") for word in printed.split()}
    assert max(map(len, printed.splitlines())) <= 80


def test_a_start_on_another_day_has_its_date(service: Service) -> None:
    later = {**EXPECTED, "latest": "2026-11-27T01:15:40Z"}
    service.say({"jobs": [{**WIDE_JOB, "expectedStart": later}]})
    assert "14:06 .. 2026-11-27 01:15 UTC" in service.run("jobs").stdout
    service.say({"jobs": [{**WIDE_JOB, "expectedStart": {**later, "latest": None}}]})
    assert "14:06 UTC or later" in service.run("jobs").stdout


@pytest.mark.parametrize(
    "command", ["gpus", "gpus --idle", "jobs", "queue", "quotas", "model list"]
)
def test_an_empty_list_says_so_and_is_no_head_without_rows(service: Service, command: str) -> None:
    service.say(EMPTY.get(command, {"gpus": []}))
    answer = service.run(*command.split())
    assert answer.exit_code == 0
    assert answer.stdout == ""
    assert answer.stderr.startswith("No")
    assert json.loads(service.run(*command.split(), "--json").stdout) is not None


def test_gpus_come_by_their_numbers(service: Service) -> None:
    """Others may report them in another order."""
    service.say({"gpus": [{**GPU, "gpu": f"GPU-{n}", "index": n} for n in (1, 10, 0, 2)]})
    lines = service.run("gpus").stdout.splitlines()[1:]
    assert [line.split()[1] for line in lines] == ["n0/0", "n0/1", "n0/2", "n0/10"]


def test_o_json_is_json(service: Service) -> None:
    service.say({"jobs": [JOB]})
    assert service.run("jobs", "-o", "json").stdout == service.run("jobs", "--json").stdout


def test_a_form_that_a_command_lacks_is_a_usage_error(service: Service) -> None:
    for words in (("jobs", "-o", "yaml"), ("why", "x", "-o", "wide"), ("sharing", "-o", "name")):
        assert service.run(*words).exit_code == 2, words


EMPTY = {
    "jobs": {"jobs": []},
    "queue": {"time": "2026-01-01T00:00:00Z", "view": {"rows": [], "total": 0, "pages": 1}},
    "quotas": {"view": {"namespaces": {"rows": [], "total": 0}}},
    "sharing": {"view": {"sharing": {"gpus": 0}}},
    "model list": {"models": []},
    "top": {"time": "2026-01-01T00:00:00Z", "view": {}},
}


class Namespaces:
    """An API server that knows one namespace, or does not say."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def get(self, resource: Any, name: str) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        if name != "team-a":
            raise NotFound(404, f'namespaces "{name}" not found')
        return {"metadata": {"name": name}}


@pytest.mark.parametrize("command", sorted(EMPTY))
def test_a_namespace_that_does_not_exist_is_an_error_and_no_empty_table(
    service: Service, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    service.say(EMPTY[command])
    monkeypatch.setattr("tandem.cli.reach.Reader.client", Namespaces())
    error = error_of(service.run(*command.split(), "-n", "taem-a"))
    assert "'taem-a'" in error.message
    assert service.run(*command.split(), "-n", "team-a").exit_code == 0
    # A user who may not read namespaces does not learn whether there is one.
    monkeypatch.setattr("tandem.cli.reach.Reader.client", Namespaces(Forbidden(403, "no")))
    assert service.run(*command.split(), "-n", "taem-a").exit_code == 0


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """A cluster with the GPUJob of a Job, one of a Pod, and two of the same workload's name."""
    found = MemoryCluster()
    for name, kind, workload in (
        ("job-train", "Job", "train"), ("pod-solo", "Pod", "solo"),
        ("job-twice", "Job", "twice"), ("jobset-twice", "JobSet", "twice"),
    ):  # fmt: skip
        owner = {"apiVersion": "v1", "kind": kind, "name": workload, "uid": f"uid-{name}"}
        body = {
            "apiVersion": "tandem.gpu/v1alpha1",
            "kind": "GPUJob",
            "metadata": {"name": name, "namespace": "team-a"},
            "spec": {"workload": owner, "podSets": [], "demand": {"gpusPerPod": 1}, "members": 1},
        }
        found.create(GPU_JOBS, body, "team-a")
    monkeypatch.setattr(KubeClient, "load", lambda *_: found)
    monkeypatch.setattr("tandem.kube.credentials.context_namespace", lambda *_: "team-a")
    return found


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("team-a/job-train",), "job-train"),
        (("job-train",), "job-train"),
        (("train",), "job-train"),
        (("team-a/train",), "job-train"),
        (("solo", "-n", "team-a"), "pod-solo"),
    ],
)
def test_a_job_is_held_by_any_name_that_users_know(
    service: Service, cluster: MemoryCluster, words: tuple[str, ...], name: str
) -> None:
    answer = service.run("hold", *words)
    assert answer.exit_code == 0, answer.exception
    assert f"team-a/{name} is held" in answer.stdout
    assert cluster.get(GPU_JOBS, name, "team-a")["spec"]["hold"] is True
    assert service.run("resume", *words, "-o", "name").stdout == f"team-a/{name}\n"
    said = json.loads(service.run("prioritize", *words, "--json").stdout)
    assert (said["metadata"]["name"], said["spec"]["hold"]) == (name, False)
    assert said["spec"]["prioritizedAt"]


@pytest.mark.parametrize("words", [("nope",), ("other/train",), ("twice",)])
def test_a_job_that_is_not_there_or_not_one_is_an_error(
    service: Service, cluster: MemoryCluster, words: tuple[str, ...]
) -> None:
    error = error_of(service.run("hold", *words))
    assert "there is no job" in error.message
    assert "tandem jobs" in error.hint


@pytest.mark.parametrize("words", [("a/b/c",), ("/x",), ("team-a/",)])
def test_what_names_no_job_is_a_usage_error(
    service: Service, cluster: MemoryCluster, words: tuple[str, ...]
) -> None:
    answer = service.run("hold", *words)
    assert "names no job" in str(answer.exception)
