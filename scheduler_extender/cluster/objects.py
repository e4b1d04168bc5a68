"""The newest that the API server has said of each object, whatever the order in which it came."""

from __future__ import annotations

from collections import OrderedDict

from scheduler_extender.cluster.records import PARSERS, Key, Record

KINDS = tuple(PARSERS)
_GRAVES = 20_000  # uids of objects that are gone: an answer read before the deletion may come after


class Objects:
    """Records by kind and key; one that is gone never comes back."""

    def __init__(self) -> None:
        self._by_kind: dict[str, dict[Key, Record]] = {kind: {} for kind in KINDS}
        self._graves: OrderedDict[str, None] = OrderedDict()

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
        self._graves[uid] = None
        while len(self._graves) > _GRAVES:
            self._graves.popitem(last=False)
