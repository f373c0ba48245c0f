"""How answers reach callers that have lost their queue with the broker, and make it again a moment later.

oslo.messaging itself takes the time that the broker was away for time that a caller's queue was missing, gives the
answer up before the caller is back, and from then on drops all answers to that caller for a minute.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import oslo_messaging as messaging
from oslo_messaging._drivers import amqp, amqpdriver
from oslo_messaging._drivers.common import PURPOSE_SEND

from nova import context

LOG = logging.getLogger(__name__)

# Seconds between two attempts to answer a caller whose queue is missing.
_PAUSE = 0.25
# Seconds after which a queue that was missing is waited for again, should it still be.
_REMEMBERED = 60.0


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


class Question(amqpdriver.AMQPIncomingMessage):  # type: ignore[misc]
    """A message that may want an answer."""

    missing = Missing()

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        """Answer, as soon as there is a broker; a caller that is not there has some seconds to come back.

        One that was given them in vain is not waited for again, but answered as soon as it is there.
        """
        if not self.orig_msg_id:
            return
        patience = self.listener.driver.missing_destination_retry_timeout
        while not self._answer(reply, failure):
            missing = self.missing.seconds(self.reply_q)
            if missing >= patience or context.too_late():
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
