"""The front page alone, from a fresh clone to a job's reason, command by command as printed.

The clone has an empty home and the environment of a first login. What was downloaded or built
before is in the cache: the minutes that are printed are those of a second time. The commands of
`Without a cluster`, of `A first job`, and the first question are entered.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from real_cluster import ROOT, TRAIN_IMAGE
from test_real_tutorial import Shell

from controlplane.realnode import obstacles

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.xdist_group("real"),
    pytest.mark.timeout(5400),
]

README = (ROOT / "README.md").read_text()
#: What a machine says of its proxies and certificates; no user types it.
_OF_THE_MACHINE = re.compile(r"(?i).*(_proxy|cert|_ca|ca_).*|GOPROXY|GOFLAGS|PIP_.*|UV_.*")
IMAGE = "registry.example.com/train:1"


def entered(heading: str) -> list[str]:
    """Return the commands under a heading, as a reader would enter them."""
    (section,) = re.findall(rf"(?ms)^##+ {re.escape(heading)}[^\n]*\n(.*?)(?=^##+ |\Z)", README)
    text = re.sub(r"(?s)```.*?```", "", section)
    lines = (line for line in text.splitlines() if line.startswith("    ") and line.strip())
    return [line.strip().partition("  #")[0].strip() for line in lines]


def a_job() -> str:
    """Return the page's job with the image that it names for these nodes."""
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert IMAGE in block
    assert TRAIN_IMAGE in README
    return str(block).replace(IMAGE, TRAIN_IMAGE)


def first_login(home: Path) -> dict[str, str]:
    """Return the environment of somebody who has just logged in, with the machine's caches."""
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    kept = {name: value for name, value in os.environ.items() if _OF_THE_MACHINE.fullmatch(name)}
    path = os.pathsep.join(
        folder for folder in os.environ["PATH"].split(os.pathsep) if ".venv" not in folder
    )
    return {**kept, "PATH": path, "HOME": str(home), "XDG_CACHE_HOME": cache}


def test_the_page_has_the_whole_way() -> None:
    assert entered("Without a cluster")[0].startswith("make setup")
    assert entered("A first job")[-1] == "kubectl apply -f job.yaml"
    assert entered("Why does it wait")[0].startswith("tandem why ")


def test_a_newcomer_gets_a_reason_by_the_front_page_alone(tmp_path: Path) -> None:
    if reason := "; ".join(obstacles()):
        pytest.skip(f"no real nodes: {reason}")
    clone, home = tmp_path / "tandem", tmp_path / "home"
    home.mkdir()
    began = time.monotonic()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    commands = [*entered("Without a cluster"), *entered("A first job")]
    question = entered("Why does it wait")[0]
    (clone / "job.yaml").write_text(a_job())
    shell = Shell(tmp_path, cwd=clone, environment=first_login(home))
    try:
        for command in commands:
            said = shell.enter(command)
            if command.startswith("tandem controlplane up"):
                for line in said.splitlines():
                    if line.startswith("export "):
                        shell.enter(line)
        shell.enter(
            "kubectl wait --for=create gpujob/job-resnet50 --namespace team-a --timeout=120s"
        )
        why = shell.enter(question)
    finally:
        shell.enter("tandem controlplane down")
        shell.close()
    minutes = (time.monotonic() - began) / 60
    print(f"{2 + len(commands)} commands with clone and question, {minutes:.0f} minutes")
    assert why.startswith("team-a/job-resnet50 (Job resnet50): ")
    assert re.search(r"(?m)^  why", why)
