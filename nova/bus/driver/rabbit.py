"""The broker RabbitMQ, on py-amqp: publishing with deadlines by pooled connections, and consumers that reconnect."""

import bisect
import contextlib
import functools
import logging
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import amqp
import oslo_messaging as messaging

from nova.bus.driver.broker import BrokerBlocked, Deliver, Exchange, MessageRefused, NotPublished, Outgoing, Queue
from nova.bus.driver.connections import ERRORS, Connection, Opener
from nova.bus.driver.options import Options

LOG = logging.getLogger(__name__)

_BLOCKED = "The broker accepts no messages at present (memory or disk alarm)."
# Seconds between two checks of idle connections, and between the first two attempts to publish a message.
_REST, _PAUSE = 15.0, 0.5
_MAX_IDLE = 2  # number of publishing connections that are kept open even if nothing is published
_QUEUE_REQUEST = 5.0  # seconds that a request about a queue may take
# Seconds in which the broker may still confirm a message after it has blocked the connection: RabbitMQ accepts one
# message from each connection before it stops reading.
_LAST = 1.0
_ACKNOWLEDGED = 16  # maximum number of repeatable messages that one frame acknowledges
_IDLE = 10.0  # seconds without a message until a consumer checks heartbeats (a quarter of their interval if shorter)
_STOP = 5.0  # seconds that the thread of a stopped consumer has to end, before its connection is dropped
_CONSUMER_ERRORS = (*ERRORS, NotPublished)


class _Publisher:
    """A connection for publishing. One thread uses it at a time, until the deadline of the connection."""

    def __init__(self, opener: Opener, until: float) -> None:
        self.connection: Connection = opener.open(until)
        self.declared: set[str] = set()  # names of the exchanges and queues that this connection has declared
        self._opening = 0  # number of channel openings when the broker agreed to confirm messages
        self._tag = 0  # number of messages published since this agreement
        self._confirmed: bool | None = None
        self._returned = False
        self._channel = self.connection.channel
        self.connection.amqp.on_confirmed = functools.partial(self._on_confirmation, True)
        self._channel.events["basic_nack"].add(functools.partial(self._on_confirmation, False))
        self._channel.events["basic_return"].add(self._on_return)
        self._queue_channel: amqp.Channel | None = None

    def _on_confirmation(self, accepted: bool, tag: int, _multiple: bool = False) -> None:
        if tag == self._tag:
            self._confirmed = accepted

    def _on_return(self, *_arguments: Any) -> None:
        self._returned = True

    def publish(self, message: Outgoing) -> None:
        """Send a message and wait for its confirmation. Raises BrokerBlocked, MessageUndeliverable, TimeoutError, and
        amqp.NotFound if an exchange or a queue was deleted after this connection had declared it."""
        self._declare(message)
        if self._opening != self._channel.openings:
            self._channel.confirm_select()
            self._opening, self._tag = self._channel.openings, 0
        expiration = None
        if message.expires_at is not None:
            expiration = max(0, int(1000 * (message.expires_at - time.monotonic())))
        self._confirmed, self._returned = None, False
        self.connection.publish(message, expiration)
        self._tag += 1
        self._await_confirmation(message.until)
        if self._confirmed is False:
            raise NotPublished("The broker refused the message.")
        if self._returned:
            if message.queue is not None:
                raise amqp.NotFound(f"the queue {message.queue.name} was deleted")
            raise messaging.MessageUndeliverable(None, message.exchange.name, message.routing_key, None)

    def _declare(self, message: Outgoing) -> None:
        if message.queue is not None and message.queue.name not in self.declared:
            self.connection.declare_queue(message.queue)
            self.declared.add(message.queue.name)
        exchange: Exchange = message.exchange
        if exchange.declare and exchange.name not in self.declared:
            self.connection.declare(exchange)
            self.declared.add(exchange.name)

    def _await_confirmation(self, until: float) -> None:
        while self._confirmed is None:
            now = time.monotonic()
            if now >= until:
                raise BrokerBlocked(_BLOCKED) if self.connection.blocked else TimeoutError
            self.connection.handle(until - now)
            if self.connection.blocked:
                until = min(until, time.monotonic() + _LAST)

    def queue_channel(self) -> amqp.Channel:
        """Return a channel for requests about queues. The broker closes the channel when it refuses a request."""
        if self._queue_channel is None or not self._queue_channel.is_open:
            self._queue_channel = self.connection.amqp.channel()
        return self._queue_channel


class RabbitConsumer:
    """Delivers the messages of some queues. It has a connection, and a thread that is the only user of it."""

    def __init__(self, opener: Opener, queues: Sequence[Queue], deliver: Deliver, repeatable: bool) -> None:
        self._opener, self._queues, self._deliver, self._repeatable = opener, queues, deliver, repeatable
        self._connection: Connection | None = None
        self._delivered = 0  # tag of the newest repeatable message that is not acknowledged (0: none)
        self._stopping = threading.Event()
        self._wake, self._waker = os.pipe()
        heartbeat = opener.options.heartbeat
        self._idle = min(_IDLE, heartbeat / 4) if heartbeat else _IDLE
        self._thread = threading.Thread(target=self._run, name=f"consumer {queues[0].name}", daemon=True)

    def start(self, until: float | None) -> None:
        """Connect, declare the queues and begin to consume. Retries without end, or raises NotPublished if that did not
        succeed before ``until`` (monotonic time)."""
        pause = self._opener.options.retry_interval
        while self._connection is None and not self._stopping.is_set():
            try:
                self._connect(until)
            except _CONSUMER_ERRORS as error:
                longest = self._opener.options.reconnect_delay + pause
                if until is not None and time.monotonic() + longest > until:
                    os.close(self._wake)
                    os.close(self._waker)
                    raise error if isinstance(error, NotPublished) else NotPublished(str(error)) from error
                LOG.error("Cannot consume from %s: %s; retrying in %.1f s", self._queues[0].name, error, pause)
                pause = self._wait(pause)
        self._thread.start()

    def _wait(self, pause: float) -> float:
        """Wait before the next attempt to connect; return the pause before the attempt after it."""
        options = self._opener.options
        # Each process waits differently, so that the processes of 10,000 hosts do not reconnect at the same moment.
        self._stopping.wait(options.reconnect_delay + random.uniform(pause / 2, pause))  # noqa: S311
        return min(pause + options.retry_backoff, options.retry_longest)

    def _connect(self, until: float | None = None) -> None:
        connection = self._opener.open(until)
        try:
            options = self._opener.options
            for queue in self._queues:
                connection.declare_queue(queue)
            if options.prefetch:
                connection.channel.basic_qos(0, options.prefetch, False)
            arguments = {"x-cancel-on-ha-failover": True} if options.cancel_on_failover else None
            connection.amqp.on_delivered = functools.partial(self._received, connection)
            connection.wake_by(self._wake)
            for number, queue in enumerate(self._queues, 1):
                connection.channel.basic_consume(queue.name, str(number), arguments=arguments,
                                                 on_cancel=self._cancelled)
        except BaseException:
            connection.drop()
            raise
        connection.amqp.until = None
        self._connection, self._delivered = connection, 0

    def _received(self, connection: Connection, tag: int, body: bytes) -> None:
        if self._stopping.is_set():
            return  # unacknowledged: the broker gives the message to another consumer
        if not self._repeatable:
            connection.acknowledge(tag)
        try:
            self._deliver(body)
        except Exception:
            LOG.exception("Lost a message of queue %s: it could not be handed to its handler", self._queues[0].name)
        if self._repeatable:
            self._delivered = tag

    def _cancelled(self, _tag: str) -> None:
        raise amqp.RecoverableConnectionError("the broker has cancelled the consumer: its queue was deleted or moved")

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.is_set():
            try:
                if self._connection is None:
                    self._connect()
                    LOG.info("Consuming from %s again", self._queues[0].name)
                    pause = 0.0
                assert self._connection is not None
                idle = not self._connection.handle(self._idle)
                if self._delivered and (self._delivered % _ACKNOWLEDGED == 0 or not self._connection.buffered()):
                    self._connection.acknowledge(self._delivered, multiple=True)
                    self._delivered = 0
                if idle or self._connection.used_at < time.monotonic() - _IDLE:
                    self._connection.amqp.heartbeat_tick()
                    self._connection.used_at = time.monotonic()
            except Exception as error:
                if self._connection is not None:
                    self._connection.drop()
                    self._connection = None
                    self._opener.lost()
                if self._stopping.is_set():
                    break
                pause = pause or self._opener.options.retry_interval
                LOG.error("The connection of the consumer of %s is lost: %s; reconnecting in about %.1f s",
                          self._queues[0].name, error, pause, exc_info=not isinstance(error, _CONSUMER_ERRORS))
                pause = self._wait(pause)
        self._end()

    def keep_alive(self) -> None:
        """Send a heartbeat."""
        if self._connection is not None:
            with contextlib.suppress(*ERRORS):  # the next read reports the loss
                self._connection.amqp.send_heartbeat()

    def _end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            for queue in self._queues:
                if queue.temporary:
                    connection.channel.queue_delete(queue.name, nowait=True)
        except ERRORS as error:
            LOG.info("Queues of the consumer of %s were not deleted: %s", self._queues[0].name, error)
        connection.close()

    def stop(self) -> None:
        """Return unacknowledged messages to the broker, and end the thread. Takes at most _STOP seconds."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        os.write(self._waker, b"x")
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOP)
        if self._thread.is_alive():
            connection = self._connection
            if connection is not None:
                LOG.warning("Dropping the connection of the consumer of %s: its thread did not end within %.0f s",
                            self._queues[0].name, _STOP)
                connection.drop()
        else:
            os.close(self._wake)
            os.close(self._waker)


class RabbitBroker:
    """The broker RabbitMQ, with a pool of connections for publishing. Thread-safe."""

    def __init__(self, url: Any, options: Options) -> None:
        self.prefetch = options.prefetch
        self._opener = Opener(url, options)
        self._options = options
        self._changed = threading.Condition()
        self._idle: list[_Publisher] = []  # the most recently used one last
        self._count = 0
        self._blocked = False
        self._closed = threading.Event()
        self._checker: threading.Thread | None = None

    # --- publishing ----------------------------------------------------------------------------------
    def publish(self, message: Outgoing) -> None:
        failures, renewed = 0, False
        while True:
            self.check()
            publisher, fresh = self._take(message.until)
            try:
                publisher.publish(message)
            except messaging.MessageUndeliverable:
                self._put_back(publisher)
                raise
            except BrokerBlocked:
                self._block(publisher)
                raise
            except TimeoutError:
                self._drop(publisher)
                raise NotPublished("The broker did not confirm the message before the deadline.") from None
            except (NotPublished, amqp.PreconditionFailed) as error:
                self._put_back(publisher)
                raise error if isinstance(error, NotPublished) else MessageRefused(str(error)) from error
            except amqp.NotFound as error:
                publisher.declared.clear()
                self._put_back(publisher)
                if renewed:
                    raise NotPublished(str(error)) from error
                renewed = True
            except ERRORS as error:
                self._drop(publisher)
                if fresh:
                    failures += 1
                    self._pause(failures, message, error)
                elif not self._idle:
                    # Wait after the loss of all connections, so that processes reconnect at different times.
                    time.sleep(max(0.0, min(self._options.reconnect_delay, message.until - time.monotonic() - _PAUSE)))
            except BaseException:
                self._drop(publisher)
                raise
            else:
                if publisher.connection.blocked:
                    self._block(publisher)
                else:
                    self._put_back(publisher)
                return

    def _pause(self, failures: int, message: Outgoing, error: Exception) -> None:
        """Wait before another attempt to publish. Raises NotPublished if no further attempt is allowed."""
        pause = _PAUSE * 2 ** (failures - 1)
        if (message.retries is not None and failures > message.retries) or time.monotonic() + pause > message.until:
            raise NotPublished(str(error) or type(error).__name__) from error
        time.sleep(pause)

    def _take(self, until: float) -> tuple[_Publisher, bool]:
        """Return a connection that no other thread uses, with the deadline ``until``, and True if it was just opened.
        Raises NotPublished."""
        with self._changed:
            while not self._idle and self._count >= self._options.connections:
                if not self._changed.wait(until - time.monotonic()):
                    raise NotPublished(f"All {self._count} connections to the broker are in use.")
            if self._idle:
                publisher = self._idle.pop()
                publisher.connection.amqp.until = until
                return publisher, False
            self._count += 1
        try:
            publisher = _Publisher(self._opener, until)
        except BaseException as error:
            self._forget()
            if isinstance(error, ERRORS):
                raise NotPublished(str(error)) from error
            raise
        with self._changed:
            if self._checker is None and not self._closed.is_set():
                self._checker = threading.Thread(target=self._check_idle, name="broker connections", daemon=True)
                self._checker.start()
        return publisher, True

    def _put_back(self, publisher: _Publisher) -> None:
        publisher.connection.amqp.until = None
        publisher.connection.used_at = time.monotonic()
        with self._changed:
            if not self._closed.is_set():
                self._idle.append(publisher)
                self._changed.notify()
                return
        self._drop(publisher)

    def _drop(self, publisher: _Publisher) -> None:
        publisher.connection.drop()
        self._forget()

    def _forget(self) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify()

    # --- a broker that blocks its publishers ---------------------------------------------------------
    def check(self) -> None:
        if self._blocked:
            raise BrokerBlocked(_BLOCKED)

    def _block(self, publisher: _Publisher) -> None:
        """Refuse all messages until the broker reads from this connection again, or the connection is lost."""
        publisher.connection.amqp.until = None
        with self._changed:
            first, self._blocked = not self._blocked, True
        if first:
            LOG.error("The message broker accepts no messages (memory or disk alarm): calls fail until the alarm ends")
            threading.Thread(target=self._wait_until_unblocked, args=(publisher,), name="blocked broker",
                             daemon=True).start()
        else:
            self._drop(publisher)

    def _wait_until_unblocked(self, publisher: _Publisher) -> None:
        connection = publisher.connection
        try:
            while connection.blocked and not self._closed.is_set():
                connection.handle(1.0)
                connection.amqp.heartbeat_tick()
        except ERRORS as error:
            LOG.info("The connection that the broker had blocked is lost: %s", error)
        finally:
            self._drop(publisher)
            self._blocked = False
            LOG.info("The message broker accepts messages again")

    # --- idle connections ----------------------------------------------------------------------------
    def _check_idle(self) -> None:
        heartbeat = self._options.heartbeat
        while not self._closed.wait(min(_REST, heartbeat / 4) if heartbeat else _REST):
            for publisher in list(self._idle):
                with self._changed:
                    if publisher not in self._idle:
                        continue  # a thread is publishing with it, or the broker is closed
                    self._idle.remove(publisher)
                self._check_connection(publisher)

    def _check_connection(self, publisher: _Publisher) -> None:
        connection = publisher.connection
        try:
            connection.amqp.until = time.monotonic() + _LAST
            while connection.handle(0):
                pass
            connection.amqp.heartbeat_tick()
        except ERRORS:
            self._drop(publisher)
            return
        with self._changed:
            used = self._count <= _MAX_IDLE or connection.used_at >= time.monotonic() - self._options.idle_seconds
            if used and not self._closed.is_set():
                bisect.insort(self._idle, publisher, key=lambda idle: idle.connection.used_at)
                self._changed.notify()
                return
        connection.close()
        self._forget()

    def close(self) -> None:
        self._closed.set()
        with self._changed:
            idle, self._idle = self._idle, []
        for publisher in idle:
            publisher.connection.close()
            self._forget()

    # --- queues --------------------------------------------------------------------------------------
    def consume(self, queues: Sequence[Queue], deliver: Deliver, until: float | None = None,
                repeatable: bool = False) -> RabbitConsumer:
        consumer = RabbitConsumer(self._opener, queues, deliver, repeatable)
        consumer.start(until)
        return consumer

    def listeners(self, queue: str, seconds: float = _QUEUE_REQUEST) -> int:
        with self._queue_requests(seconds) as channel:
            try:
                return int(channel.queue_declare(queue, passive=True).consumer_count)
            except amqp.NotFound:
                return 0

    def delete_queue(self, queue: str) -> bool:
        with self._queue_requests(_QUEUE_REQUEST) as channel:
            try:
                channel.queue_delete(queue, if_unused=True)
            except amqp.PreconditionFailed:
                return False
            except amqp.NotFound:
                pass
            return True

    @contextlib.contextmanager
    def _queue_requests(self, seconds: float) -> Iterator[amqp.Channel]:
        self.check()
        publisher, _fresh = self._take(time.monotonic() + seconds)
        try:
            yield publisher.queue_channel()
        except BaseException as error:
            self._drop(publisher)
            if isinstance(error, ERRORS):
                raise NotPublished(str(error) or type(error).__name__) from error
            raise
        self._put_back(publisher)
