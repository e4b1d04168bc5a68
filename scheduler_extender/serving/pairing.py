"""The certificates by which the extender and the kube-scheduler of its pod know each other.

Every process of the pod's network namespace reaches the verbs on loopback, and so does a client of
`kubectl port-forward`. KubeSchedulerConfiguration offers TLS with a client certificate and no other
credential. So the extender makes an authority and two certificates in a folder of memory that only
the two containers mount. The authority signs nothing else: its key is thrown away.

The files stay when a container starts again, since kube-scheduler reads them once, at its start.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from scheduler_extender.admission.certificates import Serving, generate_pair
from tandem.errors import TandemError

NAMES = ("127.0.0.1", "localhost")
AUTHORITY, CLIENT, SERVER = "ca.crt", "client", "server"
#: Longer than any pod lives; the files end with their pod.
_VALID_FOR = timedelta(days=3650)


def authority(folder: Path) -> Path:
    """Return the file of the authority of both; make all files where they are not there. Blocks.

    Raises:
        TandemError: the folder cannot be written.
    """
    made = folder / AUTHORITY
    try:
        if not made.exists():
            _make(folder)
    except OSError as error:
        raise TandemError(
            f"{folder}: {error.strerror}", "Mount a folder that the extender may write."
        ) from error
    return made


def serving(folder: Path) -> Serving:
    """Return the extender's own certificate."""
    server = folder / SERVER
    return Serving(b"", (server / "tls.crt").read_bytes(), (server / "tls.key").read_bytes())


def _make(folder: Path) -> None:
    """Write the files; the authority comes last, so that a half-made folder is made anew."""
    folder.mkdir(parents=True, exist_ok=True)
    server, client = generate_pair(NAMES, "kube-scheduler", datetime.now(UTC), _VALID_FOR)
    server.write(folder / SERVER)
    client.write(folder / CLIENT)
    part = folder / f".{AUTHORITY}"
    part.write_bytes(server.ca)
    part.replace(folder / AUTHORITY)
