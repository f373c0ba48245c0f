"""Calls that wait for their replies: one queue and one consumer per process."""

import logging
import queue
import threading
import time
import uuid
from typing import Any

import msgspec
import oslo_messaging as messaging

from nova.bus.driver import wire
from nova.bus.driver.broker import Broker, Consumer, NotPublished, Queue

LOG = logging.getLogger(__name__)


class Call:
    """A call that waits for its reply. ``id`` and ``reply_queue`` are sent with the request."""

    def __init__(self, reply_queue: str) -> None:
        self.id = uuid.uuid4().hex
        self.reply_queue = reply_queue
        self.replies: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def result(self, seconds: float) -> Any:
        """Wait for the reply. Raises MessagingTimeout, RemoteError."""
        try:
            reply = self.replies.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise messaging.MessagingTimeout(f"No reply to message {self.id} in {seconds:.1f} s.") from None
        if reply.get("failure"):
            raise wire.remote_error(reply["failure"])
        return reply.get("result")


class Calls:
    """The open calls of a process. Thread-safe."""

    def __init__(self, broker: Broker, reply_queue: Queue) -> None:
        self._broker, self.queue = broker, reply_queue
        self._lock = threading.Lock()
        self._consumer: Consumer | None = None
        self._calls: dict[str, Call] = {}

    def begin(self, until: float) -> Call:
        """Register a call; the first one declares the reply queue. The caller ends it with :meth:`end`. Raises
        NotPublished if the broker cannot be reached before ``until``."""
        if self._consumer is None:
            # Another call may be connecting, with a later deadline.
            if not self._lock.acquire(timeout=max(0.0, until - time.monotonic())):
                raise NotPublished("The reply queue was not declared before the deadline of the call.")
            try:
                if self._consumer is None:
                    self._consumer = self._broker.consume([self.queue], self._deliver, until, repeatable=True)
            finally:
                self._lock.release()
        call = Call(self.queue.name)
        self._calls[call.id] = call
        return call

    def end(self, call: Call) -> None:
        del self._calls[call.id]

    def _deliver(self, body: Any) -> None:
        try:
            reply = wire.decode(body)
        except msgspec.DecodeError as error:
            LOG.warning("Dropped a reply that cannot be decoded: %s", error)
            return
        call = self._calls.get(str(reply.get("_msg_id")))
        if call is None:
            LOG.debug("Dropped a reply to message %s: its call has ended", reply.get("_msg_id"))
        elif reply.get("ending", True) or reply.get("result") is not None:  # else a heartbeat of a long call
            call.replies.put(reply)

    def close(self) -> None:
        with self._lock:
            consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.stop()
