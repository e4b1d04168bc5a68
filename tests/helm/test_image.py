"""The Dockerfile, read as data; and its build stage taken step by step in a folder."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from helm_render import ROOT

#: Licences under which others may use, change and sell what they are given with the image.
PERMISSIVE = (
    "Apache", "MIT", "BSD", "0BSD", "ISC", "PSF", "Python Software Foundation", "Zlib", "CC0-1.0",
)  # fmt: skip
COMPONENTS = {"extender": "scheduler_extender", "agent": "node_agent", "predictor": "predictor"}
#: What a component must not bring: libraries that only others import.
LEFT_OUT = (
    "pip", "pytest", "mypy", "matplotlib", "hatchling", "kubernetes", "scipy", "xgboost", "ziglang",
)  # fmt: skip
#: How byte code says that no time of its source counts (PEP 552).
UNCHECKED = (1).to_bytes(4, "little")
#: What the steps call that a base has; it has no C compiler.
TOOLS = ("sh", "find", "rm")
#: Copyleft by file, for a list of certificates that we do not change.
BY_FILE = {"certifi": "MPL-2.0"}


def instructions() -> list[tuple[str, str]]:
    """Return (instruction, arguments) of the Dockerfile, continued lines joined."""
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / "Dockerfile").read_text()).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def stages() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for name, arguments in instructions():
        if name == "FROM":
            base, _, stage = arguments.partition(" AS ")
            found[stage] = [("FROM", base)]
        elif found:
            found[stage].append((name, arguments))
    return found


def test_images_are_built_from_one_base_and_run_as_somebody() -> None:
    found = stages()
    builds = {f"build-{name}" for name in COMPONENTS}
    assert found.keys() == {"build", "wheel", "base", *builds, *COMPONENTS}
    assert dict(found["base"])["USER"] == "65532:65532"
    for target in COMPONENTS:
        keys = dict(found[target])
        assert keys["FROM"] == "base"
        assert keys["COPY"] == f"--from=build-{target} /opt/tandem /opt/tandem"
        module = json.loads(keys["ENTRYPOINT"])[-1]
        assert (ROOT / module / "__main__.py").exists()
        assert keys["HEALTHCHECK"].startswith("CMD [")
        assert ("USER" in keys) == (target == "agent")
    labels = dict(found["base"])["LABEL"]
    for label in ("title", "description", "version", "licenses"):
        assert f"org.opencontainers.image.{label}=" in labels
    assert not [name for name, _ in instructions() if name == "ADD"]


@pytest.mark.parametrize(
    ("release", "image", "fine"),
    [
        ("false", "python:3.13-slim", True),
        ("true", "python:3.13-slim", False),
        ("true", "python", False),
        ("true", f"python:3.13-slim@sha256:{'0' * 64}", True),
        ("yes", f"python:3.13-slim@sha256:{'0' * 64}", False),
    ],
)
def test_a_release_is_built_on_a_base_by_digest(release: str, image: str, fine: bool) -> None:
    bases = [stage[0][1] for stage in stages().values()]
    assert set(bases) == {"${PYTHON_IMAGE}", "base", "build"}
    check = next(arguments for name, arguments in stages()["build"] if name == "RUN")
    answer = subprocess.run(
        ["sh", "-ec", check],
        env={**os.environ, "RELEASE": release, "PYTHON_IMAGE": image},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode == 0) is fine
    assert fine or "by digest" in answer.stderr


def test_all_that_is_installed_is_locked_and_comes_ready_made() -> None:
    text = (ROOT / "Dockerfile").read_text() + (ROOT / "deploy/images/install.sh").read_text()
    installs = re.findall(r"pip install ([^&\n]+)", text)
    from_index = [line for line in installs if "/wheels" not in line]
    assert from_index
    for line in from_index:
        assert "--require-hashes" in line
        assert "--only-binary=:all:" in line


def test_only_what_is_copied_is_sent_to_the_builder() -> None:
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")
    }
    copied = {
        source
        for name, arguments in instructions()
        if name == "COPY" and "--from" not in arguments
        for source in arguments.split()[:-1]
    }
    assert copied == kept
    assert all((ROOT / path).exists() for path in copied)


def test_what_the_image_holds_is_free_to_use() -> None:
    lock = "".join((ROOT / f"requirements-{name}.lock").read_text() for name in COMPONENTS)
    checked = 0
    for name in re.findall(r"(?m)^([A-Za-z0-9_.-]+)==", lock):
        try:
            found = metadata(name)
        except PackageNotFoundError:
            continue  # for another platform
        said = found.get("License-Expression") or "; ".join(
            [
                *(c for c in found.get_all("Classifier") or [] if c.startswith("License")),
                (found.get("License") or "").partition("\n")[0],
            ]
        )
        fits = (*PERMISSIVE, BY_FILE.get(name, "MIT"))
        assert any(licence in said for licence in fits), f"{name}: {said}"
        assert not re.search(r"\b[AL]?GPL", said), f"{name}: {said}"
        checked += 1
    assert checked > 40


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "component",
    [
        "extender",
        # Each takes a minute; `make images` starts every component as well.
        pytest.param("agent", marks=pytest.mark.real),
        pytest.param("predictor", marks=pytest.mark.real),
    ],
)
def test_the_build_stages_make_an_installation_that_runs(component: str, tmp_path: Path) -> None:
    """The instructions of the stages, with every absolute path below a folder of ours."""
    left = ("PYTHONPATH", "CC", "TANDEM_COMPILED")
    env = {key: value for key, value in os.environ.items() if key not in left}
    env["PATH"] = str(path_of_a_base(tmp_path / "tools"))
    folder = follow(stages()["build"], tmp_path, tmp_path, env)
    python = tmp_path / "opt" / "tandem" / "bin" / "python"
    empty = tmp_path / "elsewhere"
    empty.mkdir()
    follow(stages()["wheel"], folder, tmp_path, env)
    follow(stages()[f"build-{component}"], folder, tmp_path, env)
    module = COMPONENTS[component]
    compiled = list((tmp_path / "opt" / "tandem").rglob("*.pyc"))
    assert len(compiled) > 100
    by_time = [file for file in compiled if file.read_bytes()[4:8] != UNCHECKED]
    assert by_time == []
    assert "usage" in run([python, "-m", module, "--help"], empty, env).lower()
    where = run([python, "-c", f"import {module}; print({module}.__file__)"], empty, env)
    assert str(tmp_path / "opt") in where
    assert "tandem" in run([python.with_name("tandem"), "--help"], empty, env).lower()
    code = "from tandem.policy.compiled.library import library; assert library()"
    assert ("RUN", f'python -c "{code}"') in stages()["extender"]
    run([python, "-c", code], empty, env)
    for left_out in LEFT_OUT:
        code = f"import importlib.util as u; print(u.find_spec({left_out!r}))"
        assert run([python, "-c", code], empty, env).strip() == "None"


def follow(stage: list[tuple[str, str]], folder: Path, root: Path, env: dict[str, str]) -> Path:
    """Take the steps of a stage in `folder`, with `root` for /; return the folder at its end."""

    def moved(text: str) -> str:
        return re.sub(r"(?<![\w.])/(opt|src|wheels)\b", rf"{root}/\1", text)

    for name, arguments in stage:
        if name == "ENV":
            env |= dict(pair.split("=", 1) for pair in shlex.split(arguments))
        elif name == "ARG" and "=" in arguments:
            env |= dict([arguments.split("=", 1)])
        elif name == "WORKDIR":
            folder = Path(moved(arguments))
            folder.mkdir()
        elif name == "COPY" and "--from" not in arguments:  # all stages have one folder here
            *sources, target = arguments.split()
            for source in sources:
                copied = folder / target / (Path(source).name if len(sources) > 1 else "")
                copy(ROOT / source, folder / target)
                if source.endswith(".sh"):
                    copied.write_text(here(moved(copied.read_text())))
        elif name == "RUN":
            run(["sh", "-ec", here(moved(arguments))], folder, env)
    return folder


def path_of_a_base(folder: Path) -> Path:
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(shutil.which(tool))
    return folder


def here(text: str) -> str:
    """Return a command that uses the interpreter of this test."""
    return text.replace("python3 -m venv", f"{sys.executable} -m venv")


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        ignored = shutil.ignore_patterns("__pycache__", "*.so.1", "_share.so")
        shutil.copytree(source, target, ignore=ignored)
    else:
        shutil.copy(source, target)


def run(command: list[str | Path], folder: Path, env: dict[str, str]) -> str:
    answer = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout
