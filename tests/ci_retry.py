"""Run the failed tests of the last run once more, alone, with the seeds of that run.

The second run only tells unreliable tests from broken ones. The run has failed in both cases,
unless every failed test passes now and is listed in `ci_exceptions.toml`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Set
from datetime import UTC, date, datetime
from pathlib import Path

from ci_exceptions import Exceptions, load
from seeds import without_group

LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
#: The outcome of the run is known without the second run, so that it may be cut short.
LIMIT_S = 600
RETRY = ["-m", "pytest", "-n0", "--last-failed", "--last-failed-no-failures=none"]


def last_failed() -> frozenset[str]:
    """Return the tests that failed in the last run, by their node ids without groups.

    The file gets these ids too: pytest finds the tests by them.
    """
    if not LAST_FAILED.exists():
        return frozenset()
    failed = frozenset(without_group(test) for test in json.loads(LAST_FAILED.read_text()))
    LAST_FAILED.write_text(json.dumps(dict.fromkeys(sorted(failed), True)))
    return failed


def verdict(
    first: Set[str], again: Set[str], listed: Exceptions, today: date
) -> tuple[bool, list[str]]:
    """Tell whether the run passes, with a line for each failed test.

    `first`: node ids that failed in the run; `again`: those of them that failed once more.
    """
    if not first:
        return False, ["No test failed: the failure is above, outside of the tests."]
    passes, lines = True, []
    for test in sorted(first):
        entry = listed.excuses(test, today)
        if test in again:
            passes = False
            lines.append(f"FAILED twice: {test}")
        elif entry is None:
            passes = False
            lines.append(f"FAILED, then passed, so it is unreliable: {test}")
        else:
            lines.append(f"failed once, allowed until {entry.until}: {test} ({entry.cause})")
    return passes, lines


def main() -> int:
    """Run what failed again; return the exit status of the whole run."""
    first = again = last_failed()
    if first:
        print(f"\n{len(first)} tests failed; they run once more, alone.", flush=True)
        try:
            subprocess.run([sys.executable, *RETRY], check=False, timeout=LIMIT_S)
            again = last_failed()
        except subprocess.TimeoutExpired:
            print(f"The second run did not end within {LIMIT_S} s.")
    passes, lines = verdict(first, again, load(), datetime.now(UTC).date())
    print(*lines, "The run passes." if passes else "The run FAILS.", sep="\n", flush=True)
    return 0 if passes else 1


if __name__ == "__main__":
    sys.exit(main())
