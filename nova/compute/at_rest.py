"""Guests whose file systems are at rest while something outside is made of their disks."""

from __future__ import annotations

import logging
import threading

from nova import exception
from nova.objects.instance import Instance
from nova.operations.guest_driver import GuestDriver

LOG = logging.getLogger(__name__)

# Seconds after which a guest is at rest no longer, whoever wanted it: all that writes in it stands still meanwhile.
_LONGEST = 60.0


class AtRest:
    """Each for ``longest`` seconds: whoever asked may be gone, or have asked too late. Thread-safe."""

    def __init__(self, driver: GuestDriver, longest: float = _LONGEST) -> None:
        self._driver, self._longest = driver, longest
        self._lock = threading.Lock()
        self._ends: dict[str, threading.Timer] = {}

    def begin(self, instance: Instance) -> None:
        """Raises InstanceQuiesceFailed, GuestNotFound."""
        end = threading.Timer(self._longest, self._over, (instance,))
        end.daemon = True
        self._replace(instance.uuid, end)
        end.start()  # before: a driver that hangs may have done it
        try:
            self._driver.quiesce(instance)
        except exception.NovaException:
            self._replace(instance.uuid, None)
            raise

    def end(self, instance: Instance) -> None:
        self._replace(instance.uuid, None)
        self._driver.unquiesce(instance)

    def _replace(self, uuid: str, end: threading.Timer | None) -> None:
        with self._lock:
            before = self._ends.pop(uuid, None)
            if end is not None:
                self._ends[uuid] = end
        if before is not None:
            before.cancel()

    def _over(self, instance: Instance) -> None:
        LOG.warning("[instance: %s] Its file systems were at rest for %g s, and go on", instance.uuid, self._longest)
        self.end(instance)
