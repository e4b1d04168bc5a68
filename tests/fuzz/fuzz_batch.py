"""Batches of mutated inputs: `make test` takes a few of each, `make fuzz` 10,000.

`make test` takes the same few each time; `make fuzz` takes others with each run's seed.

Every case draws from a seed of its own, which follows from the run's seed, the batch and its
number, so that TANDEM_SEED and TANDEM_FUZZ_CASE repeat one case alone. TANDEM_FUZZ_CASES sets the
number of cases. A case that raises is a fault; the batch goes on, and names all of them at its end.
A batch that hangs is ended by the limit of its test.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from repeated_faults import SHARE, fuzz_cases, record
from seeds import SEED as SEED_OF_RUN

_SHOWN = 12  # kinds of faults
#: Returns in a word what became of the input.
Case = Callable[[random.Random], str]


#: No test that is fuzzed ends by itself where its input makes it hang.
_FUZZES = bool(SHARE or "TANDEM_FUZZ_CASES" in os.environ or "TANDEM_FUZZ_CASE" in os.environ)
WATCHDOG = pytest.mark.timeout(3600 if _FUZZES else 300)
SEED = SEED_OF_RUN if _FUZZES else "1"


@dataclass
class _Fault:
    index: int
    text: str
    count: int = 1


@dataclass
class Batch:
    """Cases of one boundary: `what` is fuzzed, and `few` times in `make test`."""

    what: str
    few: int
    outcomes: Counter[str] = field(default_factory=Counter)
    _faults: dict[object, _Fault] = field(default_factory=dict)

    def run(self, case: Case) -> None:
        """Run all cases; fail where one was a fault."""
        count = fuzz_cases(self.few)
        only = os.environ.get("TANDEM_FUZZ_CASE")
        began = time.monotonic()
        print(f"{self.what}: {count} cases, TANDEM_SEED={SEED}", flush=True)
        for index in range(count) if only is None else [int(only)]:
            try:
                self.outcomes[case(random.Random(f"{SEED} {self.what} {index}"))] += 1
            except Exception as error:
                self._note(index, error)
            except BaseException:
                print(f"{self.what}: case {index} was under way")
                raise
            if count >= 1000 and (index + 1) % (count // 10) == 0:
                took_s = time.monotonic() - began
                print(
                    f"progress: {self.what}: {index + 1:,} of {count:,}, {took_s:.0f} s", flush=True
                )
        record(
            "fuzz",
            self.what,
            count,
            faults=sum(f.count for f in self._faults.values()),
            **dict(self.outcomes.most_common()),
        )
        assert not self._faults, self._summary()

    def _note(self, index: int, error: Exception) -> None:
        self.outcomes["fault"] += 1
        frames = traceback.extract_tb(error.__traceback__)
        where = (type(error), *((f.filename, f.lineno) for f in frames[-2:]))
        if where in self._faults:
            self._faults[where].count += 1
        else:
            text = "".join(traceback.format_exception(error, limit=-8))
            self._faults[where] = _Fault(index, text[-4000:])
            print(f"progress: {self.what}: fault in case {index}: {error!r:.200}", flush=True)

    def _summary(self) -> str:
        shown = list(self._faults.values())[:_SHOWN]
        lines = "\n".join(
            f"--- {f.count} times, first: TANDEM_SEED={SEED} TANDEM_FUZZ_CASE={f.index}\n{f.text}"
            for f in shown
        )
        return f"{self.what}: {len(self._faults)} kinds of faults\n{lines}"


class Loud(logging.Handler):
    """Fails a case in which something was logged with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.tracebacks: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.tracebacks.append(record)


@contextlib.contextmanager
def no_traceback_logged() -> Iterator[None]:
    """Raise what was logged as an exception meanwhile: a service goes on, and it is a bug."""
    heard = Loud()
    root = logging.getLogger()
    root.addHandler(heard)
    try:
        yield
    finally:
        root.removeHandler(heard)
    for each in heard.tracebacks:
        assert each.exc_info is not None
        raise AssertionError(each.getMessage()) from each.exc_info[1]
