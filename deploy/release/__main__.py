"""Make a release: build, push, sign, describe.

    python -m deploy.release --version 1.2.0 --registry registry.example.com/team --key tandem.key

Everything is built from the commit that is checked out, into .out/release/VERSION. What the
registry has already is kept, so a release that was interrupted goes on; a tag with other content
ends it before anything is pushed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

from deploy.krew import package
from deploy.release import parts, provenance, source
from deploy.release.registry import Registry, Signer, image_digest, logged, unlogged
from deploy.release.source import Source
from deploy.release.tools import ROOT, step
from tandem.errors import TandemError

CHART = "tandem"


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    parser.add_argument("--version", required=True, help="that of pyproject.toml and Chart.yaml")
    parser.add_argument("--registry", required=True, help="such as registry.example.com/team")
    parser.add_argument("--key", help="cosign's: a file, or a reference such as awskms://...")
    parser.add_argument("--signing-config", type=Path, help="cosign's: the logs of signatures")
    parser.add_argument("--base", help="of the images, by digest; else of Debian's packages")
    parser.add_argument("--builder", default=provenance.BUILDER, help="a URI: who builds this")
    parser.add_argument("--krew-url", default=package.URL, help="where the plugin will lie")
    parser.add_argument("--plain-http", action="store_true", help="for a registry without TLS")
    parser.add_argument(
        "--reuse-layers", action="store_true", help="for a trial: of earlier builds"
    )
    parser.add_argument("--dry-run", action="store_true", help="build and compare, push nothing")
    given = parser.parse_args(arguments)
    if given.key is None and not given.dry_run:
        parser.error("--key is needed to sign (--dry-run does without)")
    if given.base is not None and "@sha256:" not in given.base:
        parser.error(f"--base names a digest (IMAGE@sha256:...), not {given.base}")
    return given


def release(given: argparse.Namespace) -> None:
    """Take all steps; raise TandemError where one is refused or fails."""
    commit = source.read(ROOT, given.version)
    notes = source.notes((ROOT / "CHANGELOG.md").read_text(), given.version)
    out = ROOT / ".out" / "release" / given.version
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    registry = Registry(given.registry.rstrip("/"), given.plain_http)
    with source.exported(commit) as tree:
        with step("base of the images"):
            base = parts.base_by_digest(given.base)
        archives = parts.build_images(commit, tree, base, out, reuse_layers=given.reuse_layers)
        digests = {name: image_digest(archive) for name, archive in archives.items()}
        with step("chart, plugin and provenance"):
            chart = parts.package_chart(commit, tree, registry.address, digests, out)
            parts.package_plugin(given.krew_url, out)
            predicate = out / "provenance.json"
            provenance.write(commit, tree, base, registry.address, given.builder, predicate)
    publish(commit, given, registry, archives, chart, out, notes)
    print(f"{out}: {', '.join(sorted(file.name for file in out.iterdir()))}")


def publish(
    commit: Source,
    given: argparse.Namespace,
    registry: Registry,
    archives: dict[str, Path],
    chart: Path,
    out: Path,
    notes: str,
) -> None:
    """Push and sign what has been built, unless this is a rehearsal; write what describes it."""
    tags = {name: f"tandem-{name}:{commit.version}" for name in archives}
    chart_tag = f"{CHART}:{commit.version}"
    with step(f"tags of {registry.address}"):
        due = [name for name in archives if registry.image_due(tags[name], archives[name])]
        chart_due = registry.chart_due(chart_tag, chart)
    references = {
        f"tandem-{name}": f"{registry.name(f'tandem-{name}')}@{image_digest(archive)}"
        for name, archive in archives.items()
    }
    if given.dry_run:
        pushed = [*(tags[name] for name in due), *([chart_tag] if chart_due else [])]
        print(f"nothing is pushed or signed (--dry-run); due: {', '.join(pushed) or 'nothing'}")
        describe(commit, references, notes, out)
        return
    for name in due:
        with step(f"push {tags[name]}"):
            registry.crane("push", archives[name], registry.name(tags[name]))
    if chart_due:
        with step(f"push {chart_tag}"):
            registry.push_chart(chart)
    references[CHART] = f"{registry.name(CHART)}@{registry.digest(chart_tag)}"
    with tempfile.TemporaryDirectory() as scratch:
        logs = given.signing_config
        services = logged(logs) if logs else unlogged(Path(scratch))
        sign(Signer(given.key, services, registry.plain), commit, references, notes, out)


def sign(signer: Signer, commit: Source, references: dict[str, str], notes: str, out: Path) -> None:
    """Sign what has been pushed, attach what describes it, and sign the sums of the files."""
    for name, reference in references.items():
        with step(f"sign {name}"):
            signer.sign(reference)
            signer.attest(reference, "slsaprovenance1", out / "provenance.json")
            if name != CHART:
                signer.attest(reference, "cyclonedx", out / f"{name}.cdx.json")
    signer.public_key(out / "tandem.pub")
    signer.sign_file(describe(commit, references, notes, out))


def describe(commit: Source, references: dict[str, str], notes: str, out: Path) -> Path:
    """Write digests and notes, and the sums of all files; return the file of the sums."""
    made = {"version": commit.version, "commit": commit.commit, "references": references}
    (out / "release.json").write_text(json.dumps(made, indent=2) + "\n")
    listed = "".join(f"- `{reference}`\n" for reference in references.values())
    (out / "NOTES.md").write_text(
        f"# Tandem {commit.version}\n\n{notes}\n### Images and chart\n\n{listed}"
    )
    # Images are in the registry by their digests; their archives are not handed out.
    sums = out / "SHA256SUMS"
    sums.write_text(
        "".join(
            f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
            for file in sorted(out.iterdir())
            if file.suffix != ".tar" and file != sums
        )
    )
    return sums


def main() -> int:
    """Release what the command line names."""
    try:
        release(options())
    except TandemError as error:
        print(f"error: {error.message}\n  {error.hint}".rstrip(), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
