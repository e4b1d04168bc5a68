"""The kubectl plugin: the same commands, names from the cluster, and a manifest for krew."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import re
import subprocess
import zipfile
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tandem.cli import complete, main
from tandem.contracts import names
from tandem.kube.client import KubeClient
from tandem.kube.errors import Forbidden, KubeError, unreachable

ROOT = Path(__file__).parents[2]
KREW = ROOT / "deploy" / "krew"


@pytest.fixture(scope="module")
def package() -> ModuleType:
    spec = importlib.util.spec_from_file_location("krew_package", KREW / "package.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_manifest_is_that_of_the_archive(package: ModuleType) -> None:
    text = (KREW / "tandem.yaml").read_text()
    assert text == package.manifest(package.archive()), "run python deploy/krew/package.py"
    (platform,) = yaml.safe_load(text)["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256(package.archive()).hexdigest()


def test_krew_accepts_the_manifest(package: ModuleType) -> None:
    """By the rules of krew's own validation and of its index."""
    plugin = yaml.safe_load((KREW / "tandem.yaml").read_text())
    assert plugin["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert plugin["kind"] == "Plugin"
    assert re.fullmatch(r"[\w-]+", plugin["metadata"]["name"])
    spec = plugin["spec"]
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert 0 < len(spec["shortDescription"]) <= 50
    assert not spec["shortDescription"].endswith(".")
    assert max(map(len, spec["description"].splitlines())) <= 100
    (platform,) = spec["platforms"]
    assert platform["uri"].endswith((".zip", ".tar.gz"))
    assert re.fullmatch(r"[0-9a-f]{64}", platform["sha256"])
    with zipfile.ZipFile(io.BytesIO(package.archive())) as packed:
        inside = set(packed.namelist())
        assert {each["from"] for each in platform["files"]} == inside
        assert platform["bin"] in inside
        assert packed.getinfo(platform["bin"]).external_attr >> 16 & 0o111


def test_the_plugin_runs_the_command_and_says_where_to_get_it(tmp_path: Path) -> None:
    plugin = KREW / "kubectl-tandem"
    bare = {"PATH": "/usr/bin:/bin"}
    answer = subprocess.run([plugin, "top"], env=bare, capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert "pipx install" in answer.stderr
    command = tmp_path / "tandem"
    command.write_text('#!/bin/sh\necho "$TANDEM_PROGRAM: $*"\n')
    command.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    answer = subprocess.run(
        [plugin, "why", "a b"], env=env, capture_output=True, text=True, check=False
    )
    assert answer.stdout == "kubectl tandem: why a b\n"


def test_both_programs_are_installed() -> None:
    scripts = {each.name: each.load() for each in entry_points(group="console_scripts")
               if each.name in ("tandem", "kubectl-tandem", "kubectl_complete-tandem")}  # fmt: skip
    assert scripts == {
        "tandem": main.main,
        "kubectl-tandem": main.kubectl,
        "kubectl_complete-tandem": complete.kubectl,
    }


def test_usage_names_the_program_that_was_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TANDEM_PROGRAM", raising=False)
    monkeypatch.setattr("sys.argv", ["kubectl-tandem", "gpus", "--help"])
    with pytest.raises(SystemExit):
        main.kubectl()
    assert "Usage: kubectl tandem gpus" in capsys.readouterr().out


class Cluster:
    """Answers what completion lists; `error` is raised where it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        self.error: KubeError | None = None
        monkeypatch.setattr(KubeClient, "load", lambda *_: self)
        monkeypatch.setattr("tandem.kube.credentials.context_namespace", lambda *_: "team-a")

    def request(self, method: str, path: str, query: dict[str, Any], **_: Any) -> dict[str, Any]:
        self.paths.append(path)
        assert query == {"limit": 500}
        if self.error is not None:
            raise self.error
        kind = path.rpartition("/")[2]
        found = {
            "gpujobs": [("team-a", "job-bert"), ("team-a", "job-resnet"), ("team-b", "job-gpt")],
            "gpunodes": [("", "gpu-0"), ("", "gpu-1")],
            "namespaces": [("", "team-a"), ("", "team-b")],
            "pods": [("team-a", "bert-0")],
        }[kind]
        where = re.search(r"/namespaces/([^/]+)/", path)
        return {
            "items": [
                {
                    "metadata": {"namespace": space, "name": name},
                    "spec": {"schedulerName": names.SCHEDULER_NAME},
                }
                for space, name in found
                if where is None or space == where[1]
            ]
        }


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def completed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    complete.kubectl(words)
    *found, directive = capsys.readouterr().out.splitlines()
    assert directive == ":4"
    return found


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("to",), ["top"]),
        (("why", ""), ["job-bert", "job-resnet"]),
        (("why", "job-b"), ["job-bert"]),
        (("why", "team-b/job-"), ["team-b/job-gpt"]),
        (("why", "-n", "team-b", ""), ["job-gpt"]),
        (("explain", "be"), ["bert-0"]),
        (("gpus", "--node", "gpu-1"), ["gpu-1"]),
        (("queue", "-n", "team-"), ["team-a", "team-b"]),
        (("hold", "team-b"), ["team-b/job-gpt"]),
        (("top", "--sor"), ["--sort"]),
    ],
)
def test_names_complete_from_the_cluster(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], found: list[str]
) -> None:
    assert completed(capsys, *words) == found


@pytest.mark.parametrize(
    "error", [Forbidden(403, "no"), unreachable("away", maybe_done=False), Forbidden(401, "who?")]
)
def test_a_cluster_that_does_not_answer_completes_nothing_and_prints_nothing(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], error: KubeError
) -> None:
    cluster.error = error
    assert completed(capsys, "why", "") == []
    assert capsys.readouterr().err == ""


def test_a_tenant_completes_jobs_of_the_own_namespace(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    request = cluster.request

    def refusing(method: str, path: str, query: dict[str, Any], **more: Any) -> dict[str, Any]:
        if "/namespaces/" not in path:
            raise Forbidden(403, "not in all namespaces")
        return request(method, path, query, **more)

    cluster.request = refusing
    assert completed(capsys, "hold", "") == ["team-a/job-bert", "team-a/job-resnet"]


def test_kubectl_asks_the_program_for_completions(tmp_path: Path) -> None:
    """As installed: kubectl starts it with the words that were typed."""
    program = (
        Path(os.environ.get("VIRTUAL_ENV", ROOT / ".venv")) / "bin" / "kubectl_complete-tandem"
    )
    if not program.exists():
        pytest.skip("the programs are not installed in this environment")
    answer = subprocess.run([program, "doc"], capture_output=True, text=True, check=False)
    assert answer.stdout == "doctor\n:4\n"
