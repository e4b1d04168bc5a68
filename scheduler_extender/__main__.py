"""`python -m scheduler_extender --config FILE`: run the extender."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import uvloop

from scheduler_extender.cluster.kinds import merged
from scheduler_extender.cluster.workloads import know
from scheduler_extender.config import read_config
from scheduler_extender.serving.app import serve
from tandem.errors import TandemError
from tandem.log import configure_log
from tandem.policy.compiled.library import library


def main() -> int:
    """Run until stopped; 0, or 1 with a sentence on stderr."""
    parser = argparse.ArgumentParser(prog="scheduler_extender", description=__doc__)
    parser.add_argument("--config", type=Path, help="a YAML file; the defaults without one")
    arguments = parser.parse_args()
    try:
        config = read_config(arguments.config)
        configure_log(config.log_level)
        know(merged(config.kinds))
        planner = "in Python, which is slower" if library() is None else "with compiled code"
        logging.getLogger(__name__).info("plans %s", planner)
        uvloop.run(serve(config))
    except TandemError as error:
        sys.stderr.write(f"error: {error.message}\n")
        if error.hint:
            sys.stderr.write(f"  {error.hint}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
