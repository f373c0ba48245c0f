"""Conversion of libvirt lifecycle events to power state reports.

An event says only that a guest changed; its state is read when the event is handled, so a report is never older than
the guest. After a reconnect every guest whose state differs from the last known is reported."""

import logging
import queue
import threading
from collections.abc import Callable

from nova import exception
from nova.objects.servers.guest import GuestStatus

LOG = logging.getLogger(__name__)


class EventReporter:
    """Reports changes of Nova's guests to ``report`` in a thread of its own. ``power_state(uuid)`` returns the
    state of a guest (GuestNotFound: missing, or not a guest of Nova), ``list_guests()`` those of all."""

    def __init__(self, power_state: Callable[[str], int], list_guests: Callable[[], list[GuestStatus]],
                 report: Callable[[GuestStatus], None]) -> None:
        self._power_state = power_state
        self._list_guests = list_guests
        self._report = report
        self._reported_states: dict[str, int] = {}
        # A uuid: the guest changed; None: any guest may have changed; _END: stop.
        self._changes: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="libvirt-guests", daemon=True)

    _END = ""

    def start(self) -> None:
        """Record the current power states and start the thread that reports changes."""
        self._reported_states = {guest.uuid: guest.power_state for guest in self._list_guests()}
        self._thread.start()

    def stop(self) -> None:
        self._changes.put(self._END)
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def changed(self, uuid: str) -> None:
        """Queue a change of a guest (of any owner). Returns at once, since libvirt's thread calls it."""
        self._changes.put(uuid)

    def reconnected(self) -> None:
        """Queue a check of all guests, since events may have been missed."""
        self._changes.put(None)

    def _run(self) -> None:
        while True:
            uuid = self._changes.get()
            if uuid == self._END:
                return
            try:
                if uuid is None:
                    self._compare()
                else:
                    self._check(uuid)
            except exception.HypervisorUnavailable:
                LOG.info("libvirt is unavailable: the guests are compared with the database after the reconnect")
            except Exception:
                LOG.exception("Cannot report a change of guest %s", uuid or "(any)")

    def _check(self, uuid: str) -> None:
        try:
            self._note(GuestStatus(uuid=uuid, power_state=self._power_state(uuid)))
        except exception.GuestNotFound:
            self._reported_states.pop(uuid, None)

    def _compare(self) -> None:
        guests = self._list_guests()
        for removed in self._reported_states.keys() - {guest.uuid for guest in guests}:
            del self._reported_states[removed]
        for guest in guests:
            self._note(guest)

    def _note(self, guest: GuestStatus) -> None:
        if self._reported_states.get(guest.uuid) == guest.power_state:
            return
        self._reported_states[guest.uuid] = guest.power_state
        LOG.debug("Guest %s is now in power state %s", guest.uuid, guest.power_state)
        self._report(guest)
