"""A consumer of RabbitMQ queues: one connection and one thread, which reconnects."""

import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import amqp

from nova.bus.driver.broker import Deliver, NotPublished, Queue
from nova.bus.driver.connections import ERRORS, Connection, Opener

LOG = logging.getLogger(__name__)

_IDLE = 10.0  # seconds without a message after which heartbeats are checked, if their interval is not shorter
# Seconds that the end of the consumer may take.
_STOP = 5.0
_ERRORS = (*ERRORS, NotPublished)


class RabbitConsumer:
    """Delivers the messages of some queues. Only its own thread uses the connection."""

    def __init__(self, opener: Opener, queues: Sequence[Queue], deliver: Deliver) -> None:
        self._opener, self._queues, self._deliver = opener, queues, deliver
        self._connection: Connection | None = None
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
            except _ERRORS as error:
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
            for number, queue in enumerate(self._queues, 1):
                connection.channel.basic_consume(queue.name, str(number), callback=self._received, arguments=arguments,
                                                 on_cancel=self._cancelled)
        except BaseException:
            connection.drop()
            raise
        connection.amqp.until = None
        self._connection = connection

    def _received(self, message: Any) -> None:
        if self._stopping.is_set():
            return  # unacknowledged: the broker gives the message to another consumer
        message.channel.basic_ack(message.delivery_tag)
        try:
            self._deliver(message.body)
        except Exception:
            LOG.exception("Lost a message of queue %s: it could not be handed to its handler", self._queues[0].name)

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
                idle = not self._connection.handle(self._idle, self._wake)
                if idle or self._connection.used_at < time.monotonic() - _IDLE:
                    self._connection.amqp.heartbeat_tick()
                    self._connection.used_at = time.monotonic()
            except _ERRORS as error:
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
                LOG.exception("Unexpected error in the consumer of %s", self._queues[0].name)
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
