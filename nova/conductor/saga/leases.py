"""The leases of the actions that a conductor is executing or has queued."""

import collections
import threading
from collections.abc import Iterable, Iterator

_PAGE = 500  # number of leases renewed by one statement


class InFlightLeases:
    """A multiset of action uuids. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()

    def take(self, uuids: Iterable[str]) -> None:
        with self._lock:
            self._counts.update(uuids)

    def drop(self, uuids: Iterable[str]) -> None:
        with self._lock:
            for uuid in uuids:
                self._counts[uuid] -= 1
                if not self._counts[uuid]:
                    del self._counts[uuid]

    def pages(self) -> Iterator[list[str]]:
        """Return all uuids in pages."""
        with self._lock:
            uuids = list(self._counts)
        for start in range(0, len(uuids), _PAGE):
            yield uuids[start:start + _PAGE]
