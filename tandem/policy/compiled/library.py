"""Loads the kernel in C, where it was built."""

from __future__ import annotations

import ctypes
import hashlib
import os
import warnings
from functools import cache
from pathlib import Path

#: `0`: decide in Python, as where the kernel was never built.
VARIABLE = "TANDEM_COMPILED"
_LIBRARY = Path(__file__).with_name("_share.so")
_SOURCE = Path(__file__).with_name("share.c")


@cache
def library() -> ctypes.CDLL | None:
    """Return the kernel, loaded once; None where the policies have to do without it.

    They do where it was not built, where it cannot be loaded, where it was built from another
    source than that next to it, and where `TANDEM_COMPILED` is `0`.
    """
    if os.environ.get(VARIABLE) == "0" or not _LIBRARY.exists():
        return None
    try:
        loaded = ctypes.CDLL(str(_LIBRARY))
        loaded.tandem_source.restype = ctypes.c_char_p
        built_from = loaded.tandem_source()
    except (OSError, AttributeError) as error:
        _warn(f"cannot be loaded ({error})")
        return None
    # A stale kernel could decide differently from the Python next to it.
    if _SOURCE.exists() and built_from != source_of(_SOURCE.parent):
        _warn("was built from other sources")
        return None
    loaded.tandem_new.restype = ctypes.c_void_p
    loaded.tandem_new.argtypes = [ctypes.c_int64] * 3
    loaded.tandem_free.restype = None
    loaded.tandem_free.argtypes = [ctypes.c_void_p]
    loaded.tandem_share.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    loaded.tandem_front.restype = ctypes.c_int64
    loaded.tandem_front.argtypes = [
        *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p),
        *(ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p),
    ]
    loaded.tandem_cycle_fields.restype = ctypes.c_char_p
    return loaded


def source_of(folder: Path) -> bytes:
    """Return what a library built from the sources in `folder` answers to `tandem_source()`."""
    digest = hashlib.sha256()
    for part in sorted([*folder.glob("*.c"), *folder.glob("*.h")]):
        digest.update(part.read_bytes())
    return digest.hexdigest()[:16].encode()


def _warn(why: str) -> None:
    warnings.warn(
        f"Tandem decides in Python, which is slower: {_LIBRARY} {why}. Install Tandem again.",
        RuntimeWarning,
        stacklevel=3,
    )
