"""The files of a release: the same from the same commit, and what is in them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
import yaml

from controlplane import binaries
from deploy.release import archive, parts, provenance, sbom, source
from deploy.release.__main__ import options
from deploy.release.source import Source
from tandem.errors import TandemError

DIGESTS = {name: f"sha256:{str(at) * 64}" for at, name in enumerate(parts.COMPONENTS)}
REGISTRY = "registry.example.com/team"


@pytest.mark.slow
def test_the_wheel_of_a_commit_is_the_same_wherever_and_whenever_it_is_built(
    head: Source, tmp_path: Path
) -> None:
    made = []
    for number in range(2):
        out = tmp_path / str(number)
        command = ("-m", "hatchling", "build", "--target", "wheel", "--directory", str(out))
        with source.exported(head) as tree:
            for file in tree.rglob("*"):
                os.utime(file, (number, number))
            subprocess.run([sys.executable, *command], cwd=tree, check=True, capture_output=True)
        (wheel,) = out.glob("*.whl")
        made.append((wheel.name, wheel.read_bytes()))
        with zipfile.ZipFile(wheel) as packed:
            assert "tandem/policy/compiled/_share.so" in packed.namelist()
    assert made[0] == made[1]


def built(out: Path, container: str, created: str, labels: dict[str, str]) -> Path:
    """An archive as buildah writes it in a container, of layers that were built at a time."""
    configuration = {
        "architecture": "amd64", "container": container, "parent": container, "created": created,
        "container_config": {"Hostname": container},
        "config": {"Hostname": container, "User": "65532", "Labels": {"title": "tandem", **labels}},
        "history": [{"created": created, "created_by": "COPY", "comment": f"FROM {container}"}],
        "rootfs": {"type": "layers", "diff_ids": ["sha256:1"]},
    }  # fmt: skip
    manifest = [{"Config": "c.json", "RepoTags": ["localhost/tandem:1"], "Layers": ["1.tar"]}]
    texts = {"1.tar": "layer", "c.json": json.dumps(configuration), f"{container}/VERSION": "1.0",
             "manifest.json": json.dumps(manifest)}  # fmt: skip
    path = out / f"{container}.tar"
    with tarfile.open(path, "w") as packed:
        for name, text in texts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            packed.addfile(entry, io.BytesIO(text.encode()))
    return path


def test_an_image_has_the_same_bytes_in_whatever_container_and_from_whatever_layers_it_was_built(
    tmp_path: Path,
) -> None:
    first = built(tmp_path, "a1", "2026-11-26T20:52:52Z", {"tandem.gpu/sources": "836f"})
    second = built(tmp_path, "b2", "2026-11-27T16:45:42Z", {})
    for each in (first, second):
        archive.settle(each, 1_764_261_942, {"tandem.gpu/sources"})
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as packed:
        files = {entry.name: packed.extractfile(entry) for entry in packed}
        content = {name: file.read() for name, file in files.items() if file is not None}
    (image,) = json.loads(content["manifest.json"])
    text = content[image["Config"]]
    kept = json.loads(text)
    assert image["RepoTags"] == ["localhost/tandem:1"]
    assert image["Config"] == f"{hashlib.sha256(text).hexdigest()}.json"
    assert kept["config"] == {"User": "65532", "Labels": {"title": "tandem"}}
    assert kept["history"] == [{"created": "2025-11-27T16:45:42Z", "created_by": "COPY"}]
    assert content["1.tar"] == b"layer"


def chart(head: Source, out: Path) -> Path:
    out.mkdir()
    with source.exported(head) as tree:
        return parts.package_chart(head, tree, REGISTRY, DIGESTS, out)


@pytest.mark.long
def test_the_chart_names_its_images_by_digest_and_is_the_same_each_time(
    head: Source, tmp_path: Path
) -> None:
    if binaries.find("helm") is None:
        pytest.skip(f"no helm on this machine. {binaries.how_to_get()}")
    first, second = chart(head, tmp_path / "1"), chart(head, tmp_path / "2")
    assert first.name == f"tandem-{head.version}.tgz"
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_mtime == head.time
    command = [binaries.require("helm"), "template", "tandem", first, "--kube-version", "1.37.0"]
    rendered = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name, digest in DIGESTS.items():
        assert f"image: {REGISTRY}/tandem-{name}@{digest}" in rendered.replace('"', "")


def test_values_that_no_longer_have_a_place_for_digests_are_noticed() -> None:
    with pytest.raises(AssertionError, match="digests"):
        parts.with_images('image:\n  registry: ""\n', REGISTRY, DIGESTS)


def test_the_manifest_for_krew_is_of_the_archive_next_to_it(tmp_path: Path) -> None:
    parts.package_plugin("https://example.com/plugin/", tmp_path)
    plugin = yaml.safe_load((tmp_path / "tandem.yaml").read_text())
    (platform,) = plugin["spec"]["platforms"]
    content = (tmp_path / "kubectl-tandem.zip").read_bytes()
    assert platform["sha256"] == hashlib.sha256(content).hexdigest()
    version = plugin["spec"]["version"]
    assert platform["uri"] == f"https://example.com/plugin/{version}/kubectl-tandem.zip"


def an_image(root: Path) -> Path:
    """Write the files of an image by which its packages are known."""
    dpkg = root / "var" / "lib" / "dpkg" / "status"
    dpkg.parent.mkdir(parents=True)
    dpkg.write_text(
        "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\n"
        "Version: 2:2.36-9+deb12u1\nDescription: one\n more\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 1\n\n"
    )
    site = root / "opt" / "tandem" / "lib" / "python3.13" / "site-packages"
    for name, version, licence in (
        ("numpy", "2.1.0", "License-Expression: BSD-3-Clause\n"),
        ("Typing_Extensions", "4.12", "License: PSF\n"),
    ):
        about = site / f"{name}-{version}.dist-info"
        about.mkdir(parents=True)
        text = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{licence}"
        (about / "METADATA").write_text(text)
    return root


def test_the_list_of_an_image_has_what_is_installed_in_it(head: Source, tmp_path: Path) -> None:
    root = an_image(tmp_path)
    made = sbom.document(root, "agent", head)
    assert [part["purl"] for part in made["components"]] == [
        "pkg:deb/debian/libc6@2%3A2.36-9+deb12u1?arch=amd64",
        "pkg:pypi/numpy@2.1.0",
        "pkg:pypi/typing-extensions@4.12",
    ]
    assert made["components"][1]["licenses"] == [{"license": {"name": "BSD-3-Clause"}}]
    assert made["metadata"]["component"]["name"] == "tandem-agent"
    assert sbom.document(root, "agent", head) == made
    (root / "var" / "lib" / "dpkg" / "status").write_text("")
    assert sbom.document(root, "agent", head)["serialNumber"] != made["serialNumber"]


def test_the_provenance_names_commit_base_and_locks(checkout: Path, tmp_path: Path) -> None:
    commit = source.read(checkout, "1.2.0")
    base = f"python@sha256:{'7' * 64}"
    path = tmp_path / "provenance.json"
    provenance.write(commit, checkout, base, REGISTRY, "https://example.com/ci", path)
    made = json.loads(path.read_text())
    definition, run = made["buildDefinition"], made["runDetails"]
    assert definition["externalParameters"] == {"version": "1.2.0", "registry": REGISTRY}
    lock = hashlib.sha256((checkout / "requirements-run.lock").read_bytes()).hexdigest()
    assert [each["digest"] for each in definition["resolvedDependencies"]] == [
        {"gitCommit": commit.commit},
        {"sha256": "7" * 64},
        {"sha256": lock},
    ]
    assert run["builder"]["id"] == "https://example.com/ci"
    finished = time.strptime(run["metadata"]["finishedOn"][:19], "%Y-%m-%dT%H:%M:%S")
    assert finished.tm_year >= 2026


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "--key is needed"),
        (("--key", "k", "--base", "python:3.13"), "names a digest"),
    ],
)
def test_what_cannot_be_released_is_refused_at_once(
    arguments: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        options(["--version", "1.2.0", "--registry", REGISTRY, *arguments])
    assert error in capsys.readouterr().err
    options(["--version", "1.2.0", "--registry", REGISTRY, "--dry-run"])


def test_a_program_that_fails_says_why() -> None:
    from deploy.release.tools import run

    with pytest.raises(TandemError, match="no such thing"):
        run("sh", "-c", "echo no such thing >&2; exit 3")
    with pytest.raises(TandemError, match="there is no tandem-no-program on this machine"):
        run("tandem-no-program")
