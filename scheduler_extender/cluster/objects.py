"""The newest version of each object, whatever the order of the events."""

from __future__ import annotations

from scheduler_extender.cluster.records import PARSERS, Key, Record

KINDS = tuple(PARSERS)
#: Uids of deleted objects are kept, because an answer that was read before the deletion may come
#: after it: no request takes as long as this, and a burst of deletions is not larger than that.
GRAVES_S, _GRAVES = 600.0, 20_000


class Objects:
    """Records by kind and key; one that is gone never comes back."""

    def __init__(self) -> None:
        self._by_kind: dict[str, dict[Key, Record]] = {kind: {} for kind in KINDS}
        self._graves: dict[str, float] = {}  # uid -> when it was deleted, in order of time
        self._now_s = 0.0

    def tick(self, now_s: float) -> None:
        """Take the time, and forget which objects were deleted long ago."""
        self._now_s = now_s
        self._bury(now_s - GRAVES_S)

    def of(self, kind: str) -> dict[Key, Record]:
        """Return the records of a kind, live."""
        return self._by_kind[kind]

    def is_gone(self, uid: str) -> bool:
        """Say whether the object with this uid was there, or was said to be, and is no more."""
        return uid in self._graves

    def is_predecessor(self, kind: str, record: Record) -> bool:
        """Say whether a record is of an earlier object of that name, told late."""
        known = self._by_kind[kind].get(record.key)
        return known is not None and known.uid != record.uid and known.version >= record.version

    def put(self, kind: str, record: Record) -> tuple[Record | None, Record | None]:
        """Take over a record: (what is gone by that, what is new); an older one changes nothing."""
        if record.uid in self._graves:
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
        self._remember(uid)
        return None

    def remove(self, kind: str, record: Record) -> Record:
        """Forget a record that is held."""
        del self._by_kind[kind][record.key]
        self._remember(record.uid)
        return record

    def _remember(self, uid: str) -> None:
        self._graves.setdefault(uid, self._now_s)
        self._bury(self._now_s - GRAVES_S)

    def _bury(self, before_s: float) -> None:
        while self._graves:
            uid, deleted_s = next(iter(self._graves.items()))
            if deleted_s >= before_s and len(self._graves) <= _GRAVES:
                return
            del self._graves[uid]
