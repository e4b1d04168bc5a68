#!/usr/bin/env python3
"""runc with the part of NVIDIA's container toolkit that Tandem relies on, for simulated GPUs.

A container whose environment has NVIDIA_VISIBLE_DEVICES (and not `void` or `none`) gets the
driver's library in the folder where the dynamic linker looks, the state of the simulated GPUs,
and for a job (each container that does not ask for `all`), a folder in which it says what it uses.
Every creation adds one line to a file, from which a test reads what each container was given.

The file RUNTIME_CONFIG of the node (JSON) names `runc`, `library`, `state`, `usage`, `log`.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

CONFIG = Path(__file__).resolve().with_name("gpu-runtime.json")
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"


def inject(bundle: Path, config: dict[str, Any]) -> None:
    """Add the mounts to the bundle's config.json."""
    path = bundle / "config.json"
    spec = json.loads(path.read_text())
    environment = dict(pair.partition("=")[::2] for pair in spec["process"].get("env", []))
    visible = environment.get("NVIDIA_VISIBLE_DEVICES")
    devices = "" if visible in (None, "", "void", "none") else visible
    notes = spec.get("annotations", {})
    with Path(config["log"]).open("a") as log:
        note = {
            "time": time.time(),
            "id": bundle.name,
            "pod_uid": notes.get("io.kubernetes.cri.sandbox-uid"),
            "container": notes.get("io.kubernetes.cri.container-name"),
            "kind": notes.get("io.kubernetes.cri.container-type"),
            "devices": devices,
        }
        log.write(json.dumps(note) + "\n")
    if not devices:
        return

    def bind(source: str, target: str, mode: str) -> None:
        options = ["rbind", "rprivate", "nosuid", "nodev", mode]
        spec["mounts"].append(
            {"destination": target, "type": "bind", "source": source, "options": options}
        )

    bind(config["library"], LIBRARY, "ro")
    bind(config["state"], "/run/tandem-gpus", "ro")
    spec["process"]["env"].append("TANDEM_NVML_STUB_STATE=/run/tandem-gpus/state")
    if devices != "all":
        bind(config["usage"], "/run/tandem-gpu-usage", "rw")
    path.write_text(json.dumps(spec))


def main() -> None:
    """Change the bundle at `create`, then become runc."""
    config = json.loads(CONFIG.read_text())
    arguments = sys.argv[1:]
    if "create" in arguments:
        at = next((i for i, word in enumerate(arguments) if word in ("--bundle", "-b")), None)
        inject(Path(arguments[at + 1]) if at is not None else Path.cwd(), config)
    os.execv(config["runc"], [config["runc"], *arguments])  # noqa: S606 - no shell is wanted


main()
