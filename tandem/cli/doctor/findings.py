"""What a check is: it reads the cluster and yields findings, of which each is one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tandem.cli.doctor.cluster import Cluster
from tandem.kube.errors import Forbidden, KubeError, Unavailable


class Outcome(StrEnum):
    """How a check came out. `UNKNOWN`: the check could not be made."""

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


#: Yields at least one verdict. An error of the API server may pass through it.
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


def examine(checks: Iterable[tuple[str, Check]], cluster: Cluster) -> Iterator[Finding]:
    """Run the checks in their order; a check that may not read something says so.

    Where the API server does not answer, or does not know the caller, no further check is made.
    """
    for name, check in checks:
        try:
            for verdict in check(cluster):
                yield Finding(name, verdict.outcome, verdict.says, verdict.do)
        except KubeError as error:
            verdict = _not_made(error)
            yield Finding(name, verdict.outcome, verdict.says, verdict.do)
            if error.status in (0, 401):
                return


def _not_made(error: KubeError) -> Verdict:
    if error.status == 401:
        return failed(
            "the API server does not accept your credentials",
            "log in again; `kubectl auth whoami` says whether kubectl has the same trouble",
        )
    if isinstance(error, Forbidden):
        return unknown(
            f"not checked, you have no right: {error.message}",
            "run this as an administrator, or ask for the right to read it",
        )
    if isinstance(error, Unavailable):
        return failed(
            f"the API server does not answer: {error.message}",
            "check the address in your kubeconfig, the network, HTTPS_PROXY and NO_PROXY",
        )
    return unknown(f"not checked, the API server answers: {error.message}")


def some(names: Iterable[str], shown: int = 3) -> str:
    """Return the first few names, and how many more there are."""
    every = sorted(names)
    rest = len(every) - shown
    return ", ".join(every[:shown]) + (f" and {rest:,} more" if rest > 0 else "")


def plural(number: int, noun: str) -> str:
    """Return `1 node`, `2 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
