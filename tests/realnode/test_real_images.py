"""Images that are older than the checkout are noticed before anything is tested with them."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
from real_cluster import ROOT

SCRIPT = ROOT / "deploy" / "images" / "build.py"


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with a checkout of two files and a cache of its own."""
    spec = importlib.util.spec_from_file_location("image_build", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("TANDEM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "NOT_RUN", (tmp_path / "package" / "tools",))
    monkeypatch.setattr(module, "SOURCES", {"one": ("lock", "package"), "other": ("lock",)})
    (tmp_path / "lock").write_text("library==1")
    for name in ("package/code.py", "package/tools/tool.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    return module


def write_image(build: ModuleType, component: str) -> None:
    """Write an archive as buildah does, with the label of today's sources."""
    labels = {build.LABEL: build.sources_hash(component)}
    contents = {
        "abc.json": {"config": {"Labels": labels}},
        "manifest.json": [{"Config": "abc.json"}],
    }
    with tarfile.open(build.archive_path(component), "w") as tar:
        for name, content in contents.items():
            data = json.dumps(content).encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_an_image_is_stale_once_one_of_its_sources_changes(
    build: ModuleType, tmp_path: Path
) -> None:
    assert build.outdated() == {"one": "missing", "other": "missing"}
    for component in build.SOURCES:
        write_image(build, component)
    assert build.outdated() == {}
    code = tmp_path / "package" / "code.py"
    code.write_text("2")
    assert build.outdated() == {"one": "stale"}
    code.write_text("1")
    assert build.outdated() == {}
    code.rename(code.with_name("moved.py"))
    assert build.outdated() == {"one": "stale"}


def test_tools_that_no_service_imports_and_compiled_files_make_no_image_stale(
    build: ModuleType, tmp_path: Path
) -> None:
    for component in build.SOURCES:
        write_image(build, component)
    (tmp_path / "package" / "tools" / "tool.py").write_text("2")
    compiled = tmp_path / "package" / "__pycache__"
    compiled.mkdir()
    (compiled / "code.pyc").write_text("2")
    (tmp_path / "package" / "_share.so").write_text("2")
    assert build.outdated() == {}


def test_an_image_without_the_label_is_stale(build: ModuleType) -> None:
    label, build.LABEL = build.LABEL, "another"
    write_image(build, "one")
    build.LABEL = label
    assert build.outdated()["one"] == "stale"


def test_the_check_says_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check"],
        env={"TANDEM_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "missing images (extender, agent, predictor, train): run `make images`" in done.stdout


@pytest.mark.parametrize("user", ["root", "somebody"])
def test_missing_tools_are_installed_by_root_and_named_to_others(
    build: ModuleType, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    apt = tools / "apt-get"
    apt.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\n')
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setattr(build, "TOOLS", {"sh": "dash", "no-such-tool": "its-package"})
    monkeypatch.setattr(build.os, "geteuid", lambda: 0 if user == "root" else 1000)
    calls = tmp_path / "calls"
    if user == "root":
        build.install_tools()
        assert "install --yes --no-install-recommends its-package" in calls.read_text()
        monkeypatch.setattr(build, "TOOLS", {"sh": "dash"})
        calls.unlink()
        build.install_tools()
    else:
        with pytest.raises(SystemExit, match=r"as root: apt-get install .* its-package"):
            build.install_tools()
    assert not calls.exists()


def test_images_are_loaded_by_the_tandem_that_is_on_the_path(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout need not have an environment of its own."""
    tools = tmp_path / "tools"
    tools.mkdir()
    tandem = tools / "tandem"
    tandem.write_text(
        "#!/bin/sh\n"
        f'[ "$2" = status ] && echo \'{{"real_nodes": {{"real-0": {{}}}}}}\' && exit\n'
        f'echo "$*" >> {tmp_path}/calls\n'
    )
    tandem.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    write_image(build, "one")
    build.archive_path("one").rename(build.cache() / "tandem-one.tar")
    build.load()
    assert (tmp_path / "calls").read_text().startswith("controlplane load ")


@pytest.mark.slow
def test_no_service_imports_what_the_hash_leaves_out() -> None:
    """What is left out of the hash must not decide what an image does."""
    code = """
import sys, scheduler_extender.__main__, node_agent.__main__, predictor.__main__
left_out = [n for n in sys.modules if n.startswith(("controlplane", "tandem.local", "tandem_demo"))]
assert not left_out, left_out
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
