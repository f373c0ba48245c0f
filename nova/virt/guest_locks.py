"""A lock per guest, for hypervisor drivers."""

import contextlib
import logging
import threading
from collections.abc import Iterator

from nova import exception

LOG = logging.getLogger(__name__)

# Seconds that a high-priority action waits for a running one.
LOCK_TIMEOUT = 30.0


class _Turns:
    """The lock of one guest. ``lost``: another action bypassed its holder and has a lock of its own."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.users = 0
        self.lost = False


class GuestLocks:
    """A lock per guest, stored while actions need it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._guests: dict[str, _Turns] = {}
        self._mine = threading.local()

    @contextlib.contextmanager
    def hold(self, uuid: str, timeout: float | None = None) -> Iterator[None]:
        """Hold the guest's lock; with ``timeout`` (seconds) bypass a holder that does not finish. check() raises an
        error in the bypassed action before its next change, and so does a further hold() within the action, which would
        get the new lock otherwise."""
        self.check()
        turns = self._acquire(uuid, timeout)
        outer = getattr(self._mine, "turns", None)
        self._mine.turns = turns
        try:
            yield
        finally:
            self._mine.turns = outer
            turns.lock.release()
            self._leave(uuid, turns)

    def check(self) -> None:
        """Raise Conflict if another action bypassed this thread and owns the guest now."""
        turns = getattr(self._mine, "turns", None)
        if turns is not None and turns.lost:
            raise exception.Conflict("Another action bypassed this one, which took too long.")

    def _acquire(self, uuid: str, timeout: float | None) -> _Turns:
        while True:
            with self._guard:
                turns = self._guests.setdefault(uuid, _Turns())
                turns.users += 1
            if not turns.lock.acquire(timeout=-1 if timeout is None else timeout):
                LOG.warning("[instance: %s] An action on the guest hangs: starting the next action without waiting for "
                            "it", uuid)
                with self._guard:
                    turns.lost = True
                    if self._guests.get(uuid) is turns:
                        del self._guests[uuid]
                self._leave(uuid, turns)
            elif turns.lost:
                turns.lock.release()
                self._leave(uuid, turns)
            else:
                return turns

    def _leave(self, uuid: str, turns: _Turns) -> None:
        with self._guard:
            turns.users -= 1
            if turns.users == 0 and self._guests.get(uuid) is turns:
                del self._guests[uuid]
