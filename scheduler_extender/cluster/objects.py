"""The records of all objects, whatever the order of events."""

from __future__ import annotations

from scheduler_extender.cluster.parsing import PARSERS
from scheduler_extender.cluster.records import Key, PodRecord, Record

KINDS = tuple(PARSERS)
#: Uids of deleted objects are kept, because an answer that was read before the deletion may come
#: after it: no request takes as long as this, and a burst of deletions is not larger than that.
GRAVES_S, _GRAVES = 600.0, 20_000


class Objects:
    """Records by kind and key; one that is gone never comes back."""

    def __init__(self) -> None:
        self._by_kind: dict[str, dict[Key, Record]] = {kind: {} for kind in KINDS}
        # uid -> when it was deleted, in order of time. Those of pods without GPUs are apart:
        # however many of them are deleted, what holds GPUs is remembered.
        self._graves: dict[str, float] = {}
        self._graves_of_others: dict[str, float] = {}
        self._now_s = 0.0

    def tick(self, now_s: float) -> None:
        """Take the time, and forget which objects were deleted long ago."""
        self._now_s = now_s
        for graves in (self._graves, self._graves_of_others):
            self._bury(graves)

    def of(self, kind: str) -> dict[Key, Record]:
        """Return the records of a kind, live."""
        return self._by_kind[kind]

    def is_gone(self, uid: str) -> bool:
        """Say whether the object with this uid was there, or was said to be, and is no more."""
        return uid in self._graves or uid in self._graves_of_others

    def is_predecessor(self, kind: str, record: Record) -> bool:
        """Say whether a record is of an earlier object of that name, and arrived late."""
        known = self._by_kind[kind].get(record.key)
        return known is not None and known.uid != record.uid and known.version >= record.version

    def put(self, kind: str, record: Record) -> tuple[Record | None, Record | None]:
        """Take over a record: (what is gone by that, what is new); an older one changes nothing."""
        if self.is_gone(record.uid):
            return None, None
        known = self._by_kind[kind].get(record.key)
        if known is not None and known.version >= record.version:
            return None, None
        gone = None
        if known is not None and known.uid != record.uid:
            gone = self.remove(kind, known)
        self._by_kind[kind][record.key] = record
        return gone, record

    def forget(self, kind: str, key: Key, uid: str) -> Record | None:
        """Forget the object with this uid, known or not; return it where it was known."""
        known = self._by_kind[kind].get(key)
        if known is not None and known.uid == uid:
            return self.remove(kind, known)
        self._remember(self._graves, uid)
        return None

    def remove(self, kind: str, record: Record) -> Record:
        """Forget a record that is held."""
        del self._by_kind[kind][record.key]
        ours = not isinstance(record, PodRecord) or record.ours
        self._remember(self._graves if ours else self._graves_of_others, record.uid)
        return record

    def _remember(self, graves: dict[str, float], uid: str) -> None:
        graves.setdefault(uid, self._now_s)
        self._bury(graves)

    def _bury(self, graves: dict[str, float]) -> None:
        while graves:
            uid, deleted_s = next(iter(graves.items()))
            if deleted_s >= self._now_s - GRAVES_S and len(graves) <= _GRAVES:
                return
            del graves[uid]
