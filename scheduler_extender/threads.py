"""Pools of threads that have their full size from the start."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor


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
