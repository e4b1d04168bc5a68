"""What the program loads: nothing that help needs not, and nothing that only an extra installs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, requires
from pathlib import Path

import pytest
import yaml
from command_tree import leaves, whole_tree

from tandem.cli.commands import COMMANDS

#: A program that runs the command line on its arguments, without the packages in BLOCKED, and ends
#: with the modules that are loaded on its last line.
PROGRAM = """
import json, sys
blocked = set(json.loads(sys.argv.pop(1)))
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from tandem.cli.main import main
try:
    main("tandem")
except SystemExit as ended:
    code = ended.code
print()
print(json.dumps({"code": code or 0, "modules": sorted(sys.modules)}))
"""
HEAVY = (
    "numpy",
    "pydantic",
    "httpx",
    "kubernetes",
    "onnx",
    "fastapi",
    "uvicorn",
    "prometheus_client",
)
#: Typer reads arguments by it, but needs it not for help.
BY_TYPER = {"pydantic"}
SERVICES = ("predictor", "scheduler_extender", "node_agent", "controlplane")


def ran(
    *words: str, blocked: set[str] = frozenset(), **environment: str
) -> tuple[int, set[str], str]:
    """Return the exit code of `tandem WORDS`, the modules that it loaded, and what it printed."""
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(sorted(blocked)), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment},
    )
    assert answer.returncode == 0, answer.stderr
    *_, last = answer.stdout.splitlines()
    said = json.loads(last)
    return int(said["code"]), set(said["modules"]), answer.stdout + answer.stderr


def base_packages() -> set[str]:
    """Return the distributions of an installation without extras."""
    found: set[str] = set()
    wanted = ["tandem-gpu"]
    while wanted:
        name = re.sub(r"[-_.]+", "-", wanted.pop()).lower()
        if name in found:
            continue
        found.add(name)
        for line in requires(name) or ():
            requirement, _, marker = line.partition(";")
            if "extra" in marker:
                continue
            needed = re.match(r"[\w.-]+", requirement)[0]
            try:
                distribution(needed)
            except PackageNotFoundError:
                continue  # for another platform, or another Python
            wanted.append(needed)
    return found


def only_in_extras() -> set[str]:
    """Return the modules that an installation without extras lacks."""
    base = base_packages()
    return {
        module
        for module, owners in packages_distributions().items()
        if not base & {re.sub(r"[-_.]+", "-", each).lower() for each in owners}
    }


def test_help_loads_no_command_and_nothing_heavy() -> None:
    code, modules, said = ran("--help")
    assert code == 0
    assert {"why", "simulate", "model"} <= set(said.split())
    assert sorted(modules & {*HEAVY, *SERVICES, "yaml", "urllib3", "rich", "asyncio", "ssl"}) == []
    assert not {each for each in modules if each.startswith(("tandem.policy", "tandem.contracts"))}


def test_completion_of_a_command_loads_no_command() -> None:
    asked = {"_TANDEM_COMPLETE": "complete_bash", "COMP_WORDS": "tandem qu", "COMP_CWORD": "1"}
    _, modules, said = ran(**asked)
    assert {"queue", "quotas"} <= set(said.split())
    assert sorted(modules & {*HEAVY, *SERVICES, "yaml", "urllib3", "rich"} - BY_TYPER) == []


def test_a_command_of_the_cluster_loads_nothing_of_the_services(tmp_path: Path) -> None:
    """It goes as far as the API server, which is not there."""
    config = tmp_path / "config"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {"token": "t"}}
    config.write_text(
        yaml.safe_dump(
            {"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "c"}
        )
    )
    code, modules, said = ran("jobs", KUBECONFIG=str(config))
    assert code == 1
    assert "no answer from Tandem" in said
    assert "urllib3" in modules
    assert sorted(modules & {*HEAVY, *SERVICES} - BY_TYPER) == []
    assert "tandem.contracts.resources" not in modules


def test_the_table_says_what_the_commands_say() -> None:
    tree = whole_tree()
    assert tree.commands.keys() == COMMANDS.keys()
    for name, command in tree.commands.items():
        said = " ".join((command.help or "").split("\n\n")[0].split())
        assert COMMANDS[name].summary == said, name
        assert len(said) <= 62, f"{name}: --help cuts it at 80 columns"


def test_every_extra_of_the_table_exists() -> None:
    extras = set(distribution("tandem-gpu").metadata.get_all("Provides-Extra"))
    assert {each.extra for each in COMMANDS.values()} - {""} <= extras


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_explains_itself_without_any_extra() -> None:
    lacking = only_in_extras()
    assert {"numpy", "onnx", "fastapi", "kubernetes"} <= lacking
    assert not {"typer", "yaml", "urllib3", "pydantic"} & lacking
    for path, _ in leaves(whole_tree()):
        if path == ("profile", "collect") or path[0] == "controlplane":
            continue  # a program for a machine with PyTorch; a tool that no installation has
        code, _, said = ran(*path, "--help", blocked=lacking)
        assert code == 0, (path, said)


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        (("simulate", "--list"), "numpy", "simulator"),
        (("predict", "graph.onnx"), "numpy", "predictor"),
        (("demo",), "numpy", "run"),
        (("config", "check", "file.yaml"), "numpy", "extender"),
        (("train", "--profiles", "file.json"), "numpy", "train"),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(
    words: tuple[str, ...], package: str, extra: str
) -> None:
    code, _, said = ran(*words, blocked=only_in_extras())
    assert code == 1, said
    assert "Traceback" not in said
    assert f"`tandem {words[0]}` needs the package {package}" in said
    assert f"pip install 'tandem-gpu[{extra}]'" in said
