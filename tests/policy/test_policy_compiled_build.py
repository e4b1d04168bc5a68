"""The kernel in C: how it is built into the package, and when a built one is used."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

from tandem.policy.compiled import library as loader

ROOT = Path(__file__).parents[2]
FOLDER = Path("tandem/policy/compiled")


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"a_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hook = module_of(ROOT / "hatch_build.py")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with the kernel and little else, without a library."""
    monkeypatch.delenv(loader.VARIABLE, raising=False)
    root = tmp_path / "checkout"
    left_out = shutil.ignore_patterns("__pycache__", hook.LIBRARY)
    shutil.copytree(ROOT / FOLDER, root / FOLDER, ignore=left_out)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root)
    for package in (FOLDER.parent, FOLDER.parent.parent):
        (root / package / "__init__.py").touch()
    return root


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose PATH has no compiler, and that has no compiler's package."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setitem(sys.modules, "ziglang", None)
    return tmp_path / "bin"


def program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def names_in(wheel: Path) -> dict[str, str]:
    """The files of the compiled package in a wheel, and what WHEEL says."""
    with ZipFile(wheel) as archive:
        found = {name: "" for name in archive.namelist() if name.startswith(str(FOLDER))}
        said = next(name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        return {**found, "WHEEL": archive.read(said).decode()}


def hatchling(checkout: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    code = f"import sys; {before}\nfrom hatchling.cli import hatchling; sys.exit(hatchling())"
    return subprocess.run(
        [sys.executable, "-c", code, "build", "-t", "wheel", "-d", "dist"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )


def test_this_checkout_has_the_kernel_of_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every other test would run without it, unnoticed."""
    monkeypatch.delenv(loader.VARIABLE, raising=False)
    assert loader.library.__wrapped__() is not None, "`touch hatch_build.py && make setup`"


@pytest.mark.long
def test_what_is_built_loads_and_knows_its_source(checkout: Path) -> None:
    folder = checkout / FOLDER
    hook.build(folder)
    found = module_of(folder / "library.py")
    kernel = found.library()
    assert kernel.tandem_source() == found.source_of(folder)
    assert found.library() is kernel
    assert {file.name for file in folder.iterdir()} >= {hook.SOURCE, hook.LIBRARY}
    assert not [*folder.glob(".build-*")]


@pytest.mark.slow
def test_a_wheel_with_the_kernel_fits_every_python_of_its_platform(checkout: Path) -> None:
    done = hatchling(checkout)
    assert done.returncode == 0, done.stderr
    (wheel,) = (checkout / "dist").iterdir()
    assert "-py3-none-" in wheel.name
    assert re.search(r"-(linux|manylinux_2_28|macosx_\d+_\d+)_\w+\.whl$", wheel.name)
    found = names_in(wheel)
    assert "Root-Is-Purelib: false" in found["WHEEL"]
    assert {f"{FOLDER}/{name}" for name in (hook.SOURCE, hook.LIBRARY)} <= found.keys()
    with ZipFile(wheel) as archive:
        archive.extractall(checkout / "installed")
    assert module_of(checkout / "installed" / FOLDER / "library.py").library() is not None


def test_without_a_compiler_the_wheel_is_pure_and_one_line_says_so(
    checkout: Path, no_compiler: Path
) -> None:
    (checkout / FOLDER / hook.LIBRARY).write_text("an earlier one")
    done = hatchling(checkout, "sys.modules['ziglang'] = None")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "without its kernel in C" in line]
    assert len(said) == 1
    assert "no C compiler was found" in said[0]
    (wheel,) = (checkout / "dist").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    found = names_in(wheel)
    assert "Root-Is-Purelib: true" in found["WHEEL"]
    assert f"{FOLDER}/{hook.SOURCE}" in found
    assert f"{FOLDER}/{hook.LIBRARY}" not in found
    assert module_of(checkout / FOLDER / "library.py").library() is None


def test_compilers_are_tried_in_order_until_one_works(
    checkout: Path, no_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = no_compiler.parent / "calls"
    for name in ("cc", "gcc", "clang", "mine"):
        program(no_compiler / name, f'echo {name} "$1" >> {calls}; exit 1')
    monkeypatch.setenv("CC", "mine --fast")
    with pytest.raises(hook.NoKernelError, match="mine --fast, cc, gcc, clang cannot build"):
        hook.build(checkout / FOLDER)
    tried = [line.split() for line in calls.read_text().splitlines()]
    assert [words[0] for words in tried] == ["mine", "cc", "gcc", "clang"]
    assert tried[0][1] == "--fast"


def test_a_compiler_for_another_machine_is_passed_over(checkout: Path, no_compiler: Path) -> None:
    program(no_compiler / "cc", "while [ $1 != -o ]; do shift; done; echo other > $2")
    with pytest.raises(hook.NoKernelError, match="cc cannot build"):
        hook.build(checkout / FOLDER)


def test_a_source_that_does_not_compile_ends_the_build(checkout: Path) -> None:
    with (checkout / FOLDER / hook.SOURCE).open("a") as source:
        source.write("int broken = ;\n")
    done = hatchling(checkout)
    assert done.returncode != 0
    assert "does not compile" in done.stderr
    assert "broken" in done.stderr
    assert "TANDEM_COMPILED=0" in done.stderr
    assert not (checkout / FOLDER / hook.LIBRARY).exists()


@pytest.mark.long
def test_a_source_whose_function_is_nowhere_ends_the_build(checkout: Path) -> None:
    with (checkout / FOLDER / hook.SOURCE).open("a") as source:
        source.write("int nowhere(void); int asked(void) { return nowhere(); }\n")
    with pytest.raises(hook.RejectedError, match="nowhere"):
        hook.build(checkout / FOLDER)


def test_who_does_not_want_the_kernel_builds_none(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(loader.VARIABLE, "0")
    with pytest.raises(hook.NoKernelError, match="TANDEM_COMPILED is 0"):
        hook.build(checkout / FOLDER)


@pytest.mark.long
def test_who_does_not_want_the_kernel_gets_none(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook.build(checkout / FOLDER)
    monkeypatch.setenv(loader.VARIABLE, "0")
    with warnings.catch_warnings(action="error"):
        assert module_of(checkout / FOLDER / "library.py").library() is None
    monkeypatch.setenv(loader.VARIABLE, "1")
    assert module_of(checkout / FOLDER / "library.py").library() is not None


@pytest.mark.long
@pytest.mark.parametrize("part", [hook.SOURCE, "board.h"])
def test_a_kernel_of_another_source_is_not_used(checkout: Path, part: str) -> None:
    folder = checkout / FOLDER
    hook.build(folder)
    with (folder / part).open("a") as source:
        source.write("/* changed */\n")
    found = module_of(folder / "library.py")
    with pytest.warns(RuntimeWarning, match="built from other sources"):
        assert found.library() is None
    with warnings.catch_warnings(action="error"):  # it says so once
        assert found.library() is None
    again = shutil.copytree(folder, checkout / "again")
    hook.build(again)
    assert module_of(again / "library.py").library() is not None


@pytest.mark.long
def test_an_installation_without_the_source_has_nothing_to_compare(checkout: Path) -> None:
    hook.build(checkout / FOLDER)
    (checkout / FOLDER / hook.SOURCE).unlink()
    assert module_of(checkout / FOLDER / "library.py").library() is not None


@pytest.mark.parametrize("exports", [None, "int other;"])
def test_what_is_no_kernel_is_not_used(checkout: Path, exports: str | None) -> None:
    folder = checkout / FOLDER
    if exports is None:
        (folder / hook.LIBRARY).write_text("no library")
    else:
        (folder / hook.SOURCE).write_text(exports)
        hook.build(folder)
    with pytest.warns(RuntimeWarning, match="cannot be loaded"):
        assert module_of(folder / "library.py").library() is None


def test_ziglang_compiles_for_every_processor_of_its_kind(
    monkeypatch: pytest.MonkeyPatch, no_compiler: Path
) -> None:
    """Without a target it would compile for the processor of the machine that builds."""
    monkeypatch.setattr(hook.importlib.util, "find_spec", lambda name: name == "ziglang")
    monkeypatch.setattr(hook.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(hook.sys, "platform", "linux")
    (found,) = hook.compilers()
    assert found.command == (
        *(sys.executable, "-m", "ziglang", "cc"),
        *("-target", "aarch64-linux-gnu.2.28"),
    )
    assert found.tag == "manylinux_2_28_aarch64"


def test_other_systems_do_without(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook.sys, "platform", "win32")
    with pytest.raises(hook.NoKernelError, match="not supported on win32"):
        hook.build(checkout / FOLDER)


def test_a_folder_that_cannot_be_written_does_without(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(hook.NoKernelError):
        hook.build(tmp_path / "file")


def test_a_changed_kernel_is_set_up_again() -> None:
    """`make` compares times: the stamps of both environments depend on what the kernel is of."""
    text = (ROOT / "Makefile").read_text()
    kernel = text.split("\nKERNEL := ")[1].splitlines()[0].split()
    assert {"hatch_build.py", "$(wildcard", f"{FOLDER}/*.c", f"{FOLDER}/*.h)"} <= {*kernel}
    for stamp in ("READY", "RUNNABLE"):
        assert text.split(f"\n$({stamp}):")[1].splitlines()[0].endswith("$(KERNEL)")


def test_git_and_images_leave_the_library_out() -> None:
    assert hook.LIBRARY in (ROOT / ".gitignore").read_text().split()
    assert f"**/{hook.LIBRARY}" in (ROOT / ".dockerignore").read_text().split()
