"""The folder that holds all files of one plane, in memory where there is room for it."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp makes a folder of our own in it
_NEEDED = 1 << 30  # bytes free in shared memory, or else the data go to the disk
_PREFIX = "tandem-plane-"
_LOCK = "lock"


class Scratch:
    """A folder and the lock that says that it is in use.

    A process that was killed cannot remove its folder, so the one that makes the next does.
    """

    def __init__(self, base: Path | None = None, prefix: str = _PREFIX) -> None:
        base = base or _base()
        for stale in base.glob(f"{prefix}*"):
            _remove_if_unused(stale)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        self._lock = (self.path / _LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the folder and all that is in it; may be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _base() -> Path:
    with contextlib.suppress(OSError):
        if shutil.disk_usage(_SHARED_MEMORY).free >= _NEEDED:
            return _SHARED_MEMORY
    return Path(tempfile.gettempdir())


def _remove_if_unused(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / _LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
