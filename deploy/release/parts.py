"""The parts of a release as files: wheel, archives of images, chart, plugin of kubectl."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from controlplane import binaries
from deploy.images import build as images
from deploy.krew import package
from deploy.release import archive, sbom
from deploy.release.source import Source
from deploy.release.tools import run, step

#: Those that a cluster runs; the example's image is no part of a release.
COMPONENTS = tuple(name for name in images.SOURCES if name != images.EXAMPLE)


def base_by_digest(chosen: str | None) -> str:
    """Return the base of the images by digest: the one that is named, or Debian's packages."""
    images.install_tools()
    if chosen is not None:
        return chosen
    name = images.base_image()
    image = "{{.FromImageDigest}}"
    digest = images.buildah("inspect", "--type", "image", "--format", image, name).strip()
    return f"{name.rpartition(':')[0]}@{digest}"


def build_images(
    source: Source, tree: Path, base: str, out: Path, *, reuse_layers: bool = False
) -> dict[str, Path]:
    """Build the images and the wheel that they hold; return the archives by component.

    Next to each archive is what the image holds, as CycloneDX. All files of the image and the image
    itself have the time of the commit. `reuse_layers` takes layers of earlier builds where nothing
    changed since; their files have the time of those builds, so that digests differ.
    """
    options = [
        "--timestamp", str(source.time), "--identity-label=false",
        "--build-arg", "RELEASE=true", "--build-arg", f"VERSION={source.version}",
        "--label", f"org.opencontainers.image.revision={source.commit}",
        *([] if reuse_layers else ["--no-cache"]),
    ]  # fmt: skip
    stage = f"localhost/tandem-release-wheel:{source.version}"
    with step("wheel, by the compiler of the images"):
        images.build_image(stage, base, tree, *options, "--target", "wheel")
        with images.mounted(stage) as root:
            for wheel in (root / "wheels").glob("*.whl"):
                shutil.copy(wheel, out)
    archives = {}
    for component in COMPONENTS:
        name = f"localhost/tandem-{component}:{source.version}"
        with step(f"image {component}"):
            images.build_image(name, base, tree, *options, "--target", component)
            archives[component] = out / f"tandem-{component}-{source.version}.tar"
            images.save(name, archives[component])
            archive.settle(archives[component], source.time, {images.LABEL})
            with images.mounted(name) as root:
                sbom.write(root, component, source, out / f"tandem-{component}.cdx.json")
    return archives


def package_chart(
    source: Source, tree: Path, registry: str, digests: Mapping[str, str], out: Path
) -> Path:
    """Package the chart, with the registry and the digests of the images as its values."""
    chart = tree / "helm" / "tandem"
    values = chart / "values.yaml"
    values.write_text(with_images(values.read_text(), registry, digests))
    os.utime(values, (source.time, source.time))
    run(binaries.require("helm"), "package", chart, "--destination", out, env=source.environment)
    made = out / f"tandem-{source.version}.tgz"
    # `helm push` writes the time of the file into the manifest.
    os.utime(made, (source.time, source.time))
    return made


def with_images(values: str, registry: str, digests: Mapping[str, str]) -> str:
    """Return the chart's values, which name a registry and the digests of its images."""
    listed = ", ".join(f'{name}: "{digest}"' for name, digest in sorted(digests.items()))
    for key, empty, given in (
        ("registry", '""', f'"{registry}"'),
        ("digests", "{}", f"{{ {listed} }}"),
    ):
        values, times = re.subn(
            rf"^  {key}: {re.escape(empty)}$", f"  {key}: {given}", values, flags=re.MULTILINE
        )
        assert times == 1, f"helm/tandem/values.yaml has one `{key}: {empty}`"
    return values


def package_plugin(url: str, out: Path) -> None:
    """Write the plugin's archive, and the manifest for krew with its sha256."""
    content = package.archive()
    (out / package.ARCHIVE).write_bytes(content)
    (out / package.MANIFEST).write_text(package.manifest(content, url))
