"""Reads what the node's agent reported before this one started.

Nothing is reported until that is known: the first report takes its place, and with it what is kept
nowhere else, such as by which way each GPU is handed over.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from node_agent.publish import RETRY_MAX_S, RETRY_MIN_S, NodeWriter, Object, WriteError

log = logging.getLogger(__name__)

#: The first answer is awaited, so that the first look at the GPUs can be reported.
FIRST_READ_S = 5.0


class EarlierReport:
    """Reads the node's GPUNode once, in a thread of its own, again and again until it succeeds.

    `failed` is called after each attempt that gets no answer.
    """

    def __init__(
        self, node: str, writer: NodeWriter, failed: Callable[[], None] = lambda: None
    ) -> None:
        #: The object as it was last written, None where there is none; valid once `known` is set.
        self.gpu_node: Object | None = None
        self.known = threading.Event()
        self._node = node
        self._writer = writer
        self._failed = failed
        self._tried = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="earlier-report", daemon=True)

    def start(self) -> None:
        """Begin to read; wait a moment for the first answer, whether it says something or not."""
        self._thread.start()
        self._tried.wait(FIRST_READ_S)

    @property
    def broken(self) -> bool:
        """True where a bug has ended the thread: it will never be known."""
        ended = self._thread.ident is not None and not self._thread.is_alive()
        return ended and not self.known.is_set() and not self._stopping.is_set()

    def stop(self) -> None:
        """Give up reading."""
        self._stopping.set()

    def _run(self) -> None:
        retry_s = RETRY_MIN_S
        while not self._stopping.is_set():
            try:
                self.gpu_node = self._writer.read(self._node)
            except WriteError as error:
                self._failed()
                self._tried.set()
                log.warning("earlier report unknown node=%s error=%r", self._node, str(error))
                self._stopping.wait(retry_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load
                retry_s = min(2 * retry_s, RETRY_MAX_S)
            else:
                self.known.set()
                self._tried.set()
                return
