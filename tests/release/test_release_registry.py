"""A release in a registry: pushed once, signed by digest, verified, and refused when changed."""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from release_checkout import ROOT, RegistryProcess, cosign, keys, verified

from controlplane import binaries, releasetools
from deploy.release import __main__ as pipeline
from deploy.release import parts, provenance
from deploy.release.registry import Registry, image_digest
from deploy.release.source import Source
from tandem.errors import TandemError

pytestmark = [pytest.mark.release, pytest.mark.slow]
COMPONENTS = ("agent", "extender")


@dataclass(frozen=True)
class Release:
    """A release that is built: an image of one small file for each component, chart and plugin."""

    registry: Registry
    source: Source
    out: Path
    archives: dict[str, Path]
    chart: Path
    key: Path

    def publish(self, **changed: object) -> None:
        given = {"dry_run": False, "key": str(self.key), "signing_config": None}
        pipeline.publish(
            self.source,
            argparse.Namespace(**(given | changed)),
            self.registry,
            self.archives,
            self.chart,
            self.out,
            "- One thing.\n",
        )

    def reference(self, name: str) -> str:
        return json.loads((self.out / "release.json").read_text())["references"][name]


def an_image(path: Path, content: str) -> Path:
    """Write an archive as buildah does, of an image with one file."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        add(tar, "file", content.encode())
    diff = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/file"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff}"]},
    }
    name = f"localhost/{path.stem}:1"
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        add(tar, "config.json", json.dumps(config).encode())
        add(tar, "layer.tar", layer.getvalue())
        add(tar, "manifest.json", json.dumps(manifest).encode())
    return path


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


@pytest.fixture
def release(registry_process: RegistryProcess, head: Source, tmp_path: Path) -> Release:
    """A release of this commit that is built and not yet published, each test in its own path."""
    out = tmp_path / "out"
    out.mkdir()
    registry = Registry(f"{registry_process.address}/{tmp_path.name}", plain=True)
    archives = {name: an_image(out / f"{name}.tar", f"{name}, {tmp_path}") for name in COMPONENTS}
    for name in COMPONENTS:
        listed = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"name": name}]}
        (out / f"tandem-{name}.cdx.json").write_text(json.dumps(listed))
    digests = {name: image_digest(archive) for name, archive in archives.items()}
    with pipeline.source.exported(head) as tree:
        chart = parts.package_chart(head, tree, registry.address, digests, out)
        predicate = out / "provenance.json"
        base = f"python@sha256:{'7' * 64}"
        provenance.write(head, tree, base, registry.address, provenance.BUILDER, predicate)
    parts.package_plugin("https://example.com", out)
    return Release(registry, head, out, archives, chart, keys(tmp_path / "keys"))


def test_what_is_published_is_signed_by_digest_and_another_key_is_refused(
    release: Release, tmp_path: Path
) -> None:
    release.publish()
    public = release.out / "tandem.pub"
    other = keys(tmp_path / "other").with_suffix(".pub")
    for name in ("tandem-agent", "tandem-extender", "tandem"):
        reference = release.reference(name)
        tag = f"{name}:{release.source.version}"
        assert reference.endswith(f"@{release.registry.digest(tag)}")
        assert verified("verify", reference, public)
        assert not verified("verify", reference, other)
    for name in COMPONENTS:
        assert release.reference(f"tandem-{name}").endswith(image_digest(release.archives[name]))


@pytest.mark.parametrize(
    ("kind", "file"),
    [("slsaprovenance1", "provenance.json"), ("cyclonedx", "tandem-agent.cdx.json")],
)
def test_what_is_attached_is_what_was_written(
    release: Release, kind: str, file: str, tmp_path: Path
) -> None:
    release.publish()
    reference = release.reference("tandem-agent")
    public, other = release.out / "tandem.pub", keys(tmp_path / "other").with_suffix(".pub")
    attached = verified("verify-attestation", reference, public, "--type", kind)
    (statement,) = [json.loads(line) for line in attached.splitlines() if line.strip()]
    payload = json.loads(base64.b64decode(statement["payload"]))
    assert payload["predicate"] == json.loads((release.out / file).read_text())
    (subject,) = payload["subject"]
    assert f"@sha256:{subject['digest']['sha256']}" in reference
    assert not verified("verify-attestation", reference, other, "--type", kind)


def test_a_byte_that_the_registry_changes_is_noticed_by_who_pulls(
    release: Release, registry_process: RegistryProcess, tmp_path: Path
) -> None:
    release.publish()
    reference = release.reference("tandem-agent")
    release.registry.crane("pull", reference, tmp_path / "good.tar")
    manifest = json.loads(release.registry.crane("manifest", reference))
    for digest in (manifest["layers"][0]["digest"], reference.rpartition("@")[2]):
        with registry_process.changed(digest), pytest.raises(TandemError):
            release.registry.crane("pull", reference, tmp_path / "changed.tar")
    assert verified("verify", reference, release.out / "tandem.pub")
    release.registry.crane("pull", reference, tmp_path / "again.tar")


def test_what_is_there_stays_and_other_content_is_refused_before_anything_is_pushed(
    release: Release,
) -> None:
    release.publish()
    before = registry_tags(release)
    release.publish()
    assert registry_tags(release) == before

    an_image(release.archives["extender"], "other")
    with pytest.raises(TandemError, match=r"tandem-extender:.* is there with other content"):
        release.publish()
    assert registry_tags(release) == before


def test_another_chart_under_the_same_version_is_refused(release: Release) -> None:
    release.publish()
    before = registry_tags(release)
    release.chart.write_bytes(release.chart.read_bytes() + b"\0")
    with pytest.raises(TandemError, match=r"/tandem:.* is there with other content"):
        release.publish()
    assert registry_tags(release) == before


def registry_tags(release: Release) -> dict[str, str | None]:
    """Return the digests of the tags of a release."""
    names = (*(f"tandem-{name}" for name in COMPONENTS), "tandem")
    version = release.source.version
    return {name: release.registry.digest(f"{name}:{version}") for name in names}


def test_a_rehearsal_pushes_and_signs_nothing(
    release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    release.publish(dry_run=True, key=None)
    assert set(registry_tags(release).values()) == {None}
    said = capsys.readouterr().out
    for name in (*(f"tandem-{name}" for name in COMPONENTS), "tandem"):
        assert f"{name}:{release.source.version}" in said
    assert "- One thing." in (release.out / "NOTES.md").read_text()
    assert not (release.out / "tandem.pub").exists()


def test_a_registry_that_does_not_answer_is_named(release: Release) -> None:
    away = Registry("127.0.0.1:1/team", plain=True)
    with pytest.raises(TandemError, match=r"127\.0\.0\.1:1"):
        away.digest("tandem:1")


def test_a_file_of_the_release_that_was_changed_is_noticed(release: Release) -> None:
    release.publish()
    sums = release.out / "SHA256SUMS"
    check = ("verify-blob", "--bundle", f"{sums}.sigstore.json", "--insecure-ignore-tlog")
    check = (*check, "--key", str(release.out / "tandem.pub"), str(sums))
    assert cosign(*check)
    names = {line.split()[1] for line in sums.read_text().splitlines()}
    assert {"NOTES.md", "kubectl-tandem.zip", "tandem.yaml", release.chart.name} <= names
    again = ["sha256sum", "--check", "--strict", "--quiet", sums.name]
    assert subprocess.run(again, cwd=release.out, check=False).returncode == 0
    with (release.out / "tandem.yaml").open("a") as file:
        file.write("\n")
    assert subprocess.run(again, cwd=release.out, check=False).returncode == 1
    sums.write_text(sums.read_text().replace("0", "1"))
    assert not cosign(*check)


def test_helm_takes_the_chart_from_the_registry_by_digest(release: Release) -> None:
    release.publish()
    helm = [binaries.require("helm"), "template", "tandem", "--plain-http"]
    chart = f"oci://{release.reference('tandem')}"
    made = subprocess.run([*helm, chart], check=True, capture_output=True, text=True).stdout
    images = {
        container["image"]
        for each in yaml.safe_load_all(made)
        if each and each["kind"] in ("Deployment", "DaemonSet")
        for kind in ("containers", "initContainers")
        for container in each["spec"]["template"]["spec"].get(kind, ())
    }
    assert {release.reference(f"tandem-{name}") for name in COMPONENTS} <= images


@pytest.fixture
def krew(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Krew with folders of the test's own, and the `tandem` of this environment on PATH."""
    path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    env = {
        **os.environ,
        "KREW_ROOT": str(tmp_path / "krew"),
        "KREW_NO_UPGRADE_CHECK": "1",
        "PATH": path,
    }

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [releasetools.require("krew"), *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    return run


def test_krew_installs_the_plugin_of_the_release_and_refuses_another_archive(
    release: Release, krew: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    manifest, archive = release.out / "tandem.yaml", release.out / "kubectl-tandem.zip"
    arguments = ("install", f"--manifest={manifest}")
    changed = tmp_path / "changed.zip"
    changed.write_bytes(archive.read_bytes().replace(b"tandem", b"tandex", 1))
    refused = krew(*arguments, f"--archive={changed}")
    assert refused.returncode != 0
    assert "checksum" in refused.stderr
    installed = krew(*arguments, f"--archive={archive}")
    assert installed.returncode == 0, installed.stderr
    plugin = tmp_path / "krew" / "bin" / "kubectl-tandem"
    path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    command = [plugin, "--help"]
    said = subprocess.run(
        command, env={**os.environ, "PATH": path}, check=True, capture_output=True, text=True
    )
    assert "kubectl tandem" in said.stdout
