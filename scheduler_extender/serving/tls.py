"""TLS of a port whose certificate may be exchanged while connections are open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

from scheduler_extender.admission.certificates import Serving, ends
from scheduler_extender.config import Listen
from tandem.errors import TandemError
from tandem.kube.errors import KubeError

log = logging.getLogger(__name__)


async def _at_once() -> None:
    """Wait for nothing."""


class Tls:
    """What a port is served with: TLS 1.2 or later, and a certificate that `use` exchanges.

    Connections that are open go on with the certificate that they began with. With `client_ca`
    (a PEM file), callers must show a certificate of one of its authorities. `on_change` is called
    with the end of the new certificate (Unix time).
    """

    def __init__(
        self, client_ca: Path | None = None, on_change: Callable[[float], None] = lambda _: None
    ) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        if client_ca is not None:
            try:
                self.context.load_verify_locations(client_ca)
            except (OSError, ssl.SSLError) as error:
                raise TandemError(
                    f"{client_ca} names no authority of callers ({error})",
                    "Name a file in PEM format.",
                ) from error
            self.context.verify_mode = ssl.CERT_REQUIRED
        self._on_change = on_change
        self._used: Serving | None = None

    def use(self, serving: Serving) -> None:
        """Serve with this certificate from the next connection on.

        Raises:
            TandemError: certificate and key do not belong together, or are none.
        """
        if self._used and (self._used.certificate, self._used.key) == (
            serving.certificate,
            serving.key,
        ):
            return
        with tempfile.TemporaryDirectory(prefix="tandem-tls-") as folder:
            files = serving.write(Path(folder))
            try:
                # A pair that does not fit would leave the live context without a key.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*files)
            except ssl.SSLError as error:
                raise TandemError(
                    f"the certificate cannot be served ({error})",
                    "Give a certificate and its own key in PEM format.",
                ) from error
            self.context.load_cert_chain(*files)
        self._used = serving
        self._on_change(ends(serving.certificate).timestamp())

    @contextlib.asynccontextmanager
    async def follow(
        self,
        look: Callable[[], Serving],
        every_s: float,
        ready: Callable[[], Awaitable[None]] = _at_once,
    ) -> AsyncIterator[None]:
        """Serve with what `look` (which blocks) returns, asked again and again once `ready`."""

        async def looking() -> None:
            await ready()
            while True:
                try:
                    self.use(await asyncio.to_thread(look))
                except (TandemError, KubeError) as error:
                    log.error("certificate not looked at error=%s", error)
                except Exception:
                    log.exception("certificate not looked at")
                await asyncio.sleep(every_s)

        task = asyncio.create_task(looking())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def read_files(certificate: Path, key: Path) -> Serving:
    """Return the certificate that is in two files.

    Raises:
        TandemError: one cannot be read.
    """
    try:
        return Serving(b"", certificate.read_bytes(), key.read_bytes())
    except OSError as error:
        raise TandemError(f"{error.filename}: {error.strerror}", "Name files in PEM format.") from (
            error
        )


@contextlib.asynccontextmanager
async def tls_of_files(
    listen: Listen, every_s: float, on_change: Callable[[float], None] = lambda _: None
) -> AsyncIterator[Tls | None]:
    """Serve with the certificate of a port's files, read anew when they change; None without."""
    if listen.tls_cert is None or listen.tls_key is None:
        yield None
        return
    read = partial(read_files, listen.tls_cert, listen.tls_key)
    tls = Tls(listen.client_ca, on_change)
    tls.use(read())
    async with tls.follow(read, every_s):
        yield tls
