"""What each namespace may hold: its share, what it may borrow, and caps.

A GPU counts as one for each job that has it, shared or not. Pure: a `Turn` is a cycle's account.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler_extender.cluster.records import Key
from scheduler_extender.planning.forecast_quotas import Limits, Shares
from scheduler_extender.quotas.config import EVERYBODY, Quota
from tandem.reasons.causes import Cause, Reason

_ALONE = Quota(namespace="")  # of a namespace for which nothing is set


@dataclass(frozen=True, slots=True)
class Stake:
    """One open gang: the GPUs that it has or is about to have, and those that it wants."""

    held: int
    wants: int
    endless: bool
    leaving: int = 0  # of those held, what it is giving up already


class Turn:
    """The account of all namespaces while one cycle gives places away.

    `used_gpu_s` is what each namespace has had in the window. `others` are gangs outside the queue
    that still hold GPUs, such as those of a deleted Job whose pods have not ended. Without quotas
    nothing is asked of any job, and the order stays as it is.
    """

    def __init__(
        self,
        quotas: Sequence[Quota] = (),
        stakes: Mapping[Key, Stake] | None = None,
        used_gpu_s: Mapping[str, float] | None = None,
        others: Mapping[Key, Stake] | None = None,
    ) -> None:
        self.quotas = tuple(quotas)
        self._quotas = {quota.namespace: quota for quota in quotas}
        self._stakes = stakes or {}
        self._used = used_gpu_s or {}
        self._others = others or {}
        self.held: Counter[str] = Counter()
        self._endless: Counter[str] = Counter()
        self._leaving: Counter[str] = Counter()
        self._borrowers: set[Key] = set()
        self._outside: Counter[str] = Counter()
        for key, stake in (*self._stakes.items(), *self._others.items()):
            self._count(key, stake.held)
            self._leaving[key[0]] += stake.leaving
        for key, stake in self._others.items():
            self._outside[key[0]] += stake.held

    def copy(self) -> Turn:
        """Return an account that begins as this one is now."""
        return Turn(self.quotas, self._stakes, self._used, self._others)

    def without(self, given_up: Mapping[Key, int]) -> Turn:
        """Return an account as if gangs had given up so many GPUs."""
        stakes = {
            key: replace(stake, held=max(0, stake.held - given_up.get(key, 0)))
            for key, stake in self._stakes.items()
        }
        return Turn(self.quotas, stakes, self._used, self._others)

    def ranked(self, keys: Sequence[Key]) -> list[Key]:
        """Return the gangs with those that keep within their namespaces' shares before all others.

        Among either, the order stays as it is. What runs counts before what waits.
        """
        if not self._quotas:
            return list(keys)
        running = Counter(self._outside)
        coming = Counter(self.held)
        self._borrowers.clear()
        for key in keys:
            namespace, stake = key[0], self._stakes.get(key)
            if stake is None:
                continue
            if stake.held:
                running[namespace] += stake.held
                if running[namespace] > self._share(namespace):
                    self._borrowers.add(key)
            elif coming[namespace] + stake.wants > self._share(namespace):
                self._borrowers.add(key)
            else:
                coming[namespace] += stake.wants
        return sorted(keys, key=lambda key: key in self._borrowers)

    def refusal(self, key: Key, gpus: int) -> Cause | None:
        """Return why a gang may not have so many GPUs more now, None where it may."""
        namespace = key[0]
        if not self._quotas:
            return None
        quota, held = self._of(namespace), self.held[namespace]
        after = held + gpus
        if quota.max_gpus is not None and after > quota.max_gpus:
            return self._over(Reason.QUOTA, namespace, gpus, held, quota.max_gpus)
        stake = self._stakes.get(key)
        if stake is not None and stake.endless and quota.endless_gpus is not None:
            have = self._endless[namespace]
            if have + gpus > quota.endless_gpus:
                return self._over(Reason.QUOTA_ENDLESS, namespace, gpus, have, quota.endless_gpus)
        if quota.borrow or after <= self._share(namespace):
            return None
        if self._spent(namespace):
            used, most = self._used[namespace], quota.gpu_seconds or 0.0
            return Cause(Reason.QUOTA_TIME, namespace=namespace, value=used, bound=most)
        return self._over(Reason.QUOTA_SHARE, namespace, gpus, held, quota.gpus or 0)

    def excess(self, key: Key, gpus: int) -> int:
        """Return how many GPUs its namespace has to give up before, beyond those on their way."""
        going = self._leaving[key[0]]
        for less in range(gpus + 1):
            if not self.refusal(key, gpus - going - less):
                return less
        return gpus

    def take(self, key: Key, gpus: int) -> None:
        """Note that a gang has been given so many GPUs."""
        self._count(key, gpus)

    def borrows(self, key: Key) -> bool:
        """Say whether a gang is, or would be, beyond the share of its namespace."""
        return key in self._borrowers

    def lends_to(self, key: Key) -> bool:
        """Say whether a gang that wants GPUs keeps within a share while others do not."""
        stake = self._stakes.get(key)
        return stake is not None and bool(self._borrowers) and key not in self._borrowers

    def shares(self, keys: Sequence[Key]) -> Shares | None:
        """Return the limits of the namespaces of gangs, and what all other gangs hold."""
        if not self._quotas:
            return None
        outside, lasting = Counter(self.held), Counter(self._endless)
        for key in set(keys):
            stake = self._stakes.get(key) or self._others.get(key)
            if stake is not None:
                outside[key[0]] -= stake.held
                lasting[key[0]] -= stake.held if stake.endless else 0
        return Shares({name: self._limits(name) for name, _ in keys}, +outside, +lasting)

    def _limits(self, namespace: str) -> Limits:
        quota = self._of(namespace)
        return Limits(self._share(namespace), quota.borrow, quota.max_gpus, quota.endless_gpus)

    def has(self, key: Key) -> int:
        """Return the GPUs that a gang holds."""
        stake = self._stakes.get(key)
        return stake.held if stake else 0

    def coming(self) -> int:
        """Return the GPUs that jobs are giving up."""
        return sum(self._leaving.values())

    def reclaims(self, key: Key, victim: Key) -> bool:
        """Say whether a gang takes back what another has only borrowed, whatever either has had."""
        return victim in self._borrowers and key not in self._borrowers

    def _count(self, key: Key, gpus: int) -> None:
        self.held[key[0]] += gpus
        stake = self._stakes.get(key) or self._others.get(key)
        if stake is not None and stake.endless:
            self._endless[key[0]] += gpus

    def _of(self, namespace: str) -> Quota:
        return self._quotas.get(namespace) or self._quotas.get(EVERYBODY) or _ALONE

    def _share(self, namespace: str) -> int:
        return 0 if self._spent(namespace) else self._of(namespace).gpus or 0

    def _spent(self, namespace: str) -> bool:
        most = self._of(namespace).gpu_seconds
        return most is not None and self._used.get(namespace, 0.0) >= most

    @staticmethod
    def _over(reason: Reason, namespace: str, gpus: int, has: float, most: float) -> Cause:
        """Return that a namespace has `has` of `most`, and a gang asks for `gpus` more."""
        if gpus > most:  # whatever else the namespace gives up
            return Cause(Reason.QUOTA_TOO_SMALL, namespace=namespace, gpus=gpus, bound=most)
        return Cause(reason, namespace=namespace, gpus=gpus, value=has, bound=most)
