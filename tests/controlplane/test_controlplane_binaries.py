"""Where the control plane's programs come from, without building or starting any of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from controlplane import binaries, build
from tandem.errors import TandemError

KUBERNETES = "k8s.io/kubernetes"
#: Stands in for Go: writes the file named by -o, or fails as the compiler does.
FAKE_GO = """#!/bin/sh
while [ "$1" != "-o" ]; do shift; done
[ -e "$(dirname "$0")/broken" ] && { echo "syntax error: $3"; exit 1; }
[ -e "$(dirname "$0")/slow" ] && sleep 60
printf '#!/bin/sh\\n' > "$2" && chmod +x "$2"
"""


def executable(folder: Path, name: str, content: str = "#!/bin/sh\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(content)
    file.chmod(0o755)
    return file


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty cache and nothing but a shell's own programs on PATH."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "dirname", "printf", "chmod", "sleep"):
        (tools / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("TANDEM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path


@pytest.fixture
def with_go(bare: Path) -> Path:
    executable(bare / "tools", "go", FAKE_GO)
    return bare


def by_name() -> dict[str, binaries.Program]:
    return {program.name: program for program in binaries.PROGRAMS}


def test_every_program_is_pinned_to_a_version() -> None:
    pinned = {program.name: binaries.version(program) for program in binaries.PROGRAMS}
    assert pinned["kube-apiserver"] == pinned["kubectl"] == "v1.37.1"
    assert all(version.startswith("v") for version in pinned.values())


def test_kubernetes_is_linked_with_its_version_and_etcd_with_none() -> None:
    flags = {program.name: binaries.ldflags(program) for program in binaries.PROGRAMS}
    assert "-X k8s.io/component-base/version.gitVersion=v1.37.1 " in flags["kube-scheduler"]
    assert "-X k8s.io/client-go/pkg/version.gitMinor=37 " in flags["kube-scheduler"]
    assert flags["etcd"] == "-s -w"


@pytest.mark.parametrize("minor", [*binaries.other_versions(), "1.37"])
def test_another_version_of_kubernetes_is_built_next_to_the_default_one(
    minor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {binaries.build_folder(), binaries.node_build_folder()}
    others = {p.name: binaries.version(p) for p in binaries.PROGRAMS if p.wrapper != "kubernetes"}
    monkeypatch.setenv("TANDEM_KUBERNETES", minor)
    chosen = [p for p in (*binaries.PROGRAMS, *binaries.NODE_PROGRAMS) if p.module == KUBERNETES]
    assert {binaries.version(program).rpartition(".")[0] for program in chosen} == {f"v{minor}"}
    assert all(f"gitMinor={minor.split('.')[1]} " in binaries.ldflags(p) for p in chosen)
    mine = {binaries.build_folder(), binaries.node_build_folder()}
    assert (mine == folders) == (minor == "1.37")
    assert {name: binaries.version(p) for name, p in by_name().items() if name in others} == others


def test_a_version_that_is_not_pinned_is_refused_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TANDEM_KUBERNETES", "1.29")
    with pytest.raises(TandemError, match=r"Kubernetes 1\.29 is not pinned") as caught:
        binaries.build_folder()
    assert "Use 1.34, 1.36 or" in caught.value.hint


def test_the_cache_key_changes_with_what_is_built_and_with_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "controlplane"
    shutil.copytree(binaries.recipes(), copy)
    original = binaries.cache_key()
    monkeypatch.setattr(binaries, "recipes", lambda: copy)
    assert binaries.cache_key() == original
    (copy / "stages" / "pod.yaml").write_text("other stages are not another build")
    assert binaries.cache_key() == original
    with (copy / "helm" / "go.sum").open("a") as sums:
        sums.write("another module\n")
    assert binaries.cache_key() != original


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.delenv("TANDEM_CACHE_DIR", raising=False)
    assert binaries.cache_root() == Path("/xdg/tandem/controlplane")
    monkeypatch.setenv("TANDEM_CACHE_DIR", "/mine")
    assert binaries.cache_root() == Path("/mine/controlplane")


def test_our_own_build_goes_before_assets_and_assets_before_path(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert binaries.find("etcd") is None
    on_path = executable(bare / "tools", "etcd")
    assert binaries.find("etcd") == on_path
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(bare / "assets"))
    asset = executable(bare / "assets", "etcd")
    assert binaries.find("etcd") == asset
    built = executable(binaries.build_folder(), "etcd")
    assert binaries.find("etcd") == built


def test_what_is_missing_is_named_with_the_way_to_get_it(bare: Path) -> None:
    executable(bare / "tools", "etcd")
    with pytest.raises(TandemError, match=r"without kube-apiserver.*kwok, which") as caught:
        binaries.require_all()
    assert "etcd" not in caught.value.message
    assert "KUBEBUILDER_ASSETS" in caught.value.hint
    executable(bare / "tools", "go", FAKE_GO)
    assert binaries.how_to_get().startswith("Run `tandem controlplane build`")


def test_a_build_makes_every_program_once(with_go: Path) -> None:
    steps: list[build.Step] = []
    folder = build.build(steps.append)
    built = [step.name for step in steps if step.state == "built"]
    assert built == [program.name for program in binaries.PROGRAMS]
    assert {file.name for file in folder.iterdir()} == {*built, ".lock"}
    assert binaries.require_all()["kubectl"] == folder / "kubectl"

    steps.clear()
    assert build.build(steps.append) == folder
    assert steps == []


def test_a_build_that_fails_tells_why_and_keeps_what_was_built(with_go: Path) -> None:
    def break_after_etcd(step: build.Step) -> None:
        if step.state == "built" and step.name == "etcd":
            (with_go / "tools" / "broken").touch()

    with pytest.raises(TandemError, match=r"kube-apiserver v1\.37\.1:\nsyntax error"):
        build.build(break_after_etcd)
    assert build.outstanding() == list(binaries.PROGRAMS[1:])


def test_an_interrupted_build_leaves_nothing_that_looks_finished(with_go: Path) -> None:
    def interrupt(step: build.Step) -> None:
        raise KeyboardInterrupt

    (with_go / "tools" / "slow").touch()
    with pytest.raises(KeyboardInterrupt):
        build.build(interrupt)
    assert build.outstanding() == list(binaries.PROGRAMS)


def test_a_second_builder_waits_for_the_first_and_finds_all_done(with_go: Path) -> None:
    second: list[build.Step] = []
    waiting = threading.Event()

    def note(step: build.Step) -> None:
        second.append(step)
        if step.state == "waiting":
            waiting.set()

    other = threading.Thread(target=lambda: build.build(note))

    def let_the_other_wait(step: build.Step) -> None:
        if not waiting.is_set():
            if other.ident is None:
                other.start()
            assert waiting.wait(60)

    build.build(let_the_other_wait)
    other.join(20)
    assert {step.state for step in second} == {"waiting"}


def test_without_go_there_is_no_build(bare: Path) -> None:
    with pytest.raises(TandemError, match="no Go") as caught:
        build.build(lambda _: None)
    assert "Install Go" in caught.value.hint


def tandem(*args: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("tandem")
    return subprocess.run(
        [program, "controlplane", *args],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": f"{os.environ['TANDEM_CACHE_DIR']}/state"},
    )


def test_make_test_goes_on_where_nothing_can_be_built(bare: Path) -> None:
    answer = tandem("build")
    assert answer.returncode == 0
    tests, promtool = answer.stderr.splitlines()
    assert tests.startswith("Control-plane tests are skipped: no etcd, kube-apiserver, ")
    assert "Install Go" in tests
    assert promtool.startswith("promtool's checks of metrics are skipped")


@pytest.mark.slow
def test_up_says_what_is_missing_and_down_and_status_that_nothing_runs(bare: Path) -> None:
    up = tandem("up")
    assert up.returncode == 1
    assert "no control plane without etcd" in up.stderr
    assert "Install Go" in up.stderr
    assert "Traceback" not in up.stderr
    assert tandem("down").returncode == 0
    assert tandem("status").returncode == 1


_NOT_INSTALLED = """
import sys
class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "controlplane":
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
from tandem.cli.main import main
sys.argv[1:] = ["controlplane", "up", "--nodes", "2"]
main()
"""


def test_the_command_says_that_it_needs_a_checkout() -> None:
    """The wheel contains the command's name, and not the control plane of the tests."""
    done = subprocess.run(
        [sys.executable, "-c", _NOT_INSTALLED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "part of the source tree" in done.stderr
    assert "checkout" in done.stderr
