"""A release that real nodes pull from a registry: installed, upgraded and rolled back under load.

Both releases are of the images that this machine has built, and differ in a label. Nodes have none
of them before: kubelet pulls each by the digest that the release names.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from release_checkout import PASSWORD, ROOT, RegistryProcess, keys, serve, tool, verified

from controlplane import binaries, wait_until
from deploy.release import __main__ as pipeline
from deploy.release import parts, provenance
from deploy.release.registry import Registry, image_digest
from deploy.release.source import Source
from tandem.contracts import names

sys.path.append(str(ROOT / "tests" / "realnode"))
from real_cluster import RealCluster, job, why_not

pytestmark = [
    pytest.mark.release,
    pytest.mark.controlplane,
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]
NEXT = "0.1.1"
_EVERY_S = 3.0
_NAMESPACES = (names.NAMESPACE, names.AGENT_NAMESPACE)


class FromRegistry(RealCluster):
    """Two real nodes that know the image of the jobs alone; Tandem is not installed yet."""

    def load_images(self) -> None:
        for node in self.plane.real_nodes.values():
            node.import_image(images()["train"])

    def install(self, values: Any) -> None:
        kubectl = self.plane.kubectl
        kubectl("create", "namespace", names.NAMESPACE)

    def digests(self) -> set[str]:
        """Return the digests of the images of Tandem that its containers run, by their runtime."""
        found: set[str] = set()
        for namespace in _NAMESPACES:
            for pod in self.plane.get("pods", "-n", namespace)["items"]:
                said = pod["status"]
                containers = (
                    *said.get("containerStatuses", ()),
                    *said.get("initContainerStatuses", ()),
                )
                ids = (container["imageID"] for container in containers)
                found |= {each.rpartition("@")[2] for each in ids if "/tandem-" in each}
        return found


@dataclass(frozen=True)
class Released:
    """A release in the registry: what its `release.json` names, and the public key."""

    references: dict[str, str]
    public: Path

    @property
    def images(self) -> set[str]:
        """The digests of its images."""
        return {
            reference.rpartition("@")[2]
            for name, reference in self.references.items()
            if name != pipeline.CHART
        }

    @property
    def chart(self) -> str:
        """Helm's name of the chart, by digest."""
        return f"oci://{self.references[pipeline.CHART]}"


def images() -> dict[str, Path]:
    folder = binaries.cache_root().parent / "images"
    return {name: folder / f"tandem-{name}.tar" for name in (*parts.COMPONENTS, "train")}


def json_of(archive: tarfile.TarFile, name: str) -> Any:
    file = archive.extractfile(name)
    assert file is not None, f"{name} is no file"
    return json.load(file)


def labelled(archive: Path, label: str, to: Path) -> Path:
    """Write an archive's image again with a label more, and so with another digest."""
    with tarfile.open(archive) as old, tarfile.open(to, "w") as new:
        (listed,) = json_of(old, "manifest.json")
        config = json_of(old, listed["Config"])
        config.setdefault("config", {}).setdefault("Labels", {})["tandem.gpu/release"] = label
        for entry in old.getmembers():
            if entry.name == listed["Config"]:
                content = json.dumps(config).encode()
                entry.size = len(content)
                new.addfile(entry, io.BytesIO(content))
            else:
                new.addfile(entry, old.extractfile(entry) if entry.isfile() else None)
    return to


def publish(source: Source, registry: Registry, key: Path, out: Path) -> Released:
    """Publish a release by the pipeline, of the commit that is checked out as another version."""
    out.mkdir()
    archives = {
        name: labelled(images()[name], source.version, out / f"{name}.tar")
        for name in parts.COMPONENTS
    }
    for name in archives:
        (out / f"tandem-{name}.cdx.json").write_text('{"bomFormat": "CycloneDX"}')
    with pipeline.source.exported(replace(source)) as tree:
        chart = tree / "helm" / "tandem" / "Chart.yaml"
        chart.write_text(
            chart.read_text().replace("ersion: 0.1.0\n", f"ersion: {source.version}\n")
        )
        digests = {name: image_digest(archive) for name, archive in archives.items()}
        packaged = parts.package_chart(source, tree, registry.address, digests, out)
        predicate = out / "provenance.json"
        base = f"python@sha256:{'7' * 64}"
        provenance.write(source, tree, base, registry.address, provenance.BUILDER, predicate)
    given = {"dry_run": False, "key": str(key), "signing_config": None}
    given_by_hand = argparse.Namespace(**given)
    pipeline.publish(source, given_by_hand, registry, archives, packaged, out, "- One thing.\n")
    described = json.loads((out / "release.json").read_text())
    return Released(described["references"], out / "tandem.pub")


@pytest.fixture(scope="module")
def cluster() -> Iterator[FromRegistry]:
    if reason := why_not():
        pytest.skip(f"no real nodes: {reason}")
    for name in ("registry", "crane", "cosign"):
        tool(name)
    with FromRegistry.start(2) as found:
        yield found


@pytest.fixture(scope="module")
def registry(cluster: FromRegistry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry at the address of this machine that the nodes reach."""
    host = cluster.plane.url.removeprefix("https://").rpartition(":")[0]
    folder = tmp_path_factory.mktemp("registry")
    process: RegistryProcess
    with serve(folder, host) as process, pytest.MonkeyPatch.context() as patched:
        for name, value in PASSWORD.items():
            patched.setenv(name, value)
        for node in cluster.plane.real_nodes.values():
            node.pull_by_http(process.address)
        yield Registry(f"{process.address}/team", plain=True)


@pytest.fixture(scope="module")
def releases(
    registry: Registry, head: Source, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Released, Released]:
    """Two releases, the second one of the next version."""
    folder = tmp_path_factory.mktemp("releases")
    key = keys(folder / "keys")
    first = publish(head, registry, key, folder / "first")
    second = publish(replace(head, version=NEXT), registry, key, folder / "second")
    assert not first.images & second.images
    return first, second


def helm(cluster: FromRegistry, command: str, release: Released) -> None:
    """Install or upgrade once the signatures of chart and images hold, as docs/install.md says."""
    for reference in release.references.values():
        assert verified("verify", reference, release.public), reference
    more = ["--reset-then-reuse-values"] if command == "upgrade" else []
    cluster.helm(command, "tandem", release.chart, "--plain-http", *more)


def runs(cluster: FromRegistry, release: Released) -> None:
    """Wait until all pods of Tandem are of a release, and ready."""
    cluster.wait_installed()
    wait_until(
        lambda: cluster.digests() == release.images,
        "all containers are of the release",
        timeout_s=180,
    )


def test_an_upgrade_and_a_rollback_from_the_registry_lose_no_job(
    cluster: FromRegistry, releases: tuple[Released, Released]
) -> None:
    first, second = releases
    helm(cluster, "install", first)
    runs(cluster, first)
    namespace = cluster.namespace()
    cluster.apply_patiently(namespace, job("steady", "--iterations=100000"))
    before = cluster.running(namespace, "steady")
    over, submitted = threading.Event(), list[str]()

    def submit() -> None:
        for number in itertools.count():
            if over.wait(_EVERY_S):
                return
            cluster.apply_patiently(namespace, job(f"job-{number}", "--iterations=5"))
            submitted.append(f"job-{number}")

    stream = threading.Thread(target=submit, daemon=True)
    stream.start()
    helm(cluster, "upgrade", second)
    runs(cluster, second)
    upgraded = len(submitted)
    cluster.helm("rollback", "tandem")
    runs(cluster, first)
    wait_until(lambda: len(submitted) >= upgraded + 3, "jobs come after the rollback")
    over.set()
    stream.join()
    for name in submitted:
        cluster.succeeded(namespace, name)
    after = cluster.running(namespace, "steady")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert not any(each["restartCount"] for each in after["status"]["containerStatuses"])
    holders = cluster.holders()
    assert max(holders.values()) <= 2
    print(f"{len(submitted)} jobs came during an upgrade and a rollback, and all have completed")
