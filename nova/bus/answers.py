"""How answers reach callers that have lost their queue with the broker, and make it again a moment later.

oslo.messaging itself takes the time that the broker was away for time that a caller's queue was missing, gives the
answer up before the caller is back, and from then on drops all answers to that caller for a minute.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import oslo_messaging as messaging
from oslo_context import context as oslo_context
from oslo_messaging._drivers import amqp, amqpdriver
from oslo_messaging._drivers.common import PURPOSE_SEND

from nova import context

LOG = logging.getLogger(__name__)

# Seconds between two attempts to answer a caller whose queue is missing.
_PAUSE = 0.25
# Seconds after which a queue that was missing is waited for again, should it still be.
_REMEMBERED = 60.0
# Threads that wait at the same time for queues of one host, which may name any number that never were.
_PER_HOST = 4
# Whoever has not proved who it is counts as one.
_STRANGERS = "strangers"


class Missing:
    """The queues of callers that are not there. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Since when, the oldest first.
        self._since: dict[str, float] = {}

    def seconds(self, queue: str) -> float:
        """For how long it has been missing; now it is."""
        now = time.monotonic()
        with self._lock:
            for known, since in list(self._since.items()):
                if now - since < _REMEMBERED:
                    break
                del self._since[known]
            return now - self._since.setdefault(queue, now)

    def found(self, queue: str) -> None:
        """It is there."""
        if queue in self._since:
            with self._lock:
                self._since.pop(queue, None)


class Waiters:
    """How many threads are about to answer each host. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count: collections.Counter[str] = collections.Counter()

    @contextlib.contextmanager
    def one_more(self, host: str) -> Iterator[bool]:
        """Whether this one may wait for the host ("": the control plane, for which all may)."""
        with self._lock:
            self._count[host] += 1
            may_wait = not host or self._count[host] <= _PER_HOST
        try:
            yield may_wait
        finally:
            with self._lock:
                self._count -= collections.Counter({host: 1})


class Question(amqpdriver.AMQPIncomingMessage):  # type: ignore[misc]
    """A message that may want an answer."""

    missing = Missing()
    waiters = Waiters()

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        """Answer, as soon as there is a broker; a caller that is not there has some seconds to come back.

        One that was given them in vain is not waited for again, but answered as soon as it is there.
        """
        if not self.orig_msg_id:
            return
        patience = self.listener.driver.missing_destination_retry_timeout
        with self.waiters.one_more(_asking()) as may_wait:
            while not self._answer(reply, failure):
                missing = self.missing.seconds(self.reply_q)
                if not may_wait or missing >= patience or context.too_late():
                    LOG.warning("The answer to %s is dropped: its queue %s has been missing for %.0f s",
                                self.msg_id, self.reply_q, missing)
                    return
                time.sleep(_PAUSE)

    def _answer(self, reply: Any, failure: Any) -> bool:
        """Whether the caller's queue was there."""
        try:
            with self.listener.driver._get_connection(PURPOSE_SEND) as connection:
                self._send_reply(connection, reply, failure)
        except (messaging.MessageUndeliverable, amqp.AMQPDestinationNotFound):
            return False
        self.missing.found(self.reply_q)
        return True


def _asking() -> str:
    """The host that has asked what this thread answers; "" for the control plane."""
    asking = oslo_context.get_current()
    if not isinstance(asking, context.RequestContext):
        return ""
    # What it said of itself is kept until somebody has looked at it.
    return _STRANGERS if asking.wire else asking.asking_host
