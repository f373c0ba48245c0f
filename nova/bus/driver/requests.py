"""Requests that a server receives: their listener, deadlines and replies."""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import oslo_messaging as messaging
from oslo_context import context as oslo_context

from nova import context
from nova.bus import oslo
from nova.bus.deadlines import Clocks
from nova.bus.driver import wire
from nova.bus.driver.broker import DEFAULT_EXCHANGE, Broker, Consumer, MessageRefused, Outgoing, Queue
from nova.bus.message_signing import claimed_sender

LOG = logging.getLogger(__name__)

ARRIVAL = "arrival"  # key of the deadlines.Arrival in the context of a request
DROPPED = {"dropped": True}  # the result of a request that had expired on arrival: no reply is sent
_PAUSE = 0.25  # seconds between two attempts to reply to a caller whose queue is missing
_REMEMBERED = 60.0  # seconds for which a missing reply queue is remembered: a later reply does not wait for it again
_WAITING_PER_HOST = 4  # maximum number of replies to one host that wait for a missing queue; others are dropped
_UNVERIFIED = "unverified"  # callers without a verified host name share one count
_REPLY_SECONDS = 5.0  # seconds that the broker may take to confirm a reply
_RECENT = 64  # number of stored message ids, by which messages that were published twice are dropped
_KEEP_ALIVE = 5.0  # seconds between two heartbeats while all threads of a server are busy


class MissingQueues:
    """Reply queues that do not exist at present. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[str, float] = {}  # time since which each queue is missing, oldest first
        self._waiting: collections.Counter[str] = collections.Counter()

    def seconds(self, queue: str) -> float:
        """Return for how many seconds the queue has been missing, counting from its first report."""
        now = time.monotonic()
        with self._lock:
            for name, since in list(self._since.items()):
                if now - since < _REMEMBERED:
                    break
                del self._since[name]
            return now - self._since.setdefault(queue, now)

    def exists(self, queue: str) -> None:
        """Forget a queue that has taken a reply."""
        if queue in self._since:
            with self._lock:
                self._since.pop(queue, None)

    @contextlib.contextmanager
    def reply_to(self, host: str) -> Iterator[bool]:
        """Count a reply to a host ("": the control plane); yield True if the reply may wait for its queue."""
        with self._lock:
            self._waiting[host] += 1
            may_wait = not host or self._waiting[host] <= _WAITING_PER_HOST
        try:
            yield may_wait
        finally:
            with self._lock:
                self._waiting -= collections.Counter({host: 1})


class Request(oslo.BaseIncomingMessage):  # type: ignore[misc]
    """A received request, and its reply."""

    def __init__(self, listener: Listener, ctxt: dict[str, Any], message: dict[str, Any]) -> None:
        self.reply_queue, call_id = message.pop("_reply_q", None), message.pop("_msg_id", None)
        self.call_id = call_id if isinstance(self.reply_queue, str) else None
        message.pop("_timeout", None)
        super().__init__(ctxt, message, self.call_id)
        self._listener: Listener | None = listener

    def requeue(self) -> None:
        """Do nothing: requests are acknowledged before they are delivered."""

    def heartbeat(self) -> None:
        """Do nothing: no client of Nova requests heartbeats."""

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        """Send the reply, if the sender waits for one, and release the server's thread. A caller that reconnects has
        some seconds to declare its missing queue again. A queue missing for longer is tried once per reply."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        try:
            if self.call_id and reply is not DROPPED:
                self._reply(listener, {"result": reply, "failure": wire.failure(failure[1]) if failure else None,
                                       "ending": True, "_msg_id": self.call_id, "_unique_id": self.call_id})
        finally:
            listener.release()

    def _reply(self, listener: Listener, message: dict[str, Any]) -> None:
        missing, queue = listener.missing, self.reply_queue
        body = wire.encode(message)
        with missing.reply_to(_host_that_waits()) as may_wait:
            while True:
                try:
                    listener.broker.publish(Outgoing(DEFAULT_EXCHANGE, queue, body, time.monotonic() + _REPLY_SECONDS,
                                                     mandatory=True, retries=None))
                except messaging.MessageUndeliverable:
                    seconds = missing.seconds(queue)
                    if not may_wait or seconds >= listener.missing_queue_seconds or context.too_late():
                        LOG.warning("Dropped the reply to message %s: its queue %s has been missing for %.0f s",
                                    self.call_id, queue, seconds)
                        return
                    time.sleep(_PAUSE)
                except messaging.MessageDeliveryFailure as error:
                    if isinstance(error, MessageRefused) or context.too_late():
                        LOG.warning("Dropped the reply to message %s: %s", self.call_id, error)
                        return
                    LOG.info("Cannot send the reply to message %s, retrying: %s", self.call_id, error)
                    time.sleep(_PAUSE)
                else:
                    missing.exists(queue)
                    return


def _host_that_waits() -> str:
    """Return the host whose request this thread handles, "" for the control plane."""
    ctx = oslo_context.get_current()
    if not isinstance(ctx, context.RequestContext):
        return ""
    # The wire fields stay in the context until the sender is verified.
    return _UNVERIFIED if ctx.wire else ctx.calling_host


class Listener(oslo.BaseListener):  # type: ignore[misc]
    """Passes requests to a server, one per free thread. The broker keeps the rest for other servers of the topic."""

    def __init__(self, broker: Broker, queues: Sequence[Queue], threads: int, missing_queue_seconds: float) -> None:
        super().__init__(1, None, broker.prefetch)
        self.broker = broker
        self.missing = MissingQueues()
        self.missing_queue_seconds, self.queues, self._free = missing_queue_seconds, queues, threads
        self._changed = threading.Condition()
        self._stopping = False
        self._clocks = Clocks()
        self._recent: collections.deque[str] = collections.deque(maxlen=_RECENT)
        self._consumer: Consumer | None = None

    def start(self, on_incoming_callback: Callable[[list[Request]], None]) -> None:
        super().start(on_incoming_callback)
        self._consumer = self.broker.consume(self.queues, self._deliver)

    def _deliver(self, body: Any) -> None:
        try:
            ctxt, message = wire.split_context(wire.decode(body))
        except msgspec.DecodeError as error:
            LOG.error("Dropped a request that cannot be decoded: %s", error)
            return
        unique_id = message.pop("_unique_id", None)
        if unique_id in self._recent:
            LOG.info("Dropped a request that was published twice: %s", unique_id)
            return
        self._recent.append(unique_id)
        ctxt[ARRIVAL] = self._clocks.arrival(ctxt, claimed_sender(ctxt))
        with self._changed:
            self._free -= 1
        try:
            self.on_incoming_callback([Request(self, ctxt, message)])
        except RuntimeError:  # the executor of the server has been shut down
            LOG.info("Dropped a request: the server is stopping")
            self.release()
        with self._changed:
            while not (self._changed.wait_for(lambda: self._free > 0 or self._stopping, _KEEP_ALIVE)):
                if self._consumer is not None:
                    self._consumer.keep_alive()

    def release(self) -> None:
        """Count one more free thread."""
        with self._changed:
            self._free += 1
            self._changed.notify()

    def stop(self) -> None:
        """Stop receiving requests. Delivered requests that this process has not started go back to the broker."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.stop()
        super().stop()

    def cleanup(self) -> None:
        """Do nothing: stop() has closed the connection."""
