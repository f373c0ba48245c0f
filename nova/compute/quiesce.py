"""Guests whose file systems are at rest while something outside is made of their disks."""

from __future__ import annotations

import logging
import threading

from nova import exception
from nova.objects.instance import Instance
from nova.operations.guest_driver import LONGEST_REST, GuestDriver

LOG = logging.getLogger(__name__)

# Seconds until a guest is told once more that did not hear that its rest is over.
_AGAIN = 5.0


class QuiescedGuests:
    """Each for ``longest`` seconds: whoever asked may be gone, or have asked too late. Thread-safe."""

    def __init__(self, driver: GuestDriver, longest: float = LONGEST_REST) -> None:
        self._driver, self._longest = driver, longest
        self._lock = threading.Lock()
        self._ends: dict[str, tuple[Instance, threading.Timer]] = {}
        self._stopped = False

    def begin(self, instance: Instance) -> None:
        """Raises InstanceQuiesceFailed, GuestNotFound."""
        self._end_after(instance, self._longest)  # before: a driver that hangs may have done it
        try:
            self._driver.quiesce(instance)
        except exception.InstanceQuiesceFailed:
            raise  # an agent that did not answer may do it late
        except exception.NovaException:
            self._forget(instance.uuid, self._ends.get(instance.uuid))
            raise
        self._end_after(instance, self._longest)  # it may have taken longer than that
        if self._stopped:
            self.end(instance)
            raise exception.InstanceQuiesceFailed(instance_id=instance.uuid, reason="nova-compute of its host ends")

    def end(self, instance: Instance) -> None:
        known = self._ends.get(instance.uuid)
        self._driver.unquiesce(instance)
        self._forget(instance.uuid, known)

    def stop(self) -> None:
        """This process ends: nobody is left who would have them go on."""
        self._stopped = True
        with self._lock:
            left = [instance for instance, _timer in self._ends.values()]
        for instance in left:
            try:
                self.end(instance)
            except Exception as error:
                LOG.error("[instance: %s] Its file systems may stay at rest: %s", instance.uuid, error)

    def _end_after(self, instance: Instance, seconds: float) -> None:
        timer = threading.Timer(seconds, self._over, (instance,))
        timer.daemon = True
        with self._lock:
            before = self._ends.get(instance.uuid)
            self._ends[instance.uuid] = instance, timer
        if before is not None:
            before[1].cancel()
        timer.start()

    def _forget(self, uuid: str, known: tuple[Instance, threading.Timer] | None) -> None:
        """Unless it is at rest again since."""
        with self._lock:
            if known is None or self._ends.get(uuid) is not known:
                return
            del self._ends[uuid]
        known[1].cancel()

    def _over(self, instance: Instance) -> None:
        LOG.warning("[instance: %s] Nobody ended the rest of its file systems in time: they go on", instance.uuid)
        try:
            self.end(instance)
        except Exception as error:  # the hypervisor is away, or its guest does not listen
            LOG.warning("[instance: %s] Its file systems are told again to go on: %s", instance.uuid, error)
            self._end_after(instance, min(_AGAIN, self._longest))
