"""RabbitMQ as a broker, on py-amqp: publishing with deadlines over kept connections, and consumers that reconnect."""

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

from nova.bus.driver.broker import BrokerBlocked, Deliver, Exchange, NotPublished, Outgoing, Queue
from nova.bus.driver.connections import ERRORS, Connection, Opener
from nova.bus.driver.options import Options

LOG = logging.getLogger(__name__)

_BLOCKED = "The broker accepts no messages at present (memory or disk alarm)."
# Seconds between two checks of the connections that wait for use, and between two attempts to publish.
_REST, _PAUSE = 15.0, 0.5
_MAX_IDLE = 2  # connections that are kept however long nothing was published
_QUEUE_REQUEST = 5.0  # seconds that a request about a queue may take
# Seconds that the broker has to confirm a message after it has blocked the connection: RabbitMQ takes one message from
# each connection before it stops to read.
_LAST = 1.0
_ACKNOWLEDGED = 16  # messages that one frame acknowledges at most, if they may be delivered again
_IDLE = 10.0  # seconds without a message after which a consumer checks heartbeats, if their interval is not shorter
_STOP = 5.0  # seconds that the end of a consumer may take
_CONSUMER_ERRORS = (*ERRORS, NotPublished)


class _Publisher:
    """A connection to publish by. One thread uses it at a time, until the deadline of the connection."""

    def __init__(self, opener: Opener, until: float) -> None:
        self.connection: Connection = opener.open(until)
        self._selected = False  # True after the broker has agreed to confirm messages
        self._declared: set[str] = set()
        self._confirmed: bool | None = None
        self._returned = False
        self._channel = self.connection.channel
        self.connection.amqp.on_confirmed = self._on_ack
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_return)
        self._queue_channel: amqp.Channel | None = None

    def _on_ack(self, _tag: int) -> None:
        self._confirmed = True

    def _on_nack(self, _tag: int, _multiple: bool) -> None:
        self._confirmed = False

    def _on_return(self, *_arguments: Any) -> None:
        self._returned = True

    def publish(self, message: Outgoing) -> None:
        """Send a message and wait for its confirmation. Raises BrokerBlocked, MessageUndeliverable, TimeoutError."""
        if not self._selected:
            self._channel.confirm_select()
            self._selected = True
        self._declare(message)
        expiration = None
        if message.expires_at is not None:
            expiration = max(0, int(1000 * (message.expires_at - time.monotonic())))
        self._confirmed, self._returned = None, False
        self.connection.publish(message, expiration)
        self._await_confirmation(message.until)
        if self._confirmed is False:
            raise NotPublished("The broker refused the message.")
        if self._returned:
            raise messaging.MessageUndeliverable(None, message.exchange.name, message.routing_key, None)

    def _declare(self, message: Outgoing) -> None:
        if message.queue is not None and message.queue.name not in self._declared:
            self.connection.declare_queue(message.queue)
            self._declared.add(message.queue.name)
        exchange: Exchange = message.exchange
        if exchange.declare and exchange.name not in self._declared:
            self.connection.declare(exchange)
            self._declared.add(exchange.name)

    def _await_confirmation(self, until: float) -> None:
        while self._confirmed is None:
            now = time.monotonic()
            if now >= until:
                raise BrokerBlocked(_BLOCKED) if self.connection.blocked else TimeoutError
            self.connection.handle(until - now)
            if self.connection.blocked:
                until = min(until, time.monotonic() + _LAST)

    def renew(self) -> None:
        """Continue after a channel error, for which py-amqp has opened the channel again: nothing is declared there."""
        self._declared.clear()
        self._selected = False

    def queue_channel(self) -> amqp.Channel:
        """Return a channel for requests about queues: the broker closes it to refuse one."""
        if self._queue_channel is None or not self._queue_channel.is_open:
            self._queue_channel = self.connection.amqp.channel()
        return self._queue_channel


class RabbitConsumer:
    """Delivers the messages of some queues. It has a connection and a thread, which alone uses the connection."""

    def __init__(self, opener: Opener, queues: Sequence[Queue], deliver: Deliver, repeatable: bool) -> None:
        self._opener, self._queues, self._deliver, self._repeatable = opener, queues, deliver, repeatable
        self._connection: Connection | None = None
        self._delivered = 0  # tag of the last repeatable message that is not acknowledged
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
        """Wait before the next attempt to connect; return the pause after that one."""
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
            except _CONSUMER_ERRORS as error:
                if self._connection is not None:
                    self._connection.drop()
                    self._connection = None
                    self._opener.lost()
                if self._stopping.is_set():
                    break
                pause = pause or self._opener.options.retry_interval
                LOG.error("The connection of the consumer of %s is lost: %s; reconnecting in about %.1f s",
                          self._queues[0].name, error, pause)
                pause = self._wait(pause)
            except Exception:
                LOG.exception("Unexpected error in the consumer of %s, reconnecting", self._queues[0].name)
                if self._connection is not None:
                    self._connection.drop()
                    self._connection = None
                self._stopping.wait(1)
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
        """Return undelivered messages to the broker. Takes at most a few seconds."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        os.write(self._waker, b"x")
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOP)
        if self._thread.is_alive():
            connection = self._connection
            if connection is not None:
                LOG.warning("Abandoned the connection of the consumer of %s: it could not be closed in time",
                            self._queues[0].name)
                connection.drop()
        else:
            os.close(self._wake)
            os.close(self._waker)


class RabbitBroker:
    """Publishes by a pool of connections. Thread-safe."""

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
                raise NotPublished("The broker did not confirm the message in time.") from None
            except amqp.NotFound as error:
                publisher.renew()  # the exchange was deleted after this connection had declared it
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
                    # All connections are lost: processes reconnect at different times.
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
        """Wait before another attempt to publish. Raises NotPublished if there is none."""
        pause = _PAUSE * 2 ** (failures - 1)
        if (message.retries is not None and failures > message.retries) or time.monotonic() + pause > message.until:
            raise NotPublished(str(error) or type(error).__name__) from error
        time.sleep(pause)

    def _take(self, until: float) -> tuple[_Publisher, bool]:
        """Return a connection that no other thread uses, with the deadline ``until``, and True if it was made now.
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

    # --- connections that wait for use ---------------------------------------------------------------
    def _check_idle(self) -> None:
        heartbeat = self._options.heartbeat
        while not self._closed.wait(min(_REST, heartbeat / 4) if heartbeat else _REST):
            with self._changed:
                waiting, self._idle = self._idle, []
            for publisher in waiting:
                try:
                    while publisher.connection.handle(0):
                        pass
                    publisher.connection.amqp.heartbeat_tick()
                except ERRORS:
                    self._drop(publisher)
                    continue
                with self._changed:
                    old = publisher.connection.used_at < time.monotonic() - self._options.idle_seconds
                    expired = old and self._count > _MAX_IDLE
                    if not expired:
                        self._idle.insert(0, publisher)
                        self._changed.notify()
                if expired:
                    publisher.connection.close()
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
        except ERRORS as error:
            self._drop(publisher)
            raise NotPublished(str(error) or type(error).__name__) from error
        except BaseException:
            self._drop(publisher)
            raise
        self._put_back(publisher)
