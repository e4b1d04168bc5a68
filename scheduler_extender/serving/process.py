"""Settings of the process, so that no verb waits for memory or for another thread."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from scheduler_extender.cluster.feed import Feed

# mallopt(3)
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_M_ARENA_MAX = -8
_SMALLEST_MAPPED_BYTES = 128 * 2**10
_KEPT_BYTES = 64 * 2**20
_TOP_PAD_BYTES = 8 * 2**20
_LARGEST_FROM_HEAP_BYTES = 32 * 2**20  # glibc's own maximum


def keep_freed_memory() -> None:
    """Let the C library keep up to 64 MiB that numpy gives back for the next array.

    By default the arrays of one verb (320 KiB each for 40,000 GPUs) are returned to the kernel and
    faulted in again page by page, which costs more than what is computed on them.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return  # not glibc; slower, not wrong
    library.mallopt(_M_MMAP_THRESHOLD, _LARGEST_FROM_HEAP_BYTES)
    library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    library.mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)
    # One heap for all threads, which take turns as it is. Each heap of a thread that has read a
    # part of the cluster keeps what the others could use.
    library.mallopt(_M_ARENA_MAX, 1)


def return_unused_memory() -> None:
    """Give back to the kernel, in a millisecond, what reading all lists has left in the heap."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def return_freed_memory() -> None:
    """Let the C library return each freed body of a request to the kernel at once.

    By default glibc raises the size from which memory is mapped once such a block is freed. The
    bodies of a flood then lie in the heap, which shrinks only from its end.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, _SMALLEST_MAPPED_BYTES)
        library.mallopt(_M_ARENA_MAX, 1)


def give_way_soon() -> None:
    """Let a thread that decodes objects give way after 1 ms: by default a verb waits for 5."""
    sys.setswitchinterval(0.001)


@contextlib.asynccontextmanager
async def collector_spared(feed: Feed) -> AsyncIterator[None]:
    """Keep the garbage collector off what a cluster is made of, which is never garbage.

    A full collection would visit millions of objects and hold the event loop for a second.
    """

    async def freeze() -> None:
        await feed.wait_ready()
        return_unused_memory()
        gc.freeze()
        gc.enable()

    gc.disable()
    task = asyncio.create_task(freeze())
    try:
        yield
    finally:
        task.cancel()
        gc.enable()


def thread_pool(size: int, name: str) -> ThreadPoolExecutor:
    """Return a pool whose `size` threads have all been started.

    A pool of the standard library starts a thread whenever all others are busy. The service's
    threads and connections then grow for hours, which looks like a leak.
    """
    threads = ThreadPoolExecutor(size, thread_name_prefix=name)
    everyone = threading.Barrier(size)
    for future in [threads.submit(everyone.wait) for _ in range(size)]:
        future.result()
    return threads
