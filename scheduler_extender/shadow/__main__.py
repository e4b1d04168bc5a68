"""`python -m scheduler_extender.shadow --config FILE`: record what another scheduler does."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from scheduler_extender.cluster.kinds import merged
from scheduler_extender.cluster.workloads import know
from scheduler_extender.config import read_config
from scheduler_extender.shadow.service import EVERY_S, Shadow
from tandem.errors import TandemError
from tandem.kube.client import KubeClient
from tandem.kube.errors import KubeError
from tandem.log import configure_log


def main() -> int:
    """Run until stopped; 0, or 1 with a sentence on stderr."""
    parser = argparse.ArgumentParser(prog="scheduler_extender.shadow", description=__doc__)
    parser.add_argument(
        "--config", type=Path, help="the extender's YAML file; the defaults without"
    )
    parser.add_argument(
        "--every", type=float, default=EVERY_S, help="seconds between two writes, at least"
    )
    arguments = parser.parse_args()
    try:
        config = read_config(arguments.config)
        configure_log(config.log_level)
        know(merged(config.kinds))
        api = KubeClient.load(config.kubeconfig)
        shadow = Shadow(api, config.namespace, every_s=arguments.every)
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: shadow.stop())
        shadow.record()
    except TandemError as error:
        sys.stderr.write(f"error: {error.message}\n")
        if error.hint:
            sys.stderr.write(f"  {error.hint}\n")
        return 1
    except KubeError as error:
        sys.stderr.write(f"error: the API server does not let the record be read: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
