"""Write docs/results/scenarios.md; without `--write`, say whether it is current.

python -m studies.scenarios --write
"""

from __future__ import annotations

import argparse

from studies.scenarios.page import PAGE, page


def main() -> None:
    """Write the page, or fail where it is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        raise SystemExit(f"{PAGE} is out of date: python -m studies.scenarios --write")


if __name__ == "__main__":
    main()
