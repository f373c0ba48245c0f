"""A lock per guest, for hypervisor drivers."""

import contextlib
import logging
import threading
from collections.abc import Iterator

from nova import exception

LOG = logging.getLogger(__name__)

# Seconds that a removal, a hard reboot or a move waits for the guest's lock before it bypasses the holder.
LOCK_TIMEOUT = 30.0


class _Turns:
    """The lock of one guest. ``bypassed``: another action did not wait for the holder any longer and has a new lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.users = 0
        self.bypassed = False


class GuestLocks:
    """The locks of guests. A lock is stored while an action holds it or waits for it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._guests: dict[str, _Turns] = {}
        self._mine = threading.local()

    @contextlib.contextmanager
    def hold(self, uuid: str, timeout: float | None = None) -> Iterator[None]:
        """Hold the guest's lock. ``timeout``: seconds until the caller bypasses the current holder and gets a new lock
        (None: wait without limit). The bypassed action must not continue: its next check() or hold() raises Conflict.
        """
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
        if turns is not None and turns.bypassed:
            raise exception.Conflict("Another action bypassed this one, which took too long.")

    def _acquire(self, uuid: str, timeout: float | None) -> _Turns:
        while True:
            with self._guard:
                turns = self._guests.setdefault(uuid, _Turns())
                turns.users += 1
            if not turns.lock.acquire(timeout=-1 if timeout is None else timeout):
                LOG.warning("[instance: %s] An action on the guest hangs: starting the next action without waiting for "
                            "the end of the hanging one", uuid)
                with self._guard:
                    turns.bypassed = True
                    if self._guests.get(uuid) is turns:
                        del self._guests[uuid]
                self._leave(uuid, turns)
            elif turns.bypassed:
                turns.lock.release()
                self._leave(uuid, turns)
            else:
                return turns

    def _leave(self, uuid: str, turns: _Turns) -> None:
        with self._guard:
            turns.users -= 1
            if turns.users == 0 and self._guests.get(uuid) is turns:
                del self._guests[uuid]
