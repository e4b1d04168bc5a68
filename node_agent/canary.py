"""Tests whether NVIDIA's container toolkit honours the variable that carries our assignment.

A container of the agent's own pod is started with `NVIDIA_VISIBLE_DEVICES=void` and must see no
GPU; it leaves what it saw in a folder that it shares with the agent, which itself is given `all`
and must see the GPUs. Together they prove that the variable decides, on this node, for containers
without privileges. Only the standard library is used: this runs before the agent, in a moment.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path

log = logging.getLogger(__name__)

FILE = "canary.json"
_DEVICE = re.compile(r"nvidia\d+|nvidia-caps|dxg")


def devices(dev: Path = Path("/dev")) -> list[str]:
    """Return the names of the GPUs' device files in a container's /dev."""
    return sorted(entry.name for entry in dev.iterdir() if _DEVICE.fullmatch(entry.name))


def leave(folder: Path, dev: Path = Path("/dev")) -> None:
    """Write what this container sees into `folder`."""
    (folder / FILE).write_text(json.dumps({"devices": devices(dev)}))


def verdict(folder: Path) -> str | None:
    """Return what is wrong by what the canary left, or ""; None where it left nothing of use."""
    try:
        seen = json.loads((folder / FILE).read_text())["devices"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("no verdict of the canary folder=%s error=%r", folder, str(error))
        return None
    if not seen:
        return ""
    return (
        f"a container with NVIDIA_VISIBLE_DEVICES=void saw {', '.join(map(str, seen))}: the"
        " container toolkit does not honour the variable, and jobs see GPUs that are not theirs"
    )


def main() -> int:
    """Be the canary; never keep the agent from starting."""
    try:
        leave(Path(sys.argv[1]))
    except (OSError, IndexError) as error:
        print(f"canary: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
