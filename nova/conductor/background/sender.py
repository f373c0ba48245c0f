"""The sender of the outbox. All conductors share the work: a partition has one sender at a time, by a lease. A message
is deleted after it was sent: it is sent at least once, under one id. Messages that the broker does not accept stay and
are retried; no request waits for them."""

import datetime
import functools
import logging
import random
import time
from collections.abc import Callable

from nova import bus, exception
from nova.conductor.core import Core
from nova.conf import CONF
from nova.db.maintenance import outbox
from nova.db.sql import clock
from nova.objects.accounts.notification import Notification
from nova.service.periodic import Periodic
from nova.telemetry import metrics

LOG = logging.getLogger(__name__)

_INTERVAL = 5.0  # seconds between two checks for notifications that another conductor left behind
_PAGE = 50  # number of messages read and deleted at once
_PAUSE, _LONGEST = 1.0, 30.0  # seconds after which an unavailable broker is tried again: minimum and maximum
_AWAY = 2  # number of consecutive partitions with failures after which the broker counts as unavailable
_DROPPED = 500  # number of old messages deleted per transaction


class Sender:
    """The sender of a conductor process. :meth:`poll` must be called by one thread only."""

    def __init__(self, core: Core, send: Callable[[Notification], None]) -> None:
        """``send`` raises ServiceUnavailable if the message must be sent again later."""
        self._core, self._send = core, send
        self._failures = 0
        self._not_before = 0.0
        self._next_sweep = 0.0

    def poll(self) -> None:
        """Send the waiting notifications, and delete those that are too old or exceed the limit."""
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _INTERVAL
            self._sweep()
        if time.monotonic() < self._not_before:
            return
        partitions = self._core.db.read(outbox.busy)
        random.shuffle(partitions)  # The loop ends after _AWAY failures: a fixed order could starve partitions.
        refused, in_a_row = False, 0
        for partition in partitions:
            in_a_row = 0 if self._send_partition(partition) else in_a_row + 1
            refused |= in_a_row > 0
            if in_a_row == _AWAY:
                break
        # A message that is too large, for example, does not mean that the broker is unavailable.
        self._failures = self._failures + 1 if in_a_row and in_a_row in (_AWAY, len(partitions)) else 0
        if refused:
            self._not_before = time.monotonic() + min(_LONGEST, _PAUSE * 2 ** min(self._failures, 10))

    def _send_partition(self, partition: int) -> bool:
        """Send all notifications of a partition, unless another conductor does; return False if the broker is down."""
        db, me = self._core.db, self._core.name
        until = clock.after(CONF.conductor.lease)
        if not db.write(lambda connection: outbox.take(connection, partition, me, clock.now(), until)):
            return True
        taken = mine = True
        while taken and mine and (page := db.read(lambda connection: outbox.page(connection, partition, _PAGE))):
            done, taken = self._publish(page, until)
            until = clock.after(CONF.conductor.lease)
            mine = db.write(functools.partial(outbox.sent, partition=partition, owner=me, ids=done, until=until))
        db.write(lambda connection: outbox.release(connection, partition, me, clock.now()))
        return taken

    def _publish(self, page: list[Notification], until: datetime.datetime) -> tuple[list[int], bool]:
        """Publish messages in order; return the ids of the sent messages, and True if the broker accepts more."""
        done: list[int] = []
        for notification in page:
            if clock.now() >= until:  # The lease has ended, so another conductor may hold the partition.
                break
            try:
                self._send(notification)
            except exception.ServiceUnavailable as error:
                log = LOG.debug if self._failures else LOG.warning
                log("Cannot send notifications, retrying until the broker accepts them: %s", error)
                return done, False
            done.append(notification.id)
            metrics.NOTIFICATIONS.inc("sent")
        return done, True

    def _sweep(self) -> None:
        """Delete messages that are too old or too many. Consumers of deleted messages must query the state."""
        total = 0
        while True:
            dropped = self._core.db.write(lambda connection: outbox.drop(
                connection, clock.after(-CONF.notifications.max_age), CONF.notifications.max_waiting, _DROPPED))
            total += dropped
            for _number in range(dropped):
                metrics.NOTIFICATIONS.inc("dropped")
            if dropped < _DROPPED:
                break
        if total:
            LOG.warning("Dropped %d notifications that the broker did not accept within %d s or that exceeded the "
                        "limit of %d", total, CONF.notifications.max_age, CONF.notifications.max_waiting)


def sending(core: Core) -> Periodic:
    """Return the task that sends the outbox periodically and after each commit that adds notifications. Raises
    InvalidInput."""
    thread = Periodic("notifications", _INTERVAL, Sender(core, bus.Publisher(CONF).send).poll)
    core.outbox.wake = thread.wake
    return thread
