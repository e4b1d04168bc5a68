"""Every command of docs/tutorial.md, in its order, and what the page says that the reader sees."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from real_cluster import ROOT, page, why_not

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.xdist_group("real"),
    pytest.mark.timeout(1200),
]


class Shell:
    """One bash in which the commands run, as a reader would enter them."""

    def __init__(
        self, folder: Path, *, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
    ) -> None:
        tools = Path(sys.executable).parent
        given = environment or {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
        environment = {**given, "XDG_STATE_HOME": str(folder / "state")}
        environment.pop("KUBECONFIG", None)
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=cwd,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def enter(self, command: str) -> str:
        """Return what a command prints; fail where its status is not 0."""
        print(f"$ {command}", flush=True)
        self._bash.stdin.write(f'{command}\necho "__status $?"\n')
        self._bash.stdin.flush()
        printed = []
        for line in self._bash.stdout:
            # Something in the background may have printed no end of line.
            text, found, status = line.partition("__status ")
            if found:
                printed.append(text)
                said = "".join(printed)
                print(said, flush=True)
                assert status.strip() == "0", f"{command}\n{said}"
                return said
            printed.append(line)
        raise AssertionError(f"the shell ended at {command}")

    def close(self) -> None:
        self._bash.stdin.close()
        self._bash.wait(timeout=30)


def commands() -> Iterator[str]:
    """Yield the commands of the page: lines with `$` in console blocks, lines of sh blocks."""
    for kind, block in re.findall(r"(?ms)^```(console|sh)\n(.*?)^```", page("tutorial.md")):
        for line in block.splitlines():
            if kind == "sh":
                yield line
            elif line.startswith("$ "):
                yield line.removeprefix("$ ")


def test_the_page_has_commands_of_both_kinds() -> None:
    found = list(commands())
    assert found[0].startswith("tandem controlplane up")
    assert any(line.startswith("tandem explain") for line in found)
    assert found[-1] == "tandem controlplane down"


def test_every_command_of_the_tutorial_works_and_shows_what_the_page_says(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(f"no real nodes: {reason}")
    shell = Shell(tmp_path)
    said: dict[str, str] = {}
    try:
        for command in commands():
            said[command] = shell.enter(command)
            if command.startswith("tandem controlplane up"):
                # "The first line prints two export lines: enter them in the shell."
                for line in said[command].splitlines():
                    if line.startswith("export "):
                        shell.enter(line)
    finally:
        shell.enter("tandem controlplane down")
        shell.close()

    def printed(start: str) -> str:
        return next(text for command, text in said.items() if command.startswith(start))

    assert "loaded into the real nodes" in printed("make images")
    assert printed("kubectl get nodes").count(" Ready") == 2
    assert {"real-0", "real-1"} <= set(printed("kubectl get gpunodes").split())
    rows = dict(line.split()[:2] for line in printed("kubectl get pods --output").splitlines()[1:])
    first, second, whole = (
        next(gpu for pod, gpu in rows.items() if pod.startswith(f"{name}-"))
        for name in ("first", "second", "whole")
    )
    assert first == second != whole
    explained = printed("tandem explain")
    node, _, index = first.removeprefix("GPU-").rpartition("-")
    assert f"runs on {node}: {node}/{index}" in explained
    began = [int(n) for n in re.findall(r'"begins_at": (\d+)', printed("kubectl logs"))]
    assert any(began), "the second pod went on where the first had stopped"
