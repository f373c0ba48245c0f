"""Guests with quiesced file systems, during snapshots of their volumes by an external service."""

import logging
import threading

from nova import exception
from nova.objects.servers.instance import Instance
from nova.operations.framework.guest_driver import QUIESCE_TIMEOUT, Snapshots

LOG = logging.getLogger(__name__)

# Seconds between two attempts to thaw a guest that does not respond.
_RETRY = 5.0


class QuiescedGuests:
    """Quiesces guests, and thaws each after at most ``timeout`` seconds, even if the caller exited. Thread-safe."""

    def __init__(self, snapshots: Snapshots, timeout: float = QUIESCE_TIMEOUT) -> None:
        self._snapshots, self._timeout = snapshots, timeout
        self._lock = threading.Lock()
        self._ends: dict[str, tuple[Instance, threading.Timer]] = {}
        self._stopped = False

    def begin(self, instance: Instance) -> None:
        """Quiesce the guest. Raises InstanceQuiesceFailed, GuestNotFound."""
        self._end_after(instance, self._timeout)  # the timer must already run when the driver call hangs
        try:
            self._snapshots.quiesce(instance)
        except exception.InstanceQuiesceFailed:
            raise  # keep the timer: an agent that did not answer may still quiesce the guest
        except exception.NovaException:
            self._forget(instance.uuid, self._ends.get(instance.uuid))
            raise
        self._end_after(instance, self._timeout)  # the first timer may have ended during the call
        if self._stopped:
            self.end(instance)
            raise exception.InstanceQuiesceFailed(
                instance_id=instance.uuid, reason="nova-compute on its host is stopping")

    def end(self, instance: Instance) -> None:
        entry = self._ends.get(instance.uuid)
        self._snapshots.unquiesce(instance)
        self._forget(instance.uuid, entry)

    def stop(self) -> None:
        """Thaw all guests before this process ends."""
        self._stopped = True
        with self._lock:
            left = [instance for instance, _timer in self._ends.values()]
        for instance in left:
            try:
                self.end(instance)
            except Exception as error:
                LOG.error("[instance: %s] Cannot thaw the guest; if it hangs, reboot the server: %s", instance.uuid,
                          error)

    def _end_after(self, instance: Instance, seconds: float) -> None:
        timer = threading.Timer(seconds, self._over, (instance,))
        timer.daemon = True
        with self._lock:
            before = self._ends.get(instance.uuid)
            self._ends[instance.uuid] = instance, timer
        if before is not None:
            before[1].cancel()
        timer.start()

    def _forget(self, uuid: str, entry: tuple[Instance, threading.Timer] | None) -> None:
        """Remove the entry of a guest, unless it was quiesced again meanwhile."""
        with self._lock:
            if entry is None or self._ends.get(uuid) is not entry:
                return
            del self._ends[uuid]
        entry[1].cancel()

    def _over(self, instance: Instance) -> None:
        LOG.warning("[instance: %s] Thawing the guest: no thaw requested within %.0f s", instance.uuid, self._timeout)
        try:
            self.end(instance)
        except Exception as error:  # hypervisor unavailable, or the agent does not respond
            LOG.warning("[instance: %s] Cannot thaw the guest, retrying: %s", instance.uuid, error)
            self._end_after(instance, min(_RETRY, self._timeout))
