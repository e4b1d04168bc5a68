"""An OCI registry: what it has, what is pushed to it, signatures and attestations."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from controlplane import binaries, releasetools
from deploy.release.tools import run
from tandem.errors import TandemError


@dataclass(frozen=True)
class Registry:
    """A registry with a path, such as `registry.example.com/team`.

    `plain` speaks HTTP with it, for a registry on this machine.
    """

    address: str
    plain: bool = False

    def crane(self, *arguments: str | Path) -> str:
        """Run crane; return what it prints."""
        plain = ("--insecure",) if self.plain else ()
        return run(releasetools.require("crane"), *arguments, *plain).strip()

    def name(self, repository: str) -> str:
        """Return the full name of a repository."""
        return f"{self.address}/{repository}"

    def digest(self, reference: str) -> str | None:
        """Return the digest of a tag such as `tandem:1.2.0`, or None where there is no such tag."""
        try:
            return self.crane("digest", self.name(reference))
        except TandemError as error:
            # The registry answers; it has no such tag or no such repository yet.
            if any(code in error.message for code in ("MANIFEST_UNKNOWN", "NAME_UNKNOWN", " 404 ")):
                return None
            raise

    def image_due(self, reference: str, archive: Path) -> bool:
        """Return whether an image has yet to be pushed.

        Raises:
            TandemError: the tag is there with other content.
        """
        there = self.digest(reference)
        if there is not None and there != image_digest(archive):
            raise taken(self.name(reference), there, image_digest(archive))
        return there is None

    def chart_due(self, reference: str, chart: Path) -> bool:
        """Return whether a chart has yet to be pushed.

        Raises:
            TandemError: the tag is there with other content.
        """
        if self.digest(reference) is None:
            return True
        manifest = json.loads(self.crane("manifest", self.name(reference)))
        there = [layer["digest"] for layer in manifest["layers"]]
        ours = f"sha256:{hashlib.sha256(chart.read_bytes()).hexdigest()}"
        if there != [ours]:
            raise taken(self.name(reference), ", ".join(there), ours)
        return False

    def push_chart(self, chart: Path) -> None:
        """Push a chart; its name and its version are the tag."""
        plain = ("--plain-http",) if self.plain else ()
        run(binaries.require("helm"), "push", chart, f"oci://{self.address}", *plain)


def image_digest(archive: Path) -> str:
    """Return the digest that an archive's image has in every registry."""
    return run(releasetools.require("crane"), "digest", "--tarball", archive).strip()


def taken(name: str, there: str, ours: str) -> TandemError:
    """Return the error of a tag that has other content."""
    return TandemError(
        f"{name} is there with other content ({there}; this release has {ours})",
        "What has been released does not change: take the next version.",
    )


@dataclass(frozen=True)
class Signer:
    """cosign with a key: a file, or what else cosign takes for one.

    The key's password is in COSIGN_PASSWORD. `services` are cosign's options that say which logs
    a signature is written to (`unlogged`: none).
    """

    key: str
    services: tuple[str, ...]
    plain: bool = False

    def _cosign(self, *arguments: str | Path) -> str:
        plain = ("--allow-http-registry",) if self.plain and arguments[0] != "sign-blob" else ()
        return run(
            releasetools.require("cosign"), *arguments, "--key", self.key, "--yes",
            *self.services, *plain,
            hint="The password of the key is read from COSIGN_PASSWORD.",
        )  # fmt: skip

    def sign(self, reference: str) -> None:
        """Sign what a registry has under a digest."""
        assert "@sha256:" in reference, "a tag may be another image by now"
        self._cosign("sign", reference)

    def attest(self, reference: str, kind: str, predicate: Path) -> None:
        """Attach a signed statement of a kind that cosign knows to what has a digest."""
        assert "@sha256:" in reference, "a tag may be another image by now"
        self._cosign("attest", "--type", kind, "--predicate", predicate, reference)

    def sign_file(self, path: Path) -> None:
        """Sign a file: FILE.sigstore.json next to it."""
        self._cosign("sign-blob", "--bundle", f"{path}.sigstore.json", path)

    def public_key(self, path: Path) -> None:
        """Write the public key."""
        cosign = releasetools.require("cosign")
        path.write_text(run(cosign, "public-key", "--key", self.key))


def unlogged(folder: Path) -> tuple[str, ...]:
    """Return the options of cosign by which no service hears of a signature; two files say so."""
    cosign = releasetools.require("cosign")
    config, trusted = folder / "signing-config.json", folder / "trusted-root.json"
    run(cosign, "signing-config", "create", "--out", config)
    run(cosign, "trusted-root", "create", "--out", trusted)
    return ("--signing-config", str(config), "--trusted-root", str(trusted))


def logged(config: Path) -> tuple[str, ...]:
    """Return the options of cosign by which the services of a file log each signature."""
    return ("--signing-config", str(config))
