"""Takes the pictures of the status page for the documentation.

python -m benchmarks.page.pictures [FOLDER]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.page.browser import absent, chromium
from benchmarks.page.fleet import Fleet
from benchmarks.page.site import page_site

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
#: Name, address, theme, width and height in pixels.
PICTURES = (
    ("overview-light", "", "light", 1400, 900),
    ("overview-dark", "", "dark", 1400, 900),
    ("overview-narrow", "", "light", 320, 900),
    ("jobs-waiting", "?view=jobs&phase=Waiting", "light", 1400, 700),
    ("job", "?view=job&namespace={namespace}&name={name}", "light", 1400, 1000),
    ("gpu", "?view=gpu&node=gpu-0000&gpu=GPU-0000-1", "dark", 1400, 800),
    ("gpus", "?view=gpus&state=busy", "light", 1400, 700),
)
_MOST_BYTES = 200_000


def main(arguments: list[str]) -> int:
    """Take all pictures of a made-up cluster of 12 nodes with 60 waiting jobs."""
    if why := absent():
        sys.stderr.write(f"{why}\n")
        return 1
    folder = Path(arguments[0]) if arguments else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    fleet = Fleet(12, 60, 1, time.time())
    with page_site(fleet.fill) as site, chromium() as browser:
        use = fleet.pods["gpu-0000", "GPU-0000-1"][0]
        job = {"namespace": use["namespace"], "name": f"job-{use['pod'].removesuffix('-0')}"}
        for name, address, theme, width, height in PICTURES:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
            page.goto(f"{site.url}/status/{address.format(**job)}")
            page.wait_for_selector(".live:has-text('Live')", timeout=60_000)
            page.wait_for_timeout(500)
            file = folder / f"{name}.png"
            page.screenshot(path=str(file))
            page.close()
            if file.stat().st_size > _MOST_BYTES:
                sys.stderr.write(f"{file} is over {_MOST_BYTES} bytes\n")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
