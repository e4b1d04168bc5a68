"""Chromium from Debian's packages, driven by Playwright.

python -m benchmarks.page.browser       # install Chromium where it is absent (needs root)
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from controlplane.realnode.machine import install
from tandem.errors import TandemError

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PACKAGES = ("chromium", "fonts-dejavu-core")


def absent() -> str:
    """Return what is missing to drive a browser, '' where nothing is."""
    if shutil.which("chromium") is None:
        return "there is no Chromium on this machine (`make browser` installs it)"
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed (`make browser` installs it)"
    return ""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Give a browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Containers often forbid the namespaces of Chromium's own sandbox; it opens our page only.
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield browser
        browser.close()


def main() -> int:
    """Install Chromium where it is absent."""
    if shutil.which("chromium") is None:
        try:
            install(PACKAGES)
        except TandemError as error:
            sys.stderr.write(f"error: {error.message}\n  {error.hint}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
