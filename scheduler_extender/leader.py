"""Leadership: this replica acts while the kube-scheduler of its pod holds that scheduler's Lease.

The extender stands beside its kube-scheduler in one pod, so it is active exactly while that
scheduler holds the Lease. A lost API server ends activity when the last seen renewal has expired.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from scheduler_extender.cluster.jobs import seconds
from tandem.kube.api import ClusterApi
from tandem.kube.errors import KubeError, NotFound
from tandem.kube.resource import LEASES

log = logging.getLogger(__name__)

POLL_S = 1.0
_EAGER_S = 0.1  # between two looks that `hurry` asks for


class LeaseWatch:
    """Reads the Lease every second in a thread; `active()` is cheap and never blocks.

    kube-scheduler's holder identity is `HOSTNAME_UUID`; `hostname` is that of our pod. `changed` is
    called, in that thread, when a term begins or ends.
    """

    def __init__(
        self,
        api: ClusterApi,
        namespace: str,
        name: str,
        hostname: str,
        clock: Callable[[], float],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._hostname = hostname
        self._clock = clock
        self._active_until_s = 0.0
        self._term = ""
        self._changed = changed
        self._stopped = False
        self._look = threading.Event()
        self._looked_s = 0.0  # when the latest look began (monotonic)
        self._exists = True
        self._absent_s = -math.inf  # when the latest look that found the Lease of another began
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; activity ends."""
        self._stopped = True
        self._look.set()
        self._active_until_s = 0.0

    def hurry(self) -> None:
        """Look at once: kube-scheduler has called, so it may lead since a moment ago."""
        if not self.active() and time.monotonic() - self._looked_s >= _EAGER_S:
            self._look.set()

    def stands_by(self, since_s: float) -> bool:
        """Return True where a look since then (monotonic) has found that we do not lead.

        Where there is no Lease at all, there is no election, and the latest look says so.
        """
        return not self.active() and (self._absent_s >= since_s or not self._exists)

    def active(self) -> bool:
        """Return True while the scheduler beside us holds the Lease."""
        return self._clock() < self._active_until_s

    def term(self) -> str:
        """Return the name of the term that we are in, '' while another leads."""
        return self._term if self.active() else ""

    def look(self) -> None:
        """Read the Lease once."""
        began_s = time.monotonic()
        try:
            spec = self._api.get(LEASES, self._name, self._namespace).get("spec") or {}
        except KubeError as error:
            self._exists = not isinstance(error, NotFound)
            log.warning("lease not read error=%s", error)
            return
        self._exists = True
        host = str(spec.get("holderIdentity") or "").rpartition("_")[0]
        before = self.term()
        self._active_until_s = (
            seconds(spec["renewTime"]) + float(spec.get("leaseDurationSeconds") or 0)
            if host == self._hostname and spec.get("renewTime")
            else 0.0
        )
        holder, transitions = spec.get("holderIdentity"), spec.get("leaseTransitions")
        self._term = f"{holder}.{transitions}"
        if not self.active():
            self._absent_s = began_s
        if self.term() != before and not self._stopped:
            log.info("active=%s holder=%s", self.active(), holder)
            self._changed()

    def _run(self) -> None:
        while True:
            self._look.wait(POLL_S)
            if self._stopped:
                return
            self._look.clear()
            self._looked_s = time.monotonic()
            try:
                self.look()
            except Exception:
                # A strange Lease must not end the thread: the next one may be in order.
                log.exception("lease not read")
