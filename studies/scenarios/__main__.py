"""Write docs/evidence/results/scenarios.md; without `--write`, say whether it is current.

python -m studies.scenarios --write
"""

from __future__ import annotations

from benchmarks.pages import keep_current
from studies.scenarios.page import PAGE, page

if __name__ == "__main__":
    keep_current(__doc__, {PAGE: page()})
