"""Checks and their findings: a check reads the cluster and yields findings, one line each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from time import monotonic
from typing import TypeVar

from tandem.cli.doctor.cluster import Cluster
from tandem.kube.errors import Forbidden, KubeError, Unavailable

_Result = TypeVar("_Result")
WITHIN_S = 120.0
_SAID = 300  # characters of what a server says; a proxy may answer with a page


class Outcome(StrEnum):
    """The result of a check. `UNKNOWN`: the check could not be made."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: `says` is what was found, `do` what to do about it."""

    check: str
    outcome: Outcome
    says: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding of a check, which does not repeat its own name."""

    outcome: Outcome
    says: str
    do: str = ""


#: Yields at least one verdict, or none where it does not apply to the mode of the installation. An
#: error of the API server may pass through it.
Check = Callable[[Cluster], Iterable[Verdict]]


def ok(says: str) -> Verdict:
    """Return the verdict that all is well."""
    return Verdict(Outcome.OK, says)


def warning(says: str, do: str) -> Verdict:
    """Return the verdict that something may be unintended; the exit status stays 0."""
    return Verdict(Outcome.WARNING, says, do)


def failed(says: str, do: str) -> Verdict:
    """Return the verdict that something is broken."""
    return Verdict(Outcome.FAILED, says, do)


def unknown(says: str, do: str = "") -> Verdict:
    """Return the verdict that the check cannot be made."""
    return Verdict(Outcome.UNKNOWN, says, do)


def examine(
    checks: Iterable[tuple[str, Check]], cluster: Cluster, within_s: float = WITHIN_S
) -> Iterator[Finding]:
    """Run the checks in their order; a check that may not read something says so.

    No further check is made where the API server does not answer, does not know the caller, or has
    not answered `within_s` seconds from the first check on.
    """
    end_s = monotonic() + within_s
    answers = False
    for name, check in checks:
        verdicts: list[Verdict] = []
        try:
            # One after the other: what was found before an error is kept.
            within(partial(_extend, verdicts, check, cluster), end_s - monotonic())
            answers = goes_on = True
        except KubeError as error:
            verdicts.append(_not_made(error))
            away = error.status == 0 or (isinstance(error, Unavailable) and not answers)
            goes_on = not (away or error.status == 401 or _anonymous(error))
        except TimeoutError:
            verdicts.append(
                failed(
                    f"the API server has not answered all of it within {within_s:g} s",
                    "see whether kubectl is as slow; --timeout gives a large cluster more time",
                )
            )
            goes_on = False
        for verdict in verdicts:
            yield Finding(name, verdict.outcome, verdict.says, verdict.do)
        if not goes_on:
            return


def _extend(verdicts: list[Verdict], check: Check, cluster: Cluster) -> None:
    verdicts.extend(check(cluster))


def within(work: Callable[[], _Result], seconds: float) -> _Result:
    """Return what `work` returns, or raise what it raises.

    A request has a limit for each part of the answer and none for the whole, and a program that
    gives a login has none at all. Such a thread is left behind, and ends with the process.

    Raises:
        TimeoutError: it has not ended in that time.
    """
    done: Future[_Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="doctor", daemon=True).start()
    return done.result(timeout=max(0.0, seconds))


def _anonymous(error: KubeError) -> bool:
    return isinstance(error, Forbidden) and "system:anonymous" in error.message


def _not_made(error: KubeError) -> Verdict:
    said = error.message if len(error.message) <= _SAID else f"{error.message[:_SAID]}..."
    if error.status == 401:
        return failed(
            "the API server does not accept your credentials",
            "log in again; `kubectl auth whoami` says whether kubectl has the same trouble",
        )
    if _anonymous(error):
        return failed(
            "the API server does not know who you are (system:anonymous): your kubeconfig gave no"
            " token and no certificate",
            "log in again; a program that your kubeconfig names may have failed",
        )
    if isinstance(error, Forbidden):
        return unknown(
            f"not checked, you have no right: {said}",
            "run this as an administrator, or ask for the right to read it",
        )
    if isinstance(error, Unavailable) and "certificate" in said.lower():
        return failed(
            f"no trusted connection to the API server: {said}",
            "fetch your kubeconfig anew: its authority or its certificate is not the one that the"
            " API server, or a proxy on the way, has",
        )
    if isinstance(error, Unavailable):
        return failed(
            f"the API server does not answer: {said}",
            "check the address in your kubeconfig, the network, HTTPS_PROXY and NO_PROXY",
        )
    return unknown(f"not checked, the API server answers: {said}")


def some(names: Iterable[str], shown: int = 3) -> str:
    """Return the first few names, and how many more there are."""
    every = sorted(names)
    rest = len(every) - shown
    return ", ".join(every[:shown]) + (f" and {rest:,} more" if rest > 0 else "")


def plural(number: int, noun: str) -> str:
    """Return `1 node`, `2 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
